"""`spectral_bellman.operators`: targets against the sum form of the definitions, and rlax."""

from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import operators

from . import reference
from .compare import REFUSED, assert_close, assert_jit_agrees, assert_vmap_agrees

T, A = 7, 3
LAMBDA = 0.95
EPSILON = 1e-3
ORDER = ["q", "actions", "rewards", "discounts", "target_policy", "behaviour_prob"]


def make_sequence(
    dtype: str, seed: int = 0, steps: int = T, scale: float = 1.0
) -> dict[str, jax.Array]:
    """Off-policy data with some ratios above one and some below, and no termination."""
    rng = np.random.default_rng(seed)
    floats = {
        "q": scale * rng.normal(size=(steps + 1, A)),
        "rewards": scale * rng.normal(size=steps),
        "discounts": rng.uniform(0.8, 0.99, size=steps),
        "target_policy": rng.dirichlet(np.ones(A), size=steps + 1),
        "behaviour_prob": rng.uniform(0.1, 0.9, size=steps + 1),
    }
    sequence = {name: jnp.asarray(value, dtype) for name, value in floats.items()}
    return sequence | {"actions": jnp.asarray(rng.integers(A, size=steps + 1), "int32")}


def edit(
    sequence: dict[str, jax.Array], name: str, where: int | list[int] | slice, value: float
) -> dict[str, jax.Array]:
    """The sequence with some entries of one array replaced."""
    array = np.array(sequence[name])
    array[where] = value
    return sequence | {name: jnp.asarray(array)}


def as_numpy(sequence: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(x) if name == "actions" else reference.f64(x)
        for name, x in sequence.items()
    }


@partial(jax.jit, static_argnames="lambda_")
def retrace(sequence: dict[str, jax.Array], lambda_: float = LAMBDA) -> jax.Array:
    """Compiled once for each shape, for speed; `test_jit_agrees` calls it uncompiled."""
    return operators.retrace(**sequence, lambda_=lambda_)


@partial(jax.jit, static_argnames="lambda_")
def transformed(sequence: dict[str, jax.Array], lambda_: float = LAMBDA) -> jax.Array:
    return operators.transformed_retrace(**sequence, lambda_=lambda_)


def assert_close_transformed(actual: jax.Array, desired: np.ndarray) -> None:
    """The closed form of f⁻¹ subtracts 1/(2ε) from a number of that size, which costs 3 digits."""
    assert_close(actual, desired, ulps=4 / EPSILON)


# --- one step and n steps -------------------------------------------------------------------------


def test_one_step_by_hand(dtype: str) -> None:
    """2 + 0.5 · max(−1, 4, 3) = 4."""
    values = [jnp.asarray(x, dtype) for x in (2.0, 0.5, [-1.0, 4.0, 3.0])]
    target = operators.one_step(*values)
    assert target.dtype == dtype
    assert_close(target, 4.0)


def test_one_step_takes_the_maximum_of_negative_values_and_stops_at_termination(dtype: str) -> None:
    q_next = jnp.asarray([-3.0, -2.0], dtype)
    reward = jnp.asarray(1.0, dtype)
    assert_close(operators.one_step(reward, jnp.asarray(0.5, dtype), q_next), 0.0)
    assert_close(operators.one_step(reward, jnp.asarray(0.0, dtype), q_next), 1.0)


def test_n_step_by_hand(dtype: str) -> None:
    """1 + 0.5·2 + 0.25·3 + 0.125·8 = 3.75; terminal after the second reward: 1 + 0.5·2 = 2."""
    rewards, q_next = jnp.asarray([1.0, 2.0, 3.0], dtype), jnp.asarray([4.0, 8.0], dtype)
    assert_close(operators.n_step(rewards, jnp.asarray([0.5, 0.5, 0.5], dtype), q_next), 3.75)
    assert_close(operators.n_step(rewards, jnp.asarray([0.5, 0.0, 0.5], dtype), q_next), 2.0)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_n_step_is_the_sum(dtype: str, n: int) -> None:
    rng = np.random.default_rng(n)
    arrays = [rng.normal(size=n), rng.uniform(0.5, 1.0, size=n), rng.normal(size=A)]
    rewards, discounts, q_next = (jnp.asarray(x, dtype) for x in arrays)
    target = operators.n_step(rewards, discounts, q_next)
    assert target.dtype == dtype
    assert_close(target, reference.n_step(*map(reference.f64, (rewards, discounts, q_next))))


