"""The definitions as plain sums in NumPy float64: slow, simple, without code from the library.

The loops are on purpose. `np.linalg` appears only where the definition itself is a linear-algebra
statement (an inverse, an eigenvalue), and `scipy.optimize.linprog` only for the Chebyshev fit.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Array = NDArray[np.float64]


def f64(x: object) -> Array:
    """`x` as NumPy float64, values unchanged."""
    return np.asarray(x, dtype=np.float64)


def dot(x: Array, y: Array) -> float:
    """Σ_i x_i y_i."""
    return float(sum(x[i] * y[i] for i in range(len(x))))


def quadratic(x: Array, matrix: Array) -> float:
    """xᵀ A x."""
    return float(sum(x[i] * matrix[i, j] * x[j] for i in range(len(x)) for j in range(len(x))))


# --- objective ------------------------------------------------------------------------------------


def spectral_loss(
    phi: Array, theta_tilde: Array, targets: Array, feature_cov: Array, param_cov: Array
) -> float:
    """L1 + L2 with L1 = E[φᵀΛ2φ] − 2E[TQ φᵀθ̃] and L2 = E[θ̃ᵀΛ1θ̃] − 2E[TQ θ̃ᵀφ].

    Λ1 is the covariance of the features, Λ2 of the parameters.
    """
    rows, samples = targets.shape
    cross = 0.0
    for b in range(rows):
        for m in range(samples):
            cross += targets[b, m] * dot(phi[b], theta_tilde[m]) / (rows * samples)
    loss_1 = sum(quadratic(phi[b], param_cov) for b in range(rows)) / rows - 2 * cross
    loss_2 = (
        sum(quadratic(theta_tilde[m], feature_cov) for m in range(samples)) / samples - 2 * cross
    )
    return loss_1 + loss_2


def spectral_gradients(
    phi: Array, theta_tilde: Array, targets: Array, feature_cov: Array, param_cov: Array
) -> tuple[Array, Array]:
    """∂L1/∂φ with θ̃ fixed, and ∂L2/∂θ̃ with φ fixed; both Λ symmetric and constant."""
    rows, samples = targets.shape
    d = phi.shape[1]
    grad_phi, grad_theta = np.zeros((rows, d)), np.zeros((samples, d))
    for b in range(rows):
        for i in range(d):
            grad_phi[b, i] = 2 / rows * dot(param_cov[i], phi[b])
            for m in range(samples):
                grad_phi[b, i] -= 2 / (rows * samples) * targets[b, m] * theta_tilde[m, i]
    for m in range(samples):
        for i in range(d):
            grad_theta[m, i] = 2 / samples * dot(feature_cov[i], theta_tilde[m])
            for b in range(rows):
                grad_theta[m, i] -= 2 / (rows * samples) * targets[b, m] * phi[b, i]
    return grad_phi, grad_theta


def bellman_mse(phi: Array, theta_tilde: Array, targets: Array) -> float:
    """Mean of (TQ − φᵀθ̃)² over every pair of a row and a sample."""
    rows, samples = targets.shape
    total = 0.0
    for b in range(rows):
        for m in range(samples):
            total += (targets[b, m] - dot(phi[b], theta_tilde[m])) ** 2
    return total / (rows * samples)


def bellman_mse_gradients(phi: Array, theta_tilde: Array, targets: Array) -> tuple[Array, Array]:
    """∂/∂φ and ∂/∂θ̃ of the mean squared error, targets constant."""
    rows, samples = targets.shape
    grad_phi, grad_theta = np.zeros_like(phi), np.zeros_like(theta_tilde)
    for b in range(rows):
        for m in range(samples):
            residual = dot(phi[b], theta_tilde[m]) - targets[b, m]
            grad_phi[b] += 2 / (rows * samples) * residual * theta_tilde[m]
            grad_theta[m] += 2 / (rows * samples) * residual * phi[b]
    return grad_phi, grad_theta


def orthogonality_loss(x: Array) -> float:
    """Mean over ordered pairs of distinct samples n ≠ m of Σ_{i≠j} x_ni x_nj x_mi x_mj."""
    n_samples, d = x.shape
    total = 0.0
    for n in range(n_samples):
        for m in range(n_samples):
            if n == m:
                continue
            for i in range(d):
                for j in range(d):
                    if i != j:
                        total += x[n, i] * x[n, j] * x[m, i] * x[m, j]
    return total / (n_samples * (n_samples - 1))


def update_covariance(cov: Array, x: Array, alpha: float) -> Array:
    """(1 − α) Λ + α (1/N) Σ_n x_n x_nᵀ."""
    n_samples, d = x.shape
    new = np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            moment = sum(x[n, i] * x[n, j] for n in range(n_samples)) / n_samples
            new[i, j] = (1 - alpha) * cov[i, j] + alpha * moment
    return new


# --- operators ------------------------------------------------------------------------------------


def one_step(reward: float, discount: float, q_next: Array) -> float:
    """r + γ max_a q(s', a)."""
    return float(reward + discount * max(q_next))


def n_step(rewards: Array, discounts: Array, q_next: Array) -> float:
    """Σ_k (Π_{j<k} γ_j) r_k + (Π_j γ_j) max_a q(s_n, a)."""
    total, product = 0.0, 1.0
    for k in range(len(rewards)):
        total += product * rewards[k]
        product *= discounts[k]
    return float(total + product * max(q_next))


def retrace(
    q: Array,
    actions: NDArray[np.integer],
    rewards: Array,
    discounts: Array,
    target_policy: Array,
    behaviour_prob: Array,
    lambda_: float,
) -> Array:
    """Q(s_t, a_t) + Σ_{k≥t} (Π_{j=t}^{k−1} γ_j)(Π_{j=t+1}^{k} c_j) δ_k, c_j = λ min(1, π_j/μ_j).

    δ_k = r_k + γ_k Σ_a π(a|s_{k+1}) Q(s_{k+1}, a) − Q(s_k, a_k). Each product is written out for
    each (t, k).
    """
    steps = len(rewards)
    returns = np.zeros(steps)
    for t in range(steps):
        returns[t] = q[t, actions[t]]
        for k in range(t, steps):
            discount, trace = 1.0, 1.0
            for j in range(t, k):
                discount *= discounts[j]
            for j in range(t + 1, k + 1):
                trace *= lambda_ * min(1.0, target_policy[j, actions[j]] / behaviour_prob[j])
            value_next = dot(target_policy[k + 1], q[k + 1])
            delta = rewards[k] + discounts[k] * value_next - q[k, actions[k]]
            returns[t] += discount * trace * delta
    return returns


def signed_hyperbolic(x: float, epsilon: float = 1e-3) -> float:
    """f(x) = sign(x)(√(|x| + 1) − 1) + εx."""
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + epsilon * x)


