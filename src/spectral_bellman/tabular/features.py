"""Features of finite MDPs: the outer loop, where TQ changes with the features, and baselines."""

from typing import Any, NamedTuple

import numpy as np

from spectral_bellman.tabular.ibe import value_bound
from spectral_bellman.tabular.mdp import MDP, FloatArray, backup_of, generator, optimal_q
from spectral_bellman.tabular.power import power_method


def spectral_features(
    mdp: MDP,
    rank: int,
    *,
    iterations: int = 30,
    sweeps: int = 50,
    samples: int | None = None,
    bound: float | None = None,
    steps: int = 1,
    seed: int = 0,
) -> tuple[FloatArray, FloatArray]:
    """Features closed under T^h, found by Algorithm 1 on backups recomputed as features change.

    The loop starts from zero features, where the only backup is T^h0; T0 = r. Each round samples
    functions φᵀθ that fill [−D, D], backs them up, and takes the leading singular directions of the
    backups. Without truncation the spans grow from round to round, since T^h0 is among the backups,
    up to the smallest space that is closed under T^h. If the rank is too small the spans wander,
    and the round with the smallest error is kept.

    A space closed under T is closed under T^h. The smallest space closed under T^h is therefore
    never larger than the smallest space closed under T. Both lie in the span of r and of the
    columns P(s'|·): T^hQ = r + γPV with V(s') = max_a T^{h−1}Q(s', a).

    Args:
      mdp: the MDP.
      rank: d.
      iterations: the largest number of rounds; the loop stops when a round leaves no error.
      sweeps: sweeps of the power method in each round.
      samples: samples of θ in each round; max(4 · rank, 128) if not given.
      bound: D; max|r| / (1 − γ) if not given.
      steps: h, the number of Bellman backups in T^h.
      seed: the seed of the samples.

    Returns:
      Features (S, A, rank), scaled so that the largest norm is one; unused columns are zero. Then,
      for each round up to the kept round, the largest |T^hQ_θ − projection onto the span| over
      fresh samples of θ. The last entry is the error that the returned features leave.
    """
    limit = min(mdp.reward.size, 1 + mdp.num_states)
    if not 1 <= rank <= mdp.reward.size:
        raise ValueError(
            f"rank must lie in [1, {mdp.reward.size}], the number of state-action pairs, got {rank}"
        )
    bound = value_bound(mdp) if bound is None else bound
    samples = max(4 * rank, 128) if samples is None else samples
    if samples < rank:
        raise ValueError(f"samples must be at least the rank {rank}, got {samples}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}; it is h, the backups in T^h")
    rng = np.random.default_rng(seed)
    features = np.zeros((mdp.reward.size, rank))
    scale = float(np.abs(mdp.reward).max())
    errors: list[float] = []
    best = features
    for _ in range(iterations):
        backups = _backups(mdp, _sample_functions(rng, features, samples, bound), steps)
        # T^hQ lies in the span of r and P, so a rank above 1 + S has nothing more to find.
        found, _, values = power_method(
            backups, min(rank, limit), sweeps, seed=int(rng.integers(2**31))
        )
        features = np.zeros_like(features)
        features[:, : found.shape[1]] = found * (values > 1e-12 * values[0])
        fresh = _backups(mdp, _sample_functions(rng, features, samples, bound), steps)
        basis = _basis(features)
        errors.append(float(np.abs(fresh - basis @ (basis.T @ fresh)).max()))
        if errors[-1] == min(errors):
            best = features
        if errors[-1] <= 1e-12 * max(bound, scale):
            break
    kept = np.array(errors[: int(np.argmin(errors)) + 1])
    return _into_unit_ball(best).reshape(*mdp.reward.shape, rank), kept


class Round(NamedTuple):
    """One round of Algorithm 2."""

    features: FloatArray
    """φ_t, shape (S, A, d)."""
    parameters: FloatArray
    """θ̂_t, shape (d,), the mean of ν_t."""
    samples: FloatArray
    """θ ~ ν_t, shape (M, d)."""
    value_error: float
    """‖φ_tᵀθ̂_t − Q*‖_∞."""