def test_n_step_of_one_is_one_step(dtype: str) -> None:
    sequence = make_sequence(dtype)
    one = operators.one_step(sequence["rewards"][0], sequence["discounts"][0], sequence["q"][1])
    assert_close(
        operators.n_step(sequence["rewards"][:1], sequence["discounts"][:1], sequence["q"][1]),
        one,
        ulps=4,
    )


def test_n_step_ignores_what_follows_termination(dtype: str) -> None:
    rewards = jnp.asarray([1.0, 2.0, 1e6], dtype)
    discounts = jnp.asarray([0.5, 0.0, 0.9], dtype)
    assert_close(operators.n_step(rewards, discounts, jnp.asarray([1e6, 1e6], dtype)), 2.0)


# --- Retrace --------------------------------------------------------------------------------------


def hand_sequence(dtype: str) -> dict[str, jax.Array]:
    """v_1 = (3 + 4)/2 = 3.5, v_2 = 6, Q(s_1, a_1) = 4; the second step is G_1 = 2 + 0.5·6 = 5."""
    floats = {
        "q": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "rewards": [1.0, 2.0],
        "discounts": [0.5, 0.5],
        "target_policy": [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]],
        "behaviour_prob": [1.0, 1.0, 1.0],
    }
    sequence = {name: jnp.asarray(value, dtype) for name, value in floats.items()}
    return sequence | {"actions": jnp.asarray([0, 1, 0], "int32")}


def test_retrace_by_hand(dtype: str) -> None:
    """c_1 = 0.8 · min(1, 0.5/1) = 0.4: G_0 = 1 + 0.5(3.5 + 0.4(5 − 4)) = 2.95."""
    assert_close(retrace(hand_sequence(dtype), 0.8), [2.95, 5.0])


def test_retrace_clips_the_ratio_at_one_by_hand(dtype: str) -> None:
    """μ = 0.25 makes the ratio 2, so c_1 = 0.8: G_0 = 1 + 0.5(3.5 + 0.8) = 3.15."""
    sequence = hand_sequence(dtype)
    sequence = edit(sequence, "behaviour_prob", 1, 0.25)
    assert_close(retrace(sequence, 0.8), [3.15, 5.0])


def test_retrace_takes_its_arguments_in_order(dtype: str) -> None:
    sequence = hand_sequence(dtype)
    assert_close(operators.retrace(*(sequence[name] for name in ORDER), 0.8), [2.95, 5.0])


@pytest.mark.parametrize("steps", [1, 2, T])
@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_retrace_is_the_sum(dtype: str, steps: int, lambda_: float) -> None:
    sequence = make_sequence(dtype, seed=steps, steps=steps)
    targets = retrace(sequence, lambda_)
    assert targets.dtype == dtype
    assert_close(targets, reference.retrace(**as_numpy(sequence), lambda_=lambda_))


@pytest.mark.parametrize("end", range(T))
def test_retrace_with_termination_at_each_place_is_the_sum(end: int) -> None:
    with jax.enable_x64(True):
        sequence = make_sequence("float64", seed=end)
        sequence = edit(sequence, "discounts", end, 0.0)
        assert_close(retrace(sequence), reference.retrace(**as_numpy(sequence), lambda_=LAMBDA))


def test_retrace_equals_rlax(rlax: ModuleType) -> None:
    """Termination inside, a stopped trace, and a lone episode of one step."""
    with jax.enable_x64(True):
        sequence = make_sequence("float64", seed=11)
        sequence = edit(sequence, "discounts", [2, 3], 0.0)
        sequence = edit(sequence, "behaviour_prob", 5, np.inf)
        assert_close(retrace(sequence), rlax_targets(rlax, rlax.retrace, sequence))


def rlax_targets(
    rlax: ModuleType, function, sequence: dict[str, jax.Array], **options
) -> np.ndarray:
    """rlax returns errors against Q(s_t, a_t); eps = 0 leaves the behaviour probability alone."""
    q, actions = sequence["q"], sequence["actions"]
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        errors = function(
            q[:-1],
            q[1:],
            actions[:-1],
            actions[1:],
            sequence["rewards"],
            sequence["discounts"],
            sequence["target_policy"][1:],
            sequence["behaviour_prob"][1:],
            LAMBDA,
            eps=0.0,
            **options,
        )
    return np.asarray(errors) + np.asarray(q)[np.arange(len(errors)), np.asarray(actions)[:-1]]


