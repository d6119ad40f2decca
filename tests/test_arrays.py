import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Integer

from spectral_bellman import objective, operators, posterior
from spectral_bellman._arrays import Scalar, as_float64, checked, in_float64


@checked
def weighted_sum(
    x: Float[Array, "N d"], w: Float[Array, " N"], scale: Scalar = 2.0
) -> Float[Array, " d"]:
    return scale * (w[:, None] * x).sum(axis=0)


@checked
def pick(
    x: Float[Array, " T_plus_1"],
    index: Integer[Array, " T"],
    offset: Float[Array, " T"] | None = None,
) -> Float[Array, " T"]:
    return x[index] + (0 if offset is None else offset)


def test_what_asarray_takes_is_accepted() -> None:
    np.testing.assert_allclose(weighted_sum([[1, 2], [3, 4]], np.array([1.0, 10.0])), [62, 84])


@pytest.mark.parametrize(
    ("x", "w", "words"),
    [
        (np.ones(3), np.ones(3), r"weighted_sum: x must have shape \(N, d\), got \(3,\)"),
        (np.ones((2, 3, 4)), np.ones(2), r"got \(2, 3, 4\); put jax.vmap around the call"),
        (
            np.ones((2, 3)),
            np.ones(4),
            r"w has shape \(4,\) and x \(2, 3\), which disagree on N: x is \(N, d\) and w \(N,\)",
        ),
        (None, np.ones(4), r"weighted_sum: x must be an array of shape \(N, d\), not None"),
        (np.ones((2, 3), complex), np.ones(2), "x must be real, not complex"),
    ],
)
def test_a_wrong_argument_is_named(x: object, w: object, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        weighted_sum(x, w)


def test_lists_of_traced_numbers_are_accepted() -> None:
    np.testing.assert_allclose(jax.jit(lambda a: weighted_sum([[a, 2.0]], [a]))(3.0), [18, 12])


def test_one_longer_than_another() -> None:
    np.testing.assert_allclose(pick([1.0, 2.0, 3.0], [2, 0]), [3, 1])
    with pytest.raises(
        ValueError,
        match=r"index has shape \(3,\) and x \(3,\), which disagree on T: "
        r"x is \(T\+1,\) and index \(T,\)",
    ):
        pick([1.0, 2.0, 3.0], [2, 0, 1])
    with pytest.raises(TypeError, match="index must hold integers, not float32"):
        pick([1.0, 2.0], [0.0])


def test_an_optional_array_is_checked_when_given() -> None:
    np.testing.assert_allclose(pick([1.0, 2.0], [1], [5.0]), [7])
    with pytest.raises(ValueError, match="offset has shape"):
        pick([1.0, 2.0], [1], [5.0, 6.0])


def test_the_widest_dtype_wins() -> None:
    with jax.enable_x64(True):
        narrow, wide = jnp.ones((2, 1), jnp.float32), jnp.ones(2, jnp.float64)
        assert weighted_sum(narrow, wide).dtype == jnp.float64
        assert weighted_sum(narrow, narrow[:, 0]).dtype == jnp.float32
        assert weighted_sum(narrow, narrow[:, 0], wide[0]).dtype == jnp.float32, (
            "a scalar does not widen"
        )
        assert weighted_sum(narrow, jnp.ones(2, int)).dtype == jnp.float32
    assert (
        weighted_sum(jnp.ones((2, 1), jnp.bfloat16), jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32
    )


def test_float64_inside_float32_code() -> None:
    """1e8 + 1 − 1e8 is 0 in float32 and 1 in float64, also in transformations of float32 code."""
    difference = in_float64(lambda x: (x + 1) - x)
    x = jnp.full((3,), 1e8, jnp.float32)
    for function in (
        difference,
        jax.jit(difference),
        jax.vmap(difference),
        jax.jit(jax.vmap(difference)),
    ):
        result = function(x)
        assert result.dtype == jnp.float32
        np.testing.assert_array_equal(result, 1)
    scanned = jax.jit(
        lambda x: jax.lax.scan(lambda c, y: (c + difference(y), None), jnp.zeros(()), x)[0]
    )
    assert scanned(x) == 3
    assert jax.grad(lambda x: difference(x).sum() + x.sum())(x).dtype == jnp.float32


def test_what_is_not_finite_is_located() -> None:
    with pytest.raises(ValueError, match=r"reward\[1, 0\] is nan; 1 of 4 entries"):
        as_float64([[1, 2], [np.nan, 4]], "reward", "S A")


def test_matrix_products_ask_for_full_precision() -> None:
    """On a CPU they have it anyway; the default of recent GPUs keeps ten bits."""
    x, square = jnp.ones((3, 2)), jnp.eye(2)
    covariances = objective.init_covariances(2)
    calls = [
        lambda: objective.representation_loss(
            x, x, jnp.ones((3, 3)), covariances, feature_orthogonality=1.0
        ),
        lambda: objective.solve_parameters(x, x, square),
        lambda: objective.descend_parameters(x, x, jnp.ones((3, 3)), 1, square),
        lambda: operators.one_step_targets(jnp.ones(3), jnp.ones(3), jnp.ones((3, 2, 2)), x),
        lambda: posterior.add_scatter(posterior.init_scatter(2), x),
        lambda: posterior.precision(x, 0.1),
        lambda: posterior.min_eigenvalue(square),
    ]
    for call in calls:
        text = str(jax.make_jaxpr(call)())
        assert (
            text.count("dot_general")
            == text.count("precision=Precision.HIGHEST")
            + text.count("precision=(Precision.HIGHEST")
            > 0
        )