def signed_parabolic(y: float, epsilon: float = 1e-3) -> float:
    """f⁻¹ by bisection: f increases, is odd, and f(x) > y once εx > y."""
    low, high = 0.0, abs(y) / epsilon + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if signed_hyperbolic(middle, epsilon) < abs(y):
            low = middle
        else:
            high = middle
    return float(np.sign(y) * (low + high) / 2)


def transformed_retrace(
    q: Array,
    actions: NDArray[np.integer],
    rewards: Array,
    discounts: Array,
    target_policy: Array,
    behaviour_prob: Array,
    lambda_: float,
    epsilon: float = 1e-3,
) -> Array:
    """f(Retrace(f⁻¹(Q)))."""
    raw = np.array([[signed_parabolic(value, epsilon) for value in row] for row in q])
    returns = retrace(raw, actions, rewards, discounts, target_policy, behaviour_prob, lambda_)
    return np.array([signed_hyperbolic(value, epsilon) for value in returns])


# --- posterior ------------------------------------------------------------------------------------


def precision(phi: Array, ridge: float) -> Array:
    """Σ = λI + Σ_n φ_n φ_nᵀ."""
    n_samples, d = phi.shape
    sigma = np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            sigma[i, j] = sum(phi[n, i] * phi[n, j] for n in range(n_samples)) + (
                ridge if i == j else 0.0
            )
    return sigma