def test_retrace_ignores_what_follows_termination(dtype: str) -> None:
    """After a zero discount the sequence belongs to another episode."""
    sequence = make_sequence(dtype)
    sequence = edit(sequence, "discounts", 3, 0.0)
    other = edit(edit(sequence, "q", slice(4, None), -50.0), "rewards", slice(4, None), 1e3)
    assert_close(retrace(other)[:4], retrace(sequence)[:4], ulps=4)
    assert_close(transformed(other)[:4], transformed(sequence)[:4], ulps=4)


@pytest.mark.parametrize("cut", [1, 3, T - 1])
def test_infinite_behaviour_probability_cuts_the_sequence(dtype: str, cut: int) -> None:
    """Nothing after the cut reaches before it, but the value there is still bootstrapped from."""
    sequence = make_sequence(dtype)
    sequence = edit(sequence, "behaviour_prob", cut, np.inf)
    head = {
        name: x[:cut] if name in ("rewards", "discounts") else x[: cut + 1]
        for name, x in sequence.items()
    }
    assert_close(retrace(sequence)[:cut], retrace(head), ulps=4)
    assert_close(retrace(sequence), reference.retrace(**as_numpy(sequence), lambda_=LAMBDA))


def test_every_trace_stopped_is_one_step_under_the_target_policy(dtype: str) -> None:
    sequence = make_sequence(dtype)
    sequence["behaviour_prob"] = jnp.full(T + 1, jnp.inf, dtype)
    numbers = as_numpy(sequence)
    values = [reference.dot(numbers["target_policy"][t + 1], numbers["q"][t + 1]) for t in range(T)]
    assert_close(retrace(sequence), numbers["rewards"] + numbers["discounts"] * values)


def test_greedy_target_without_trace_is_one_step(dtype: str) -> None:
    """λ = 0 and a greedy target policy: the optimal Bellman target at every step."""
    sequence = make_sequence(dtype)
    sequence["target_policy"] = jax.nn.one_hot(jnp.argmax(sequence["q"], axis=-1), A, dtype=dtype)
    expected = jax.vmap(operators.one_step)(
        sequence["rewards"], sequence["discounts"], sequence["q"][1:]
    )
    assert_close(retrace(sequence, 0.0), expected, ulps=4)


def test_on_policy_full_trace_is_n_step(dtype: str) -> None:
    """λ = 1, μ = π greedy, greedy actions: a target is the rest of the return plus the maximum."""
    sequence = make_sequence(dtype)
    greedy = jnp.argmax(sequence["q"], axis=-1).astype("int32")
    sequence |= {
        "actions": greedy,
        "target_policy": jax.nn.one_hot(greedy, A, dtype=dtype),
        "behaviour_prob": jnp.ones(T + 1, dtype),
    }
    rewards, discounts, q = sequence["rewards"], sequence["discounts"], sequence["q"]
    expected = [operators.n_step(rewards[t:], discounts[t:], q[T]) for t in range(T)]
    assert_close(retrace(sequence, 1.0), np.stack(expected))


UNUSED = [
    ("target_policy", 0, np.nan),
    ("behaviour_prob", 0, np.nan),
    ("behaviour_prob", 0, 0.0),
    ("actions", T, 999),
    ("actions", T, -999),
    ("behaviour_prob", T, np.nan),
    ("behaviour_prob", T, 0.0),
]


