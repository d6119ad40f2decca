"""The inherent Bellman error: how far a Bellman backup can leave a space of linear Q-functions."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from spectral_bellman._arrays import as_float64
from spectral_bellman.tabular.mdp import MDP, FloatArray, backup_of


def value_bound(mdp: MDP) -> float:
    """D = max|r| / (1 − γ), the largest value any policy can have."""
    return float(np.abs(mdp.reward).max()) / (1 - mdp.discount)


def best_fit(features: ArrayLike, target: ArrayLike, bound: float) -> tuple[FloatArray, float]:
    """The inner infimum of definition 2: min over θ̃ in B_φ of ‖target − φᵀθ̃‖_∞.

    It is a linear program, solved exactly.

    Args:
      features: φ, shape (S, A, d).
      target: the function to fit, for example TQ_θ; shape (S, A).
      bound: D in B_φ = {θ : |φ(s, a)ᵀθ| ≤ D for all s, a}.

    Returns:
      θ̃, shape (d,), and the error.
    """
    phi = as_float64(features, "features", "S A d")
    goal = as_float64(target, "target", "S A")
    if phi.shape[:2] != goal.shape:
        raise ValueError(
            f"features have shape {phi.shape} and target {goal.shape}; both start with (S, A)"
        )
    space = _Space(phi, bound)
    coefficients, error, _ = space.fit(goal.ravel())
    return space.parameters(coefficients), error


def inherent_bellman_error(
    mdp: MDP,
    features: ArrayLike,
    bound: float | None = None,
    *,
    steps: int = 1,
    starts: int = 16,
    iterations: int = 20,
    seed: int = 0,
) -> float:
    """A lower bound, usually tight, of the inherent Bellman error I_φ^h of T^h.

    For h = 1 it is definition 2 of the paper, for more steps the error of appendix D.1.

        I_φ^h = sup over θ in B_φ of inf over θ̃ in B_φ of ‖T^hQ_θ − Q_θ̃‖_∞

    The infimum is exact (``best_fit``). The supremum is over a function that is neither convex nor
    concave, so it is searched, from θ = 0 and random vertices of B_φ. Each iteration takes the dual
    solution y of the fit; the error grows at least like yᵀT^hQ_θ. The iteration maximises a lower
    bound of yᵀT^hQ_θ, exact at the current θ, by a linear program. It keeps the h maxima over
    actions exactly where the weight of a state is negative, and follows the current greedy actions
    elsewhere. No iteration therefore decreases the error. Every θ of the search lies in B_φ, so its
    error is at most I_φ^h.

    Args:
      mdp: the MDP.
      features: φ, shape (S, A, d).
      bound: D of B_φ; max|r| / (1 − γ) if not given.
      steps: h, the number of Bellman backups in T^h.
      starts: random starts in addition to θ = 0; more starts can only raise the result.
      iterations: the largest number of fits for each start; most starts stop after a few.
      seed: the seed of the starts.
    """
    phi = as_float64(features, "features", "S A d")
    if phi.shape[:2] != mdp.reward.shape:
        raise ValueError(
            f"features have shape {phi.shape}, but the MDP has (S, A) = {mdp.reward.shape}"
        )
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}; it is h, the backups in T^h")
    if starts < 0 or iterations < 1:
        raise ValueError(
            f"starts must be at least 0 and iterations at least 1, got {starts} and {iterations}"
        )
    space = _Space(phi, value_bound(mdp) if bound is None else bound)
    return max(
        _ascend(mdp, space, point, steps, iterations)[0]
        for point in _starts(mdp, space, starts, seed)
    )


def _starts(mdp: MDP, space: "_Space", starts: int, seed: int) -> list[FloatArray]:
    """θ = 0 and random vertices of B_φ, as points of the space."""
    rng = np.random.default_rng(seed)
    points = [np.zeros(space.dim)]
    if space.dim:
        points += [
            space.vertex(space.basis.T @ rng.normal(size=mdp.reward.size)) for _ in range(starts)
        ]
    return points


def _ascend(
    mdp: MDP, space: "_Space", point: FloatArray, steps: int, iterations: int
) -> tuple[float, FloatArray]:
    """The largest error that the search finds from one start, and the point that has it."""
    best, best_point = 0.0, point
    for iteration in range(iterations):
        backups = [(space.basis @ point).reshape(mdp.reward.shape)]
        for _ in range(steps):
            backups.append(backup_of(mdp, backups[-1]))
        _, error, dual = space.fit(backups.pop().ravel())
        if iteration and error <= best * (1 + 1e-9) + 1e-12 * space.bound:
            break
        best, best_point = error, point
        # d(error)/dV(s') ≥ weight(s') with V(s') = max_a T^{h−1}Q(s', a).
        weight = mdp.discount * dual @ mdp.transition.reshape(-1, mdp.num_states)
        if not space.dim or not np.abs(weight).max() > 0:
            break
        point = space.ascend(mdp, weight, backups)
    return best, best_point


class _Space:
    """The functions φᵀθ with |φᵀθ| ≤ D, in an orthonormal basis.

    The basis keeps the linear programs well conditioned when the features are badly scaled.
    """

    def __init__(self, features: FloatArray, bound: float) -> None:
        if not (np.isfinite(bound) and bound >= 0):
            raise ValueError(
                f"bound must be finite and not negative, got {bound}; it is the largest |Q| allowed"
            )
        self.bound = float(bound)
        self.num_actions = features.shape[1]
        matrix = features.reshape(-1, features.shape[-1])
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        keep = values > 1e-10 * values[:1].sum()
        self.basis: FloatArray = left[:, keep]
        self._to_parameters = (
            (right[keep].T / values[keep]) if keep.any() else np.zeros((features.shape[-1], 0))
        )
        self.dim = self.basis.shape[1]

    def parameters(self, coefficients: FloatArray) -> FloatArray:
        """θ of a point of the space."""
        return np.asarray(self._to_parameters @ coefficients)

    def fit(self, target: FloatArray) -> tuple[FloatArray, float, FloatArray]:
        """The nearest point in the maximum norm, its distance, and d(distance)/d(target)."""
        scale = max(self.bound, float(np.abs(target).max()))
        if scale == 0:
            return np.zeros(self.dim), 0.0, np.zeros_like(target)
        size, ones = len(target), np.ones((len(target), 1))
        rows = np.block(
            [
                [self.basis, -ones],
                [-self.basis, -ones],
                [self.basis, 0 * ones],
                [-self.basis, 0 * ones],
            ]
        )
        limits = np.concatenate([target, -target, np.full(2 * size, self.bound)]) / scale
        cost = np.append(np.zeros(self.dim), 1.0)
        result = _solve(cost, rows, limits, [(None, None)] * self.dim + [(0.0, None)])
        dual = result.ineqlin.marginals[:size] - result.ineqlin.marginals[size : 2 * size]
        point = scale * result.x[:-1]
        return point, float(np.abs(target - self.basis @ point).max()), dual

    def vertex(self, direction: FloatArray) -> FloatArray:
        """The point of B_φ that is furthest in a direction."""
        rows = np.concatenate([self.basis, -self.basis])
        result = _solve(-direction, rows, np.ones(len(rows)), [(None, None)] * self.dim)
        return self.bound * np.asarray(result.x)

    def ascend(self, mdp: MDP, weight: FloatArray, backups: list[FloatArray]) -> FloatArray:
        """The point that maximises a lower bound of Σ_s weight(s) V_{h−1}(s), exact at Q.

        V_k(s) = max_a T^kQ(s, a), and ``backups`` are Q, TQ, …, T^{h−1}Q at the current point.
        Where the weight is positive, V_{h−1} is at least the return of the current greedy actions,
        which is linear in Q. Where the weight is negative, V_{h−1} is kept exactly.
        """
        actions = self.num_actions
        by_state = self.basis.reshape(-1, actions, self.dim)
        states = np.arange(len(by_state))
        positive = np.maximum(weight, 0)
        for q in backups[:0:-1]:
            positive = mdp.discount * positive @ mdp.transition[states, q.argmax(axis=1)]
        kept = by_state[states, backups[0].argmax(axis=1)]
        # The states whose V_k the kept V_{h−1} depend on, for k = 0, …, h − 1.
        needed = [np.flatnonzero(weight < 0)]
        for _ in backups[1:]:
            needed.insert(0, np.flatnonzero(mdp.transition[needed[0]].any(axis=(0, 1))))
        # A variable u_k(s) ≥ T^kQ(s, a) for all a stands for V_k(s); the maximisation pushes
        # u_{h−1}, and through it all u_k, down to V_k. Q is in units of D, and u_k in a unit that
        # also holds the rewards.
        largest = float(np.abs(mdp.reward).max()) if len(backups) > 1 else 0.0
        unit = max(self.bound, largest)
        ends = self.dim + np.cumsum([0, *map(len, needed)])
        size = len(self.basis)
        rows = np.zeros((2 * size + actions * (ends[-1] - self.dim), ends[-1]))
        rows[:size, : self.dim] = self.basis
        rows[size : 2 * size, : self.dim] = -self.basis
        limits = np.concatenate([np.ones(2 * size), np.zeros(len(rows) - 2 * size)])
        first = 2 * size
        for k, here in enumerate(needed):
            block = slice(first, first + actions * len(here))
            first = block.stop
            if k == 0:
                rows[block, : self.dim] = self.bound / unit * by_state[here].reshape(-1, self.dim)
            else:
                step = mdp.transition[here][:, :, needed[k - 1]]
                rows[block, ends[k - 1] : ends[k]] = mdp.discount * step.reshape(
                    actions * len(here), len(needed[k - 1])
                )
                limits[block] = -mdp.reward[here].ravel() / unit
            rows[block, ends[k] : ends[k + 1]] = np.repeat(-np.eye(len(here)), actions, axis=0)
        cost = np.zeros(ends[-1])
        cost[: self.dim] = -self.bound / unit * (positive @ kept)
        cost[ends[-2] :] = -weight[needed[-1]]
        cost /= np.abs(weight).max()
        result = _solve(cost, rows, limits, [(None, None)] * len(cost))
        return self.bound * np.asarray(result.x[: self.dim])


def _solve(
    cost: FloatArray,
    rows: FloatArray,
    limits: FloatArray,
    bounds: list[tuple[float | None, float | None]],
) -> Any:
    tolerance = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    result = linprog(cost, A_ub=rows, b_ub=limits, bounds=bounds, method="highs", options=tolerance)
    if result.status != 0:
        raise RuntimeError(
            f"a linear program of {rows.shape[0]} rows and {rows.shape[1]} columns failed: "
            f"{result.message}"
        )
    return result
