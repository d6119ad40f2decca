"""How close is close: tolerances in units of the last place, shared by the tests of this folder."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

REFUSED = (ValueError, TypeError)
"""What a call with an unusable argument may raise."""


def assert_close(
    actual: ArrayLike, desired: ArrayLike, ulps: float = 32, scale: float | None = None
) -> None:
    """Equal shapes, and values within `ulps` units of the last place of `actual`'s own precision.

    The unit is relative to `scale`, by default the largest desired value or 1, whichever is larger:
    inputs here are of order one, so a sum of inputs rounds at that size. 32 units leave room for
    sums of some dozens of terms in any order.
    """
    actual, desired = np.asarray(actual), np.asarray(desired, dtype=np.float64)
    assert actual.shape == desired.shape, f"shape {actual.shape}, expected {desired.shape}"
    assert np.issubdtype(actual.dtype, np.floating), actual.dtype
    if scale is None:
        scale = max(1.0, float(np.max(np.abs(desired), initial=0.0)))
    np.testing.assert_allclose(
        actual.astype(np.float64),
        desired,
        rtol=0,
        atol=ulps * float(np.finfo(actual.dtype).eps) * scale,
    )


def assert_jit_agrees(
    function: Callable[..., jax.Array], *args: jax.Array, ulps: float = 32
) -> None:
    """`function` gives the same numbers with and without jit; fusion may change the last places."""
    assert_close(jax.jit(function)(*args), function(*args), ulps)


def assert_vmap_agrees(
    function: Callable[..., jax.Array], *batches: np.ndarray, ulps: float = 32
) -> None:
    """`vmap` over the leading axis of every argument equals a Python loop, both compiled."""
    alone = jax.jit(function)
    loop = [alone(*(jnp.asarray(batch[i]) for batch in batches)) for i in range(len(batches[0]))]
    assert_close(jax.jit(jax.vmap(function))(*batches), np.stack(loop), ulps)