@partial(jax.jit, static_argnums=0)
def gradients(operator, sequence: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Of the sum of the targets, with respect to the values and to the target policy."""

    def total(q: jax.Array, target_policy: jax.Array) -> jax.Array:
        return operator(sequence | {"q": q, "target_policy": target_policy}).sum()

    return jax.grad(total, argnums=(0, 1))(sequence["q"], sequence["target_policy"])


@pytest.mark.parametrize("operator", [retrace, transformed])
@pytest.mark.parametrize(("name", "where", "value"), UNUSED)
def test_unused_entries_change_nothing(operator, name: str, where: int, value: float) -> None:
    """Neither the targets nor their gradient, not even as 0 · NaN."""
    sequence = make_sequence("float32")
    garbage = edit(sequence, name, where, value)
    np.testing.assert_array_equal(operator(garbage), operator(sequence))
    for got, expected in zip(
        gradients(operator, garbage), gradients(operator, sequence), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
        assert np.isfinite(np.asarray(got)).all()


@pytest.mark.parametrize("operator", [retrace, transformed])
def test_gradient_is_finite_where_the_trace_stops(operator) -> None:
    sequence = edit(make_sequence("float32"), "behaviour_prob", 2, np.inf)
    for gradient in gradients(operator, edit(sequence, "discounts", 4, 0.0)):
        assert np.isfinite(np.asarray(gradient)).all()


# --- value rescaling ------------------------------------------------------------------------------

VALUES = [0.0, 1e-3, -0.5, 3.0, -8.0, 100.0, -2e4]


def test_rescaling_by_hand(dtype: str) -> None:
    """f(3) = √4 − 1 + 0.003; f(−8) = −(√9 − 1) − 0.008; with ε = 0.5: f(3) = 1 + 1.5."""
    assert_close(
        operators.signed_hyperbolic(jnp.asarray([3.0, -8.0], dtype)), [1.003, -2.008], ulps=4
    )
    assert_close(operators.signed_hyperbolic(jnp.asarray(3.0, dtype), epsilon=0.5), 2.5, ulps=4)
    assert_close_transformed(
        operators.signed_parabolic(jnp.asarray([1.003, -2.008], dtype)), np.array([3.0, -8.0])
    )
    assert_close(operators.signed_parabolic(jnp.asarray(2.5, dtype), epsilon=0.5), 3.0)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_rescaling_is_the_definition(dtype: str, epsilon: float) -> None:
    x = jnp.asarray(VALUES, dtype)
    f, inverse = operators.signed_hyperbolic(x, epsilon), operators.signed_parabolic(x, epsilon)
    assert f.dtype == inverse.dtype == dtype
    for i, value in enumerate(reference.f64(x)):
        assert_close(f[i], reference.signed_hyperbolic(value, epsilon), ulps=4)
        # The largest step of the closed form is √(1 + |f⁻¹|)/ε; relative to it, the error is a few
        # units.
        expected = reference.signed_parabolic(value, epsilon)
        assert_close(
            inverse[i], expected, ulps=8, scale=(1 + abs(expected)) ** 0.5 / epsilon + abs(expected)
        )


def test_rescaling_equals_rlax(rlax: ModuleType) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(VALUES, "float64")
        assert_close(operators.signed_hyperbolic(x), rlax.signed_hyperbolic(x), ulps=4)
        for i in range(len(VALUES)):
            expected = float(rlax.signed_parabolic(x[i]))
            size = (1 + abs(expected)) ** 0.5 / EPSILON + abs(expected)
            assert_close(operators.signed_parabolic(x[i]), expected, ulps=8, scale=size)


def test_rescaling_round_trip() -> None:
    """f is well conditioned under f⁻¹: f(f⁻¹(x)) cancels the error of f⁻¹."""
    with jax.enable_x64(True):
        x = jnp.asarray(VALUES, "float64")
        assert_close_transformed(
            operators.signed_hyperbolic(operators.signed_parabolic(x)), np.asarray(x)
        )


@pytest.mark.parametrize("x", [0.0, 2.0, -2.0])
def test_rescaling_derivatives(dtype: str, x: float) -> None:
    """f'(x) = 1/(2√(|x| + 1)) + ε, smooth through 0, and the inverse's is its reciprocal at f⁻¹."""
    slope = 0.5 / np.sqrt(abs(x) + 1) + EPSILON
    assert_close(jax.grad(operators.signed_hyperbolic)(jnp.asarray(x, dtype)), slope)
    y = jnp.asarray(reference.signed_hyperbolic(x), dtype)
    assert_close_transformed(jax.grad(operators.signed_parabolic)(y), np.asarray(1 / slope))


# --- transformed Retrace --------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_transformed_retrace_is_the_definition(dtype: str, scale: float) -> None:
    """With rewards and rescaled values of order ten f is far from linear."""
    sequence = make_sequence(dtype, seed=3, scale=scale)
    sequence = edit(sequence, "discounts", 4, 0.0)
    sequence = edit(sequence, "behaviour_prob", 2, np.inf)
    targets = transformed(sequence)
    assert targets.dtype == dtype
    assert_close_transformed(
        targets, reference.transformed_retrace(**as_numpy(sequence), lambda_=LAMBDA)
    )


def test_transformed_retrace_uses_its_epsilon() -> None:
    with jax.enable_x64(True):
        sequence = make_sequence("float64", seed=4, scale=5.0)
        targets = operators.transformed_retrace(**sequence, lambda_=LAMBDA, epsilon=0.1)
        expected = reference.transformed_retrace(**as_numpy(sequence), lambda_=LAMBDA, epsilon=0.1)
        assert_close(targets, expected, ulps=40)


def test_transformed_retrace_equals_rlax(rlax: ModuleType) -> None:
    with jax.enable_x64(True):
        sequence = make_sequence("float64", seed=5, scale=5.0)
        sequence = edit(sequence, "discounts", 1, 0.0)
        expected = rlax_targets(
            rlax, rlax.transformed_retrace, sequence, tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR
        )
        assert_close_transformed(transformed(sequence), expected)


# --- transformations and bad input ----------------------------------------------------------------


def test_jit_agrees(dtype: str) -> None:
    sequence = make_sequence(dtype)
    arrays = [sequence[name] for name in ORDER]
    rewards, discounts, q = sequence["rewards"], sequence["discounts"], sequence["q"]
    assert_jit_agrees(operators.one_step, rewards[0], discounts[0], q[1])
    assert_jit_agrees(operators.n_step, rewards, discounts, q[T])
    assert_jit_agrees(partial(operators.retrace, lambda_=LAMBDA), *arrays)
    assert_jit_agrees(
        partial(operators.transformed_retrace, lambda_=LAMBDA), *arrays, ulps=4 / EPSILON
    )


def test_vmap_agrees(dtype: str) -> None:
    """A leading axis, as over a batch of sequences."""
    sequences = [make_sequence(dtype, seed) for seed in range(3)]
    batch = {name: np.stack([sequence[name] for sequence in sequences]) for name in ORDER}
    assert_vmap_agrees(
        operators.one_step, batch["rewards"][:, 0], batch["discounts"][:, 0], batch["q"][:, 1]
    )
    assert_vmap_agrees(operators.n_step, batch["rewards"], batch["discounts"], batch["q"][:, T])
    assert_vmap_agrees(partial(operators.retrace, lambda_=LAMBDA), *batch.values())
    assert_vmap_agrees(
        partial(operators.transformed_retrace, lambda_=LAMBDA), *batch.values(), ulps=4 / EPSILON
    )


def test_vmap_over_sampled_parameters_alone(dtype: str) -> None:
    """M values and policies on one sequence of data, which is not copied."""
    sequence = make_sequence(dtype)
    others = [make_sequence(dtype, seed) for seed in (1, 2)]
    q, policy = (
        jnp.asarray(np.stack([other[name] for other in others])) for name in ("q", "target_policy")
    )
    targets = jax.vmap(lambda q, policy: retrace(sequence | {"q": q, "target_policy": policy}))(
        q, policy
    )
    for m in range(2):
        alone = as_numpy(sequence | {"q": q[m], "target_policy": policy[m]})
        assert_close(targets[m], reference.retrace(**alone, lambda_=LAMBDA))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("q", (T, A)),
        ("q", (T + 1, A + 1)),
        ("q", (T + 1,)),
        ("actions", (T,)),
        ("actions", (T + 1, A)),
        ("rewards", (T + 1,)),
        ("rewards", (1,)),
        ("rewards", ()),
        ("discounts", (T + 1,)),
        ("discounts", ()),
        ("target_policy", (T, A)),
        ("target_policy", (T + 1,)),
        ("behaviour_prob", (T,)),
        ("behaviour_prob", (T + 1, A)),
        ("behaviour_prob", (1,)),
    ],
)
@pytest.mark.parametrize("operator", [retrace, transformed])
def test_retrace_refuses_wrong_shapes(operator, name: str, shape: tuple[int, ...]) -> None:
    sequence = make_sequence("float32")
    sequence[name] = jnp.ones(shape, sequence[name].dtype)
    with pytest.raises(REFUSED):
        operator(sequence)


@pytest.mark.parametrize(
    ("rewards", "discounts", "q_next"),
    [((3,), (2,), (A,)), ((3,), (), (A,)), ((3,), (3,), (2, A)), ((), (), (A,))],
)
def test_n_step_refuses_wrong_shapes(rewards, discounts, q_next) -> None:
    with pytest.raises(REFUSED):
        operators.n_step(*(jnp.ones(shape, "float32") for shape in (rewards, discounts, q_next)))


@pytest.mark.parametrize(
    ("reward", "discount", "q_next"), [((2,), (2,), (A,)), ((), (2,), (A,)), ((), (), (2, A))]
)
def test_one_step_refuses_wrong_shapes(reward, discount, q_next) -> None:
    """A batch goes through `vmap`."""
    with pytest.raises(REFUSED):
        operators.one_step(*(jnp.ones(shape, "float32") for shape in (reward, discount, q_next)))
