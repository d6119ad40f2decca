import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import operators

T, A, D, M = 7, 3, 4, 5


def sequence(seed: int, dtype: str = "float32") -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    discounts = np.full(T, 0.9)
    discounts[3] = 0
    behaviour = rng.uniform(0.2, 1, size=T + 1)
    behaviour[5] = np.inf
    floats = {
        "phi": rng.normal(size=(T + 1, A, D)),
        "theta": rng.normal(size=(M, D)),
        "rewards": rng.normal(size=T),
        "discounts": discounts,
        "behaviour_prob": behaviour,
    }
    actions = jnp.asarray(rng.integers(A, size=T + 1))
    return {"actions": actions} | {name: jnp.asarray(x, dtype) for name, x in floats.items()}


@pytest.mark.parametrize("transform", [None, 1e-2])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_retrace_targets_are_retrace_for_each_theta(
    dtype: str, transform: float | None, epsilon: float
) -> None:
    s = sequence(0, dtype)
    data = (s["actions"], s["rewards"], s["discounts"])
    grid = operators.retrace_targets(
        s["phi"], s["theta"], *data, s["behaviour_prob"], 0.95, epsilon, transform
    )
    assert grid.shape == (T, M)
    for m in range(M):
        q = s["phi"] @ s["theta"][m]
        policy = operators.epsilon_greedy(q, epsilon)
        arguments = (q, *data, policy, s["behaviour_prob"], 0.95)
        one = (
            operators.retrace(*arguments)
            if transform is None
            else operators.transformed_retrace(*arguments, transform)
        )
        np.testing.assert_allclose(grid[:, m], one, rtol=1e-4, atol=1e-5)


def test_retrace_targets_default_to_the_greedy_policies_and_the_papers_lambda() -> None:
    s = sequence(0)
    data = (s["phi"], s["theta"], s["actions"], s["rewards"], s["discounts"], s["behaviour_prob"])
    np.testing.assert_array_equal(
        operators.retrace_targets(*data), operators.retrace_targets(*data, 0.95, 0.0, None)
    )
    with pytest.raises(ValueError, match=r"policy_epsilon must lie in \[0, 1\], got 2.0"):
        operators.retrace_targets(*data, policy_epsilon=2.0)


