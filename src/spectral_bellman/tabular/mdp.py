"""Finite Markov decision processes, their Bellman operators, and families with known properties."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from spectral_bellman._arrays import as_float64

FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False, init=False)
class MDP:
    """A finite MDP (section 2). Terminal states are absorbing, with reward zero."""

    reward: FloatArray
    """r(s, a), shape (S, A)."""
    transition: FloatArray
    """P(s'|s, a), shape (S, A, S); each row a distribution."""
    discount: float
    """γ in [0, 1)."""

    def __init__(self, reward: ArrayLike, transition: ArrayLike, discount: float) -> None:
        reward = as_float64(reward, "reward", "S A")
        transition = as_float64(transition, "transition", "S A S")
        discount = float(discount)
        states, actions = reward.shape
        if states == 0 or actions == 0:
            raise ValueError(
                f"reward has shape {reward.shape}; an MDP needs at least one state and one action"
            )
        if transition.shape != (states, actions, states):
            raise ValueError(
                f"transition must have shape ({states}, {actions}, {states}) "
                f"beside a reward of shape {reward.shape}, got {transition.shape}"
            )
        if (transition < 0).any():
            s, a, t = (int(i) for i in np.argwhere(transition < 0)[0])
            raise ValueError(
                f"transition[{s}, {a}, {t}] is {transition[s, a, t]}; "
                "a probability cannot be negative: clip it, then divide the row by its sum"
            )
        sums = transition.sum(axis=-1)
        wrong = np.argwhere(np.abs(sums - 1) > 1e-6)
        if len(wrong):
            s, a = (int(i) for i in wrong[0])
            raise ValueError(
                f"transition[{s}, {a}] sums to {sums[s, a]:.8g}, not 1 "
                f"({len(wrong)} of {sums.size} rows do not); divide each row by its sum, "
                "or add an absorbing state for what is missing"
            )
        if not 0 <= discount < 1:
            raise ValueError(
                f"discount must lie in [0, 1), got {discount}; "
                "make termination a zero-reward absorbing state"
            )
        # Probabilities from float32 sum to one only to within 1e-7.
        transition = transition / np.where(np.abs(sums - 1) > 1e-12, sums, 1)[..., None]
        reward.flags.writeable = transition.flags.writeable = False
        object.__setattr__(self, "reward", reward)
        object.__setattr__(self, "transition", transition)
        object.__setattr__(self, "discount", discount)

    @property
    def num_states(self) -> int:
        """S."""
        return self.reward.shape[0]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.reward.shape[1]


def bellman_backup(mdp: MDP, q: ArrayLike) -> FloatArray:
    """TQ(s, a) = r(s, a) + γ Σ_s' P(s'|s, a) max_a' Q(s', a'), exactly."""
    return backup_of(mdp, _check_q(mdp, q))


def h_step_backup(mdp: MDP, q: ArrayLike, h: int) -> FloatArray:
    """T^h Q = T(T^{h−1} Q) (appendix D.1); h = 0 is Q itself."""
    if h < 0:
        raise ValueError(f"h must be at least 0, got {h}")
    result = _check_q(mdp, q)
    for _ in range(h):
        result = backup_of(mdp, result)
    return result


def optimal_q(mdp: MDP) -> FloatArray:
    """Q*, by policy iteration, then value iteration.

    The error is at most 1e-10, relative to the largest entry or to 1, whichever is larger.
    """
    states = np.arange(mdp.num_states)
    policy = np.argmax(mdp.reward, axis=1)
    q = np.zeros_like(mdp.reward)
    for _ in range(1000):
        transition = mdp.transition[states, policy]
        value = np.linalg.solve(
            np.eye(mdp.num_states) - mdp.discount * transition, mdp.reward[states, policy]
        )
        q = mdp.reward + mdp.discount * mdp.transition @ value
        better = q.max(axis=1) > q[states, policy] + 1e-12 * max(1.0, float(np.abs(q).max()))
        if not better.any():
            break
        policy = np.where(better, np.argmax(q, axis=1), policy)
    while True:
        # ‖Q − Q*‖ ≤ ‖TQ − Q‖ / (1 − γ). The second bound is the resolution of float64.
        backup = backup_of(mdp, q)
        residual, size = np.abs(backup - q).max(), max(1.0, float(np.abs(backup).max()))
        q = backup
        if residual <= max(1e-10 * (1 - mdp.discount), 4 * np.finfo(float).eps) * size:
            return q


def chain_mdp(
    length: int, discount: float, *, slip: float = 0.0, small_reward: float = 0.001
) -> MDP:
    """A chain: action 1 goes right and pays 1 in the last state; action 0 goes left.

    Action 0 pays ``small_reward`` in the first state. With probability ``slip`` the other action
    happens.
    """
    if length < 2:
        raise ValueError(f"a chain needs at least 2 states, got length {length}")
    if not 0 <= slip <= 1:
        raise ValueError(f"slip is a probability, got {slip}")
    states = np.arange(length)
    step = np.zeros((length, 2, length))
    step[states, 0, np.maximum(states - 1, 0)] = 1
    step[states, 1, np.minimum(states + 1, length - 1)] = 1
    pay = np.zeros((length, 2))
    pay[0, 0], pay[-1, 1] = small_reward, 1
    return MDP(
        (1 - slip) * pay + slip * pay[:, ::-1], (1 - slip) * step + slip * step[:, ::-1], discount
    )


def deep_sea_mdp(size: int, discount: float, *, move_cost: float = 0.01) -> MDP:
    """DeepSea (Osband et al. 2020) without action masks.

    The MDP is a grid. Each step goes one row down; action 1 goes right and action 0 left. Going
    right costs ``move_cost / size``, and pays 1 in the last cell of the last row. Only going right
    in every row reaches that cell. The state is ``row * size + column``; the last state is the
    absorbing end.
    """
    if size < 2:
        raise ValueError(f"deep sea needs a size of at least 2, got {size}")
    end = size * size
    reward = np.zeros((end + 1, 2))
    transition = np.zeros((end + 1, 2, end + 1))
    transition[end, :, end] = 1
    for row in range(size):
        for column in range(size):
            state = row * size + column
            for action, move in enumerate((-1, 1)):
                below = (row + 1) * size + min(max(column + move, 0), size - 1)
                transition[state, action, end if row == size - 1 else below] = 1
            reward[state, 1] = -move_cost / size
    reward[end - 1, 1] += 1
    return MDP(reward, transition, discount)


def random_mdp(
    key: Any, states: int, actions: int, discount: float, *, branching: int | None = None
) -> MDP:
    """Rewards uniform in [0, 1], and transitions with Dirichlet probabilities.

    Each state-action pair leads to ``branching`` random states (default: all states).
    """
    rng = generator(key)
    branching = states if branching is None else branching
    if not 1 <= branching <= states:
        raise ValueError(f"branching must lie in [1, {states}], got {branching}")
    transition = np.zeros((states, actions, states))
    for s, a in np.ndindex(states, actions):
        transition[s, a, rng.choice(states, branching, replace=False)] = rng.dirichlet(
            np.ones(branching)
        )
    return MDP(rng.uniform(size=(states, actions)), transition, discount)


def low_rank_mdp(
    key: Any, states: int, actions: int, rank: int, discount: float
) -> tuple[MDP, FloatArray]:
    """A linear MDP, r = φᵀw and P = φᵀμ, and its features φ of shape (S, A, rank).

    The inherent Bellman error of φ is zero.
    """
    if not 1 <= rank <= states:
        raise ValueError(f"rank must lie in [1, {states}], the number of states, got {rank}")
    rng = generator(key)
    features = rng.dirichlet(np.full(rank, 0.5), size=(states, actions))
    destinations = rng.dirichlet(np.full(states, 0.5), size=rank)
    return MDP(features @ rng.uniform(size=rank), features @ destinations, discount), features


def aggregated_mdp(
    key: Any, groups: int, distractors: int, actions: int, discount: float
) -> tuple[MDP, FloatArray]:
    """An MDP with states (group, distractor), and its features.

    The reward and the next group depend on (group, action) alone. The distractor has its own
    transitions. The transition matrix has full rank. The features of shape
    (S, A, groups · actions), one-hot in (group, action), still have zero inherent Bellman error:
    closure needs far fewer features than the dynamics.
    """
    rng = generator(key)
    reward = rng.uniform(size=(groups, actions))
    between = rng.dirichlet(np.ones(groups), size=(groups, actions))
    within = rng.dirichlet(np.full(distractors, 0.2), size=(groups, distractors, actions))
    transition = np.einsum("gah,gdae->gdahe", between, within)
    states = groups * distractors
    features = np.zeros((groups, distractors, actions, groups, actions))
    for g, a in np.ndindex(groups, actions):
        features[g, :, a, g, a] = 1
    mdp = MDP(
        np.repeat(reward, distractors, axis=0),
        transition.reshape(states, actions, states),
        discount,
    )
    return mdp, features.reshape(states, actions, groups * actions)


def generator(key: Any) -> np.random.Generator:
    """A NumPy generator from a seed, a generator, or a JAX key."""
    if isinstance(key, jax.Array):
        key = np.asarray(
            jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        )
        key = key.astype(np.uint32).ravel().tolist()
    return np.random.default_rng(key)


def backup_of(mdp: MDP, q: FloatArray) -> FloatArray:
    """TQ of one Q or of many, (S, A, …), unchecked."""
    reward = mdp.reward.reshape(mdp.reward.shape + (1,) * (q.ndim - 2))
    return reward + mdp.discount * np.tensordot(mdp.transition, q.max(axis=1), axes=1)


def _check_q(mdp: MDP, q: ArrayLike) -> FloatArray:
    array = as_float64(q, "q", "S A")
    if array.shape != mdp.reward.shape:
        raise ValueError(f"q must have shape (S, A) = {mdp.reward.shape}, got {array.shape}")
    return array
