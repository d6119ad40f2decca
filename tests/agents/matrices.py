"""Networks that are a matrix, and one batch for them: NumPy can say every number."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.agents.representations.api import Problem, Representation, Target
from spectral_bellman.networks import FeatureNetwork, feature_network
from spectral_bellman.replay import Transition

from .quick import quick

S, A, D, B = 3, 2, 4, 6
"""Numbers in an observation, actions, features, transitions in the batch."""
GAMMA = 0.9


def linear(weight: np.ndarray) -> FeatureNetwork:
    """φ(s, a) = W[a] s, with W of shape (A, d, S)."""
    actions, d, size = weight.shape
    shape = jax.ShapeDtypeStruct((size,), jnp.float32)
    network = feature_network("mlp", (), shape, actions, d, jax.random.key(0))
    return eqx.tree_at(lambda n: n.head.weight, network, floats(weight.reshape(-1, size)))


def problem(**changes) -> Problem:
    """What a representation is told, with γ = 0.9 and random networks that are matrices too."""
    settings = {
        "observation": jax.ShapeDtypeStruct((S,), jnp.float32),
        "num_actions": A,
        "discount": GAMMA,
        "reward_clip": 1.0,
        "learning_rate": 1e-3,
        "head_rate": 1.0,
        "adam_epsilon": 1e-8,
    }
    settings |= changes
    return Problem(
        **settings,
        random_network=lambda actions, d, key: feature_network(
            "mlp", (), settings["observation"], actions, d, key
        ),
    )


def floats(x) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


def stacked(batch: Transition) -> Transition:
    """A batch as the batches of one gradient step."""
    return jax.tree.map(lambda x: x[None], batch)


def prepared(part: Representation, target: Target, kept, batch: Transition, key: int = 0):
    """What the loss of one batch needs."""
    found = quick(part.prepare)(target, kept, stacked(batch), jax.random.key(key))
    return jax.tree.map(lambda x: x[0], found)


def phi_of(weight, observations) -> np.ndarray:
    """W[a] s of every action, in double precision."""
    return np.einsum("ads,bs->bad", weight, np.asarray(observations, np.float64))


def of_unit_norm(phi: np.ndarray) -> np.ndarray:
    return phi / np.linalg.norm(phi, axis=-1, keepdims=True)


def taken_of(phi: np.ndarray, batch: Transition) -> np.ndarray:
    """The rows of the actions taken."""
    return phi[np.arange(len(phi)), np.asarray(batch.action)]


def backups(values: np.ndarray, batch: Transition, clip: float = 1.0) -> np.ndarray:
    """r clipped + γ max_a' of values (B, A), or of a grid (B, A, M)."""
    reward = np.clip(np.asarray(batch.reward, np.float64), -clip, clip)
    discount = GAMMA * np.asarray(batch.discount, np.float64)
    shape = (-1,) + (1,) * (values.ndim - 2)
    return reward.reshape(shape) + discount.reshape(shape) * values.max(axis=1)


_rng = np.random.default_rng(1)
WEIGHT, TARGET_WEIGHT = _rng.normal(size=(2, A, D, S))
THETA = _rng.normal(size=D)
BATCH = Transition(
    observation=floats(_rng.normal(size=(B, S))),
    action=jnp.asarray([0, 1, 1, 0, 1, 0]),
    reward=jnp.asarray([0.5, 3.0, -2.0, 0.0, 1.0, -0.25]),
    discount=jnp.asarray([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]),
    extras={"behaviour_prob": jnp.ones(B)},
    next_observation=floats(_rng.normal(size=(B, S))),
)
ACTION = np.asarray(BATCH.action)
TARGET = Target(linear(TARGET_WEIGHT), floats(THETA), ())


def tabular() -> tuple[FeatureNetwork, Transition, np.ndarray, np.ndarray]:
    """Three states, two actions, one-hot φ (d = 6), and every pair (s, a) once.

    The last two transitions end their episodes. Returns φ, the batch, and s' and γ of each pair.
    """
    weight = np.zeros((A, S * A, S))
    for s in range(S):
        for a in range(A):
            weight[a, s * A + a, s] = 1
    state, action = np.divmod(np.arange(S * A), A)
    after, ends = np.array([1, 2, 0, 2, 1, 0]), np.array([0, 0, 0, 0, 1, 1])
    batch = Transition(
        observation=floats(np.eye(S)[state]),
        action=jnp.asarray(action),
        reward=floats([0.5, -0.5, 0.25, 1, 0, 0.75]),
        discount=floats(1 - ends),
        extras={"behaviour_prob": jnp.ones(S * A)},
        next_observation=floats(np.eye(S)[after]),
    )
    return linear(weight), batch, after, GAMMA * (1 - ends)