def test_no_copy_of_the_data_for_each_theta() -> None:
    """The compiled grid holds M values for each Q, but the features once.

    Its temporaries are far smaller than M copies of the features.
    """
    t, d, m = 80, 256, 64
    shapes = [(t + 1, A, d), (m, d)]
    phi, theta = (jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    actions, steps, probs = (
        jax.ShapeDtypeStruct(s, k)
        for s, k in (((t + 1,), jnp.int32), ((t,), jnp.float32), ((t + 1,), jnp.float32))
    )
    compiled = (
        jax.jit(operators.retrace_targets).lower(phi, theta, actions, steps, steps, probs).compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes < m * (t + 1) * A * d * 4 / 8


def test_one_step_targets_take_the_maximum_for_each_theta() -> None:
    """φ' = one-hot of the action, so Q_θ(s', a) = θ_a: the two θ's prefer different actions."""
    targets = operators.one_step_targets(
        jnp.array([1.0, 2.0]),
        jnp.array([0.5, 0.0]),
        jnp.broadcast_to(jnp.eye(2), (2, 2, 2)),
        jnp.array([[3.0, 5.0], [8.0, -1.0]]),
    )
    np.testing.assert_allclose(targets, [[1 + 0.5 * 5, 1 + 0.5 * 8], [2, 2]])


@pytest.mark.parametrize("n", [1, 2, 3, T])
def test_n_step_targets_are_n_step_for_each_step_and_theta(n: int) -> None:
    s = sequence(1)
    grid = operators.n_step_targets(s["rewards"], s["discounts"], s["phi"][1:], s["theta"], n)
    for t in range(T):
        end = min(t + n, T)
        for m in range(M):
            q_next = s["phi"][end] @ s["theta"][m]
            expected = operators.n_step(s["rewards"][t:end], s["discounts"][t:end], q_next)
            np.testing.assert_allclose(grid[t, m], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transform", [None, 1e-2])
def test_double_q_learning_takes_the_value_of_the_choosers_action(transform: float | None) -> None:
    s, rng = sequence(4), np.random.default_rng(5)
    chooser = rng.normal(size=(M, T + 1, A))
    q = np.einsum("tad,md->mta", s["phi"], s["theta"])
    best = np.take_along_axis(q, chooser.argmax(-1)[..., None], axis=-1)[..., 0].T
    assert np.any(best < q.max(-1).T)  # else the maximum would do
    epsilon = 0.0 if transform is None else transform

    def f(x: np.ndarray) -> np.ndarray:
        return x if transform is None else np.asarray(operators.signed_hyperbolic(x, epsilon))

    def inverse(x: np.ndarray) -> np.ndarray:
        return x if transform is None else np.asarray(operators.signed_parabolic(x, epsilon))

    rewards, discounts = (np.asarray(s[name])[:, None] for name in ("rewards", "discounts"))
    expected = f(rewards + discounts * inverse(best[1:]))
    given = (s["rewards"], s["discounts"], s["phi"][1:], s["theta"])
    chosen = jnp.asarray(chooser, jnp.float32)
    for found in (
        operators.one_step_targets(*given, chosen[:, 1:], transform),
        operators.n_step_targets(*given, 1, chosen[:, 1:], transform),
        # A trace that is never followed leaves one step.
        operators.retrace_targets(
            s["phi"],
            s["theta"],
            s["actions"],
            s["rewards"],
            s["discounts"],
            s["behaviour_prob"],
            lambda_=0.0,
            transform=transform,
            chooser=chosen,
        ),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_n_step_targets_refuse_more_steps_than_there_are() -> None:
    s = sequence(1)
    for n in (0, T + 1):
        with pytest.raises(
            ValueError, match=rf"n must lie in \[1, 7\], the length of the sequence; got {n}"
        ):
            operators.n_step_targets(s["rewards"], s["discounts"], s["phi"][1:], s["theta"], n)


def test_rescaling_loses_no_digits_in_float32() -> None:
    x = jnp.asarray(
        np.concatenate([-np.geomspace(1e-8, 1e6, 200), [0.0], np.geomspace(1e-8, 1e6, 200)]),
        jnp.float32,
    )
    np.testing.assert_allclose(
        operators.signed_parabolic(operators.signed_hyperbolic(x)), x, rtol=1e-6
    )
    np.testing.assert_allclose(
        operators.signed_parabolic(operators.signed_hyperbolic(x, 0.0), 0.0), x, rtol=1e-6
    )
    np.testing.assert_allclose(jax.grad(operators.signed_hyperbolic)(0.0), 0.5 + 1e-3, rtol=1e-6)


def test_epsilon_greedy_probabilities() -> None:
    policy = operators.epsilon_greedy(jnp.array([[1.0, 3.0, 2.0], [4.0, 4.0, 0.0]]), 0.3)
    np.testing.assert_allclose(policy, [[0.1, 0.8, 0.1], [0.8, 0.1, 0.1]], rtol=1e-6)


def test_retrace_of_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="the sequence is empty"):
        operators.retrace(
            jnp.ones((1, 2)),
            jnp.zeros(1, int),
            jnp.ones(0),
            jnp.ones(0),
            jnp.ones((1, 2)),
            jnp.ones(1),
            1.0,
        )


def test_nothing_behind_a_stopped_trace_is_looked_at() -> None:
    """NaN past the cut, as in padding, reaches neither the earlier targets nor their gradients."""
    s = sequence(2)
    q = (s["phi"] @ s["theta"][0]).at[6:].set(jnp.nan)
    policy = operators.epsilon_greedy(jnp.nan_to_num(q))
    rewards = s["rewards"].at[5:].set(jnp.nan)

    def targets(q: jax.Array, rewards: jax.Array) -> jax.Array:
        return operators.retrace(
            q, s["actions"], rewards, s["discounts"], policy, s["behaviour_prob"], 0.95
        )

    np.testing.assert_array_equal(
        targets(q, rewards)[:5], targets(jnp.nan_to_num(q), s["rewards"])[:5]
    )
    assert jnp.isfinite(jax.grad(lambda q: targets(q, rewards)[:5].sum())(q)).all()


def test_retrace_survives_an_impossible_action() -> None:
    """A behaviour probability of zero, from a bug elsewhere, gives the full trace and not NaN."""
    q, policy = jnp.ones((3, 2)), jnp.full((3, 2), 0.5)
    result = operators.retrace(
        q, jnp.zeros(3, int), jnp.ones(2), jnp.full(2, 0.9), policy, jnp.zeros(3), 1.0
    )
    np.testing.assert_allclose(result, [1 + 0.9 * (1 + 1.9 - 1), 1 + 0.9], rtol=1e-6)
