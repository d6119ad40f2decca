"""Bellman operators on sampled data: one-step, n-step, Retrace and its rescaled form.

Each function takes one sequence and no batch axis; put ``jax.vmap`` around it. The discount carries
termination: it is zero where an episode ended and γ elsewhere. The ``…_targets`` functions take
features and M parameters θ at once, and return the grid that the losses in ``objective`` take. All
θ share the data; the data is never copied for each θ.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from spectral_bellman._arrays import Scalar, checked, known, product


@checked
def one_step(reward: Scalar, discount: Scalar, q_next: Float[Array, " A"]) -> Float[Array, ""]:
    """The optimal Bellman operator on one transition (section 2): TQ = r_t + γ_t max_a Q(s_t, a).

    Args:
      reward: r_t, the reward of the transition s_{t-1}, a_{t-1} → s_t.
      discount: γ_t, zero if s_t is terminal.
      q_next: Q(s_t, ·).
    """
    return reward + discount * jnp.max(q_next)


@checked
def n_step(
    rewards: Float[Array, " n"], discounts: Float[Array, " n"], q_next: Float[Array, " A"]
) -> Float[Array, ""]:
    """The n-step target (appendix D.2): r_1 + γ_1 (r_2 + γ_2 (… (r_n + γ_n max_a Q(s_n, a)))).

    Args:
      rewards: r_1 … r_n.
      discounts: γ_1 … γ_n; a zero ends the sum there.
      q_next: Q(s_n, ·).
    """
    before = jnp.concatenate([jnp.ones(1, discounts.dtype), jnp.cumprod(discounts)])
    return jnp.sum(before[:-1] * rewards) + before[-1] * jnp.max(q_next)


@checked
def retrace(
    q: Float[Array, "T_plus_1 A"],
    actions: Integer[Array, " T_plus_1"],
    rewards: Float[Array, " T"],
    discounts: Float[Array, " T"],
    target_policy: Float[Array, "T_plus_1 A"],
    behaviour_prob: Float[Array, " T_plus_1"],
    lambda_: Scalar,
) -> Float[Array, " T"]:
    """Retrace(λ) targets for the steps 0 … T-1 of a sequence (appendix D.2, Munos et al. 2016).

        G_t = r_{t+1} + γ_{t+1} (E_π Q(s_{t+1}, ·) + c_{t+1} (G_{t+1} − Q(s_{t+1}, a_{t+1})))
        c = λ min(1, π(a|s) / μ(a|s))

    This equals Q(s_t, a_t) + Σ_{k≥t} γ^{k−t} (Π_{t<j≤k} c_j) δ_k. The last step bootstraps from
    E_π Q(s_T, ·).

    Args:
      q: Q(s_t, ·), t = 0 … T.
      actions: a_t, t = 0 … T; a_T is not used.
      rewards: r_{t+1}, t = 0 … T-1.
      discounts: γ_{t+1}, t = 0 … T-1; zero where s_{t+1} is terminal.
      target_policy: π(·|s_t), t = 0 … T; the first is not used.
      behaviour_prob: μ(a_t|s_t), t = 0 … T; the first and the last are not used. Infinity stops the
        trace. Put infinity at the last observation of a truncated episode and at padding, so that
        no earlier step reads data past that point. The targets of the steps with infinity have no
        meaning, since no action was taken there: leave them out of the loss.
      lambda_: λ, the paper's β.
    """
    if len(rewards) == 0:
        raise ValueError(
            f"retrace: the sequence is empty (q has shape {q.shape}); "
            "it needs at least one transition"
        )
    # Slicing first keeps the values in unused entries, NaN included, out of the sums.
    q_next, pi_next = q[1:], target_policy[1:]
    a_next, mu_next = actions[1:-1, None], behaviour_prob[1:-1]
    value = jnp.sum(pi_next * q_next, axis=-1)
    q_taken = jnp.take_along_axis(q_next[:-1], a_next, axis=-1)[:, 0]
    pi_taken = jnp.take_along_axis(pi_next[:-1], a_next, axis=-1)[:, 0]
    trace = lambda_ * jnp.minimum(1, pi_taken / jnp.maximum(mu_next, jnp.finfo(q.dtype).tiny))
    # G_t = offset_t + slope_t G_{t+1} is a linear recurrence; the associative scan solves it in
    # log T steps. Where the trace is stopped, G_{t+1} is left out rather than multiplied by zero,
    # since G_{t+1} may be NaN.
    slope = jnp.append(discounts[:-1] * trace, jnp.zeros((), q.dtype))
    correction = jnp.append(discounts[:-1] * trace * q_taken, jnp.zeros((), q.dtype))
    offset = rewards + discounts * value - correction
    stopped = jnp.append(jnp.isinf(mu_next), True)

    def compose(
        later: tuple[Array, Array, Array], earlier: tuple[Array, Array, Array]
    ) -> tuple[Array, Array, Array]:
        behind = jnp.where(earlier[2], 0, later[1])
        return (
            earlier[0] * jnp.where(earlier[2], 0, later[0]),
            earlier[0] * behind + earlier[1],
            earlier[2] | later[2],
        )

    return jax.lax.associative_scan(compose, (slope, offset, stopped), reverse=True)[1]


@checked
def transformed_retrace(
    q: Float[Array, "T_plus_1 A"],
    actions: Integer[Array, " T_plus_1"],
    rewards: Float[Array, " T"],
    discounts: Float[Array, " T"],
    target_policy: Float[Array, "T_plus_1 A"],
    behaviour_prob: Float[Array, " T_plus_1"],
    lambda_: Scalar,
    epsilon: Scalar = 1e-3,
) -> Float[Array, " T"]:
    """Retrace on rescaled values (appendix D.2): f(Retrace(f⁻¹(Q))), f = ``signed_hyperbolic``.

    The arguments match ``retrace``, with the ε of f at the end.
    """
    plain = signed_parabolic(q, epsilon)
    targets = retrace(plain, actions, rewards, discounts, target_policy, behaviour_prob, lambda_)
    return signed_hyperbolic(targets, epsilon)


@checked
def signed_hyperbolic(x: Float[Array, "..."], epsilon: Scalar = 1e-3) -> Float[Array, "..."]:
    """f(x) = sign(x) (√(|x| + 1) − 1) + εx, which compresses returns of any scale.

    See Pohlen et al. (2018).
    """
    # √(|x|+1) − 1 = |x| / (√(|x|+1) + 1), which loses no digits near zero.
    return x / (jnp.sqrt(jnp.abs(x) + 1) + 1) + epsilon * x


@checked
def signed_parabolic(x: Float[Array, "..."], epsilon: Scalar = 1e-3) -> Float[Array, "..."]:
    """The inverse of ``signed_hyperbolic``.

    f⁻¹(x) = sign(x) (((√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε)² − 1)
    """
    # With y = f⁻¹(x) and s = √(|y|+1): εs² + s = |x| + 1 + ε and (s − 1)(1 + ε(s + 1)) = |x|. This
    # form never subtracts nearly equal numbers, and it allows ε = 0.
    c = jnp.abs(x) + 1 + epsilon
    s = 2 * c / (1 + jnp.sqrt(1 + 4 * epsilon * c))
    return x * (s + 1) / (1 + epsilon * (s + 1))


@checked
def epsilon_greedy(q: Float[Array, "... A"], epsilon: Scalar = 0.0) -> Float[Array, "... A"]:
    """π(a|s): 1 − ε on the first greedy action, and ε spread evenly over all."""
    num_actions = q.shape[-1]
    greedy = jax.nn.one_hot(jnp.argmax(q, axis=-1), num_actions, dtype=q.dtype)
    return (1 - epsilon) * greedy + epsilon / num_actions


@checked
def one_step_targets(
    rewards: Float[Array, " B"],
    discounts: Float[Array, " B"],
    phi_next: Float[Array, "B A d"],
    theta: Float[Array, "M d"],
    chooser: Float[Array, "M B A"] | None = None,
    transform: Scalar | None = None,
) -> Float[Array, "B M"]:
    """The grid TQ_θ(s, a) = r + γ max_a' φ(s', a')ᵀθ for every transition and every θ.

    The maximum over a' is taken for each θ. For n steps give the discounted sum of their rewards
    and the product of their discounts.

    Args:
      rewards: r of B transitions.
      discounts: γ of the same transitions, zero at terminals.
      phi_next: φ⁻(s', ·), from the target network.
      theta: M parameters from ν(θ).
      chooser: values at s' whose best action takes the place of the maximum (double Q-learning).
      transform: the ε of ``signed_hyperbolic`` for f(r + γ f⁻¹(Q)), or None for plain values.
    """
    values = _bootstrap_values(_q_grid(phi_next, theta), chooser).T
    if transform is None:
        return rewards[:, None] + discounts[:, None] * values
    plain = rewards[:, None] + discounts[:, None] * signed_parabolic(values, transform)
    return signed_hyperbolic(plain, transform)


@checked
def n_step_targets(
    rewards: Float[Array, " T"],
    discounts: Float[Array, " T"],
    phi_next: Float[Array, "T A d"],
    theta: Float[Array, "M d"],
    n: int,
    chooser: Float[Array, "M T A"] | None = None,
    transform: Scalar | None = None,
) -> Float[Array, "T M"]:
    """The n-step targets of every step of a sequence, for every θ.

    Near the end of the sequence, targets use the steps that remain. Episodes may terminate inside
    the sequence, with a discount of zero. Episodes must not be truncated inside it: end the
    sequence at the truncation, or use ``retrace_targets``.

    Args:
      rewards: r_{t+1}, t = 0 … T-1.
      discounts: γ_{t+1}; a zero ends the sum there.
      phi_next: φ⁻(s_{t+1}, ·).
      theta: M parameters from ν(θ).
      n: the number of steps before the bootstrap.
      chooser: values at s_{t+1} whose best action takes the place of the maximum (double
        Q-learning).
      transform: the ε of ``signed_hyperbolic`` for f(… f⁻¹(Q)), or None for plain values.
    """
    length = len(rewards)
    if not 1 <= n <= length:
        raise ValueError(
            f"n_step_targets: n must lie in [1, {length}], the length of the sequence; got {n}"
        )
    # Padding past the end with reward 0 and discount 1 carries the last bootstrap value along.
    rewards = jnp.append(rewards, jnp.zeros(n - 1, rewards.dtype))
    discounts = jnp.append(discounts, jnp.ones(n - 1, discounts.dtype))
    values = _bootstrap_values(_q_grid(phi_next, theta), chooser).T
    values = values if transform is None else signed_parabolic(values, transform)
    targets = values[jnp.minimum(jnp.arange(length) + n - 1, length - 1)]
    for k in reversed(range(n)):
        targets = rewards[k : k + length, None] + discounts[k : k + length, None] * targets
    return targets if transform is None else signed_hyperbolic(targets, transform)


@checked
def retrace_targets(
    phi: Float[Array, "T_plus_1 A d"],
    theta: Float[Array, "M d"],
    actions: Integer[Array, " T_plus_1"],
    rewards: Float[Array, " T"],
    discounts: Float[Array, " T"],
    behaviour_prob: Float[Array, " T_plus_1"],
    lambda_: Scalar = 0.95,
    policy_epsilon: Scalar = 0.0,
    transform: Scalar | None = None,
    chooser: Float[Array, "M T_plus_1 A"] | None = None,
) -> Float[Array, "T M"]:
    """Retrace for M sampled θ at once (appendix D.2).

    Q_θ = φᵀθ, and the target policy of each θ is ε-greedy in Q_θ.

    Args:
      phi: φ⁻(s_t, ·), t = 0 … T.
      theta: M parameters from ν(θ).
      actions: as in ``retrace``, like the rewards, discounts and probabilities.
      rewards: r_{t+1}, t = 0 … T-1.
      discounts: γ_{t+1}, t = 0 … T-1.
      behaviour_prob: μ(a_t|s_t), t = 0 … T.
      lambda_: λ, the paper's β.
      policy_epsilon: ε_t of the target policies; the paper decays it to zero.
      transform: the ε of ``signed_hyperbolic`` for ``transformed_retrace`` (1e-3 in the paper's
        agents), or None for plain values.
      chooser: values in which the target policies are greedy (double Q-learning), by default Q_θ.
    """
    if (number := known(policy_epsilon)) is not None and not 0 <= number <= 1:
        raise ValueError(
            f"retrace_targets: policy_epsilon must lie in [0, 1], got {number}; it is a probability"
        )

    def targets(q: Array, chooser: Array) -> Array:
        # f is increasing, so rescaled values have the same greedy action as plain values.
        data = (
            actions,
            rewards,
            discounts,
            epsilon_greedy(chooser, policy_epsilon),
            behaviour_prob,
            lambda_,
        )
        return retrace(q, *data) if transform is None else transformed_retrace(q, *data, transform)

    q = _q_grid(phi, theta)
    return jax.vmap(targets, out_axes=1)(q, q if chooser is None else chooser)


def _bootstrap_values(q: Array, chooser: Array | None) -> Array:
    """The value of the greedy action, (M, T) of (M, T, A); the ``chooser`` says which is greedy."""
    if chooser is None:
        return jnp.max(q, axis=-1)
    greedy = jnp.argmax(chooser, axis=-1, keepdims=True)
    return jnp.take_along_axis(q, greedy, axis=-1)[..., 0]


def _q_grid(phi: Array, theta: Array) -> Array:
    """Q_θ(s_t, ·) of shape (M, T, A)."""
    return product(theta, phi.reshape(-1, phi.shape[-1]).T).reshape(len(theta), *phi.shape[:-1])