def spectral_q_iteration(
    mdp: MDP,
    rank: int,
    rounds: int,
    *,
    variance: float = 1e-2,
    samples: int = 64,
    sweeps: int = 20,
    seed: int = 0,
) -> list[Round]:
    """Algorithm 2 with exact expectations.

    A round backs up Q in the span of φ, sets ν = N(θ̂, σ_rep² I), and runs Algorithm 1 on TQ_θ for
    θ ~ ν. Features are scaled to norm at most one, and rotated so that the axes of each round
    follow the axes of the previous round.
    """
    if not 1 <= rank <= min(samples, mdp.reward.size):
        raise ValueError(
            f"rank must lie in [1, {min(samples, mdp.reward.size)}], "
            f"the smaller of samples and state-action pairs, got {rank}"
        )
    if not variance > 0:
        raise ValueError(
            f"variance must be positive, got {variance}: "
            "without spread there is one θ and nothing to be closed under"
        )
    rng = np.random.default_rng(seed)
    optimal = optimal_q(mdp)
    phi = _into_unit_ball(rng.normal(size=(mdp.reward.size, rank)))
    theta = np.zeros(rank)
    history = []
    for _ in range(rounds):
        theta = _project(phi, _backups(mdp, (phi @ theta)[:, None])[:, 0])
        drawn = theta + np.sqrt(variance) * rng.normal(size=(samples, rank))
        error = float(np.abs((phi @ theta).reshape(mdp.reward.shape) - optimal).max())
        history.append(Round(phi.reshape(*mdp.reward.shape, rank), theta, drawn, error))
        found, _, _ = power_method(
            _backups(mdp, phi @ drawn.T), rank, sweeps, seed=int(rng.integers(2**31))
        )
        found = _into_unit_ball(found)
        left, _, right = np.linalg.svd(found.T @ phi)
        next_phi = found @ left @ right
        theta = _project(next_phi, phi @ theta)
        phi = next_phi
    return history


def random_features(key: Any, mdp: MDP, rank: int) -> FloatArray:
    """Gaussian features, (S, A, rank), of norm at most one."""
    return _into_unit_ball(generator(key).normal(size=(*mdp.reward.shape, rank)))


def laplacian_features(mdp: MDP, rank: int) -> FloatArray:
    """Proto-value functions of the uniform policy, of norm at most one.

    They are the smoothest eigenvectors of the graph Laplacian over (s, a).
    """
    size = mdp.reward.size
    if not 1 <= rank <= size:
        raise ValueError(
            f"rank must lie in [1, {size}], the number of state-action pairs, got {rank}"
        )
    step = np.repeat(mdp.transition.reshape(size, -1), mdp.num_actions, axis=1) / mdp.num_actions
    adjacency = (step + step.T) / 2
    degree = np.sqrt(adjacency.sum(axis=1))
    _, vectors = np.linalg.eigh(adjacency / degree[:, None] / degree)
    return _into_unit_ball(vectors[:, ::-1][:, :rank]).reshape(*mdp.reward.shape, rank)


def _sample_functions(
    rng: np.random.Generator, features: FloatArray, samples: int, bound: float
) -> FloatArray:
    """Random functions in the span, (S·A, samples); maxima uniform in [0, D], the first is zero."""
    basis = _basis(features)
    functions = basis @ rng.normal(size=(basis.shape[1], samples))
    largest = np.abs(functions).max(axis=0)
    heights = bound * rng.uniform(size=samples)
    heights[0] = 0
    return functions * (heights / np.where(largest > 0, largest, 1))


def _into_unit_ball(features: FloatArray) -> FloatArray:
    """Scaled so that the largest feature has norm one; zero features stay zero."""
    largest = np.sqrt((features**2).sum(axis=-1).max())
    return features / (largest or 1.0)


def _basis(features: FloatArray) -> FloatArray:
    left, values, _ = np.linalg.svd(features, full_matrices=False)
    return left[:, values > 1e-10 * values[0]]


def _backups(mdp: MDP, functions: FloatArray, steps: int = 1) -> FloatArray:
    """T^hQ of functions given as columns, (S·A, n)."""
    q = functions.reshape(*mdp.reward.shape, -1)
    for _ in range(steps):
        q = backup_of(mdp, q)
    return q.reshape(functions.shape)


def _project(features: FloatArray, function: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.lstsq(features, function, rcond=None)[0])
