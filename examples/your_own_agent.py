"""A small Q-learning agent in plain JAX. Lines marked SBM add the Spectral Bellman Method.

python examples/your_own_agent.py          ε-greedy actions; the Q-loss trains φ and θ
python examples/your_own_agent.py --sbm    Thompson sampling; SBM trains φ and θ̃, the Q-loss θ

The task is a corridor of eight cells. The agent starts at the left end. The right end pays reward 1
and ends the episode.
"""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from spectral_bellman import objective, operators, posterior  # SBM
from spectral_bellman.networks import ResidualParameters  # SBM

CELLS, ACTIONS, D, DISCOUNT, LIMIT = 8, 2, 32, 0.9, 40
OPTIMUM = DISCOUNT ** (CELLS - 2)  # the discounted reward of going right at once


class Params(NamedTuple):
    """A two-layer network with |A|·d outputs for φ, and θ (θ̂ in the paper) with Q = φᵀθ."""

    layers: tuple[Array, Array]
    theta: Array
    theta_tilde: ResidualParameters  # SBM


def init(key: Array) -> Params:
    """Random layers, θ = 0, and θ̃ as the identity."""
    keys = jax.random.split(key, 3)
    layers = (
        jax.random.normal(keys[0], (CELLS, 64)),
        jax.random.normal(keys[1], (64, ACTIONS * D)) / 8,
    )
    return Params(layers, jnp.zeros(D), ResidualParameters(D, keys[2]))


def features(params: Params, cell: Array | int) -> Array:
    """φ(s, ·), shape (A, d); each row has norm one."""
    hidden = jax.nn.relu(jax.nn.one_hot(cell, CELLS) @ params.layers[0])
    return objective.unit_norm((hidden @ params.layers[1]).reshape(ACTIONS, D))


class Batch(NamedTuple):
    """Transitions. The discount is 0 where the episode terminated, else γ."""

    cell: Any
    action: Any
    reward: Any
    discount: Any
    next_cell: Any


def q_loss(params: Params, target: Params, batch: Batch, frozen_features: bool) -> Array:
    """The mean of (φᵀθ − r − γ max φ⁻ᵀθ⁻)². With ``frozen_features`` it trains θ alone."""
    rows = jnp.arange(len(batch.cell))
    phi = jax.vmap(features, (None, 0))(params, batch.cell)[rows, batch.action]
    phi = jax.lax.stop_gradient(phi) if frozen_features else phi
    q_next = jax.vmap(features, (None, 0))(target, batch.next_cell) @ target.theta
    backup = jax.vmap(operators.one_step)(batch.reward, batch.discount, q_next)
    return jnp.mean(jnp.square(phi @ params.theta - backup))


def sbm_loss(  # SBM
    params: Params, target: Params, batch: Batch, covariances: Any, key: Array
) -> tuple[Array, Any]:
    """The representation loss trains φ and θ̃. The Q-loss on frozen φ trains θ."""
    theta = objective.sample_parameters(key, jax.lax.stop_gradient(params.theta), 1e-2, samples=64)
    rows = jnp.arange(len(batch.cell))
    phi = jax.vmap(features, (None, 0))(params, batch.cell)[rows, batch.action]
    phi_next = jax.vmap(features, (None, 0))(target, batch.next_cell)
    targets = operators.one_step_targets(batch.reward, batch.discount, phi_next, theta)
    theta_tilde = jax.vmap(params.theta_tilde)(theta)
    loss, (covariances, _) = objective.representation_loss(phi, theta_tilde, targets, covariances)
    return loss + q_loss(params, target, batch, frozen_features=True), covariances


@jax.jit
def explore(params: Params, cells: Array, actions: Array, used: Array, z: Array) -> Array:  # SBM
    """θ_TS for one episode. Σ is a sum over the replay; ``used`` is 0 for rows that are empty."""
    phi = jax.vmap(features, (None, 0))(params, cells)[jnp.arange(len(cells)), actions]
    sigma = posterior.precision(phi * used[:, None], ridge=0.1)
    scale = posterior.exploration_scale(sigma, DISCOUNT)
    return posterior.thompson_parameters(z, params.theta, posterior.factor(sigma), scale)


def train(sbm: bool, steps: int = 3000, seed: int = 0) -> tuple[list[float], float]:
    """Train, and return the discounted return of each episode and Q's value of the start cell."""
    rng = np.random.default_rng(seed)
    key, init_key = jax.random.split(jax.random.key(seed))
    params = target = init(init_key)
    optimizer = optax.adam(3e-3)
    opt_state, covariances = optimizer.init(params), objective.init_covariances(D)

    @jax.jit
    def update(
        params: Params, target: Params, opt_state: Any, covariances: Any, batch: Batch, key: Array
    ) -> tuple[Any, ...]:
        if sbm:  # SBM
            grads, covariances = jax.grad(sbm_loss, has_aux=True)(
                params, target, batch, covariances, key
            )
        else:
            grads = jax.grad(q_loss)(params, target, batch, frozen_features=False)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, covariances

    greedy = jax.jit(lambda params, theta, cell: jnp.argmax(features(params, cell) @ theta))
    replay = Batch(*(np.zeros(steps, kind) for kind in (int, int, np.float32, np.float32, int)))
    cell, age, theta_act, returns = 0, 0, params.theta, []
    for step in range(steps):
        if age == 0 and sbm:  # SBM: one draw of z, and so of θ_TS, per episode
            z = jnp.asarray(rng.normal(size=D), jnp.float32)
            used = (np.arange(steps) < step).astype(np.float32)
            theta_act = explore(params, replay.cell, replay.action, used, z)
        elif not sbm:
            theta_act = params.theta
        epsilon = max(0.05, 1 - step / 500) if not sbm else float(step < 200)
        explores = rng.random() < epsilon
        action = int(rng.integers(ACTIONS) if explores else greedy(params, theta_act, cell))
        next_cell = min(max(cell + 2 * action - 1, 0), CELLS - 1)
        done = next_cell == CELLS - 1
        transition = (cell, action, float(done), 0.0 if done else DISCOUNT, next_cell)
        for column, value in zip(replay, transition, strict=True):
            column[step] = value
        cell, age = next_cell, age + 1
        if done or age == LIMIT:
            returns.append(DISCOUNT ** (age - 1) if done else 0.0)
            cell, age = 0, 0
        if step >= 100:
            key, subkey = jax.random.split(key)
            rows = rng.integers(step + 1, size=64)
            batch = Batch(*(column[rows] for column in replay))
            params, opt_state, covariances = update(
                params, target, opt_state, covariances, batch, subkey
            )
            if step % 50 == 0:
                target = params
    return returns, float(jnp.max(features(params, 0) @ params.theta))


if __name__ == "__main__":
    episode_returns, start_value = train(sbm="--sbm" in sys.argv[1:])
    mean = np.mean(episode_returns[-20:])
    print(f"mean return of the last 20 episodes: {mean:.3f} (best possible {OPTIMUM:.3f})")
    print(f"value of the start: {start_value:.3f} (true {OPTIMUM:.3f})")
