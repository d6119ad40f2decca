"""The inherent Bellman error: how far a Bellman backup can leave a space of linear Q-functions."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from spectral_bellman._arrays import as_float64
from spectral_bellman.tabular.mdp import MDP, FloatArray, bellman_backup


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
    starts: int = 16,
    steps: int = 20,
    seed: int = 0,
) -> float:
    """A lower bound, usually tight, of the inherent Bellman error I_φ (definition 2).

        I_φ = sup over θ in B_φ of inf over θ̃ in B_φ of ‖TQ_θ − Q_θ̃‖_∞

    The infimum is exact (``best_fit``). The supremum is over a function that is neither convex nor
    concave, so it is searched, from θ = 0 and random vertices of B_φ. Each step takes the dual
    solution y of the fit; the error grows at least like yᵀTQ_θ. The step maximises yᵀTQ_θ by a
    linear program. States with a negative weight keep their maximum over actions exactly; the other
    states keep their current greedy action. No step therefore decreases the error. Every θ of the
    search lies in B_φ, so its error is at most I_φ.

    Args:
      mdp: the MDP.
      features: φ, shape (S, A, d).
      bound: D of B_φ; max|r| / (1 − γ) if not given.
      starts: random starts in addition to θ = 0; more starts can only raise the result.
      steps: the largest number of linear programs for each start; most starts stop after a few.
      seed: the seed of the starts.
    """
    phi = as_float64(features, "features", "S A d")
    if phi.shape[:2] != mdp.reward.shape:
        raise ValueError(
            f"features have shape {phi.shape}, but the MDP has (S, A) = {mdp.reward.shape}"
        )
    if starts < 0 or steps < 1:
        raise ValueError(
            f"starts must be at least 0 and steps at least 1, got {starts} and {steps}"
        )
    bound = value_bound(mdp) if bound is None else bound
    space = _Space(phi, bound)
    rng = np.random.default_rng(seed)
    points = [np.zeros(space.dim)]
    if space.dim:
        points += [
            space.vertex(space.basis.T @ rng.normal(size=mdp.reward.size)) for _ in range(starts)
        ]
    return max(_ascend(mdp, space, point, steps) for point in points)


def _ascend(mdp: MDP, space: "_Space", point: FloatArray, steps: int) -> float:
    best = 0.0
    for step in range(steps):
        q = (space.basis @ point).reshape(mdp.reward.shape)
        _, error, dual = space.fit(bellman_backup(mdp, q).ravel())
        if step and error <= best * (1 + 1e-9) + 1e-12 * space.bound:
            break
        best = error
        # d(error)/dV(s') ≥ weight(s') with V(s') = max_a Q(s', a).
        weight = mdp.discount * dual @ mdp.transition.reshape(-1, mdp.num_states)
        if not space.dim or not np.abs(weight).max() > 0:
            break
        point = space.ascend(weight, q)
    return best


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

    def ascend(self, weight: FloatArray, q: FloatArray) -> FloatArray:
        """The point that maximises Σ_s weight(s) V(s) with V(s) = max_a Q(s, a).

        V(s) is linearised at q where the weight is positive.
        """
        actions = self.num_actions
        by_state = self.basis.reshape(-1, actions, self.dim)
        states = np.arange(len(by_state))
        kept = by_state[states, q.argmax(axis=1)]
        negative = np.flatnonzero(weight < 0)
        # A variable u(s) ≥ Q(s, a) for all a stands for V(s) where the weight is negative; the
        # maximisation pushes u(s) down to V(s).
        above = np.repeat(-np.eye(len(negative)), actions, axis=0)
        rows = np.block(
            [
                [self.basis, np.zeros((len(self.basis), len(negative)))],
                [-self.basis, np.zeros((len(self.basis), len(negative)))],
                [by_state[negative].reshape(-1, self.dim), above],
            ]
        )
        limits = np.concatenate([np.ones(2 * len(self.basis)), np.zeros(len(above))])
        positive = np.maximum(weight, 0)
        cost = -np.concatenate([positive @ kept, weight[negative]]) / np.abs(weight).max()
        result = _solve(cost, rows, limits, [(None, None)] * (self.dim + len(negative)))
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