def exploration_scale(sigma: Array, discount: float) -> float:
    """λ_min(Σ) / (d (1 − γ))."""
    return float(min(np.linalg.eigvalsh(sigma)) / (len(sigma) * (1 - discount)))


def thompson_parameters(z: Array, mean: Array, factor: Array, scale: float) -> Array:
    """μ + √scale · L⁻ᵀ z, the inverse formed densely."""
    inverse = np.linalg.inv(factor.T)
    return np.array([mean[i] + np.sqrt(scale) * dot(inverse[i], z) for i in range(len(mean))])


def ucb_bonus(phi: Array, sigma: Array, scale: float) -> float:
    """√(scale · φᵀΣ⁻¹φ) for one φ."""
    return float(np.sqrt(scale * quadratic(phi, np.linalg.inv(sigma))))


def max_uncertainty(feature_means: Array, sigma: Array, scale: float) -> float:
    """max over policies of √scale ‖φ_π‖ in Σ⁻¹."""
    return max(ucb_bonus(phi, sigma, scale) for phi in feature_means)


# --- tabular --------------------------------------------------------------------------------------


def bellman_backup(reward: Array, transition: Array, discount: float, q: Array) -> Array:
    """r(s,a) + γ Σ_s' P(s'|s,a) max_a' q(s',a')."""
    states, actions = reward.shape
    backup = np.zeros((states, actions))
    for s in range(states):
        for a in range(actions):
            expected = sum(transition[s, a, s_next] * max(q[s_next]) for s_next in range(states))
            backup[s, a] = reward[s, a] + discount * expected
    return backup


def h_step_backup(reward: Array, transition: Array, discount: float, q: Array, h: int) -> Array:
    """T^h q = T(T^{h−1} q), T⁰ q = q."""
    if h == 0:
        return q
    return bellman_backup(
        reward, transition, discount, h_step_backup(reward, transition, discount, q, h - 1)
    )


def q_values(features: Array, theta: Array) -> Array:
    """Q_θ(s,a) = φ(s,a)ᵀθ."""
    states, actions, _ = features.shape
    return np.array([[dot(features[s, a], theta) for a in range(actions)] for s in range(states)])


def chebyshev_fit(features: Array, values: Array, bound: float) -> tuple[Array, float]:
    """argmin and min of max_{s,a} |values − φᵀθ̃| over θ̃ with max_{s,a} |φᵀθ̃| ≤ bound.

    Variables (θ̃, e), minimise e: ±(φᵀθ̃ − value) ≤ e and ±φᵀθ̃ ≤ bound. The error is then recomputed
    from θ̃, so that the returned θ̃ attains the error, whatever the solver reports.
    """
    states, actions, d = features.shape
    rows, limits = [], []
    for s in range(states):
        for a in range(actions):
            for sign in (1.0, -1.0):
                rows += [[*(sign * features[s, a]), -1.0], [*(sign * features[s, a]), 0.0]]
                limits += [sign * values[s, a], bound]
    solution = linprog(
        [0.0] * d + [1.0], A_ub=rows, b_ub=limits, bounds=[(None, None)] * d + [(0, None)]
    )
    assert solution.success, solution.message
    theta = f64(solution.x[:d])
    return theta, float(np.max(np.abs(values - q_values(features, theta))))


def inner_fit(
    reward: Array,
    transition: Array,
    discount: float,
    features: Array,
    theta: Array,
    bound: float,
    h: int = 1,
) -> float:
    """inf over θ̃ in B_φ of ‖T^h Q_θ − Q_θ̃‖_∞: the inner infimum of the IBE, for one θ."""
    backup = h_step_backup(reward, transition, discount, q_values(features, theta), h)
    return chebyshev_fit(features, backup, bound)[1]


def onto_boundary(features: Array, theta: Array, bound: float) -> Array:
    """θ scaled to the edge of B_φ: max_{s,a} |φᵀθ| = bound."""
    return theta * bound / np.max(np.abs(q_values(features, theta)))
