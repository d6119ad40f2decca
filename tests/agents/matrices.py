"""Networks that are a matrix, and one batch for them: NumPy can say every number."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.agents.backbones import Backbone, FeedForward
from spectral_bellman.agents.backbones.api import Torso
from spectral_bellman.agents.backups import OneStepOperator, OperatorConfig
from spectral_bellman.agents.features import raw_features
from spectral_bellman.agents.representations.api import Batch, Problem, Representation, Target
from spectral_bellman.networks import FeatureNetwork, feature_network
from spectral_bellman.replay import Transition

from .quick import quick

S, A, D, B = 3, 2, 4, 6
"""Numbers in an observation, actions, features, transitions in the batch."""
GAMMA = 0.9
SHAPE = jax.ShapeDtypeStruct((S,), jnp.float32)


def linear(weight: np.ndarray) -> FeatureNetwork:
    """φ(s, a) = W[a] s, with W of shape (A, d, S)."""
    actions, d, size = weight.shape
    shape = jax.ShapeDtypeStruct((size,), jnp.float32)
    network = feature_network("mlp", (), shape, actions, d, jax.random.key(0))
    return eqx.tree_at(lambda n: n.head.weight, network, floats(weight.reshape(-1, size)))


def problem(**changes) -> Problem:
    """What a representation is told, with γ = 0.9."""
    settings = {
        "observation": SHAPE,
        "num_actions": A,
        "discount": GAMMA,
        "reward_clip": 1.0,
        "learning_rate": 1e-3,
        "head_rate": 1.0,
        "adam_epsilon": 1e-8,
        "rescaling": 0.0,
        "double": False,
        "priorities": False,
        "following": False,
    }
    return Problem(**(settings | changes))


def single(actions: int, d: int, key: jax.Array) -> FeatureNetwork:
    """A random network of one observation, which is a matrix too."""
    return feature_network("mlp", (), SHAPE, actions, d, key)


def backbone(operator: OperatorConfig | None = None, **changes) -> Backbone:
    """φ from one observation, by a matrix; one-step targets unless there is an operator."""
    return FeedForward().build(problem(**changes), operator or OneStepOperator(), Torso("mlp", ()))


def floats(x) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


def target_of(weight: np.ndarray, theta, beside=()) -> Target:
    """The target with φ⁻ of a matrix."""
    return Target(linear(weight), floats(theta), beside, jnp.zeros(()))


def prepared(
    part: Representation,
    target: Target,
    kept,
    batch: Transition,
    key: int = 0,
    *,
    beside=None,
    network: FeatureNetwork | None = None,
    **changes,
):
    """What the loss of one batch needs; ``changes`` are the problem's.

    What is trained, ``beside`` and ``network``, matters in double Q-learning only.
    """
    functions = backbone(**changes)

    def prepare(target, network, beside, kept, batch, key):
        backup = functions.backup(part.normalise, target, network, batch)
        return part.prepare(backup, beside, kept, key)

    beside = part.init(jax.random.key(0), target.theta)[0] if beside is None else beside
    network = target.network if network is None else network
    return quick(prepare)(target, network, beside, kept, batch, jax.random.key(key))


def q_targets(part: Representation, target: Target, batch: Transition, **changes) -> jax.Array:
    """TQ with the target's own parameters."""
    backup = backbone(**changes).backup(part.normalise, target, target.network, batch)
    return backup.of(target.theta, target.theta)


def features(part: Representation, network: FeatureNetwork, observations: jax.Array) -> jax.Array:
    """φ(s, ·) with its norm."""
    return part.normalise(raw_features(network, observations))


def features_taken(part: Representation, network: FeatureNetwork, batch: Transition) -> jax.Array:
    """φ(s, a) with its norm."""
    return part.normalise(backbone().taken(network, batch))


def loss_of(part: Representation, network, beside, kept, batch: Transition, prepared, weight=None):
    """The loss of one batch, through φ: differentiable in the network too."""
    return part.loss(Batch(features_taken(part, network, batch), weight), beside, kept, prepared)


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
TARGET = target_of(TARGET_WEIGHT, THETA)


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
