"""Argument checks for every public function: shapes against annotations, and one common dtype.

Nothing here knows about reinforcement learning.
"""

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

P = ParamSpec("P")
R = TypeVar("R")

Scalar = float | Float[Array, ""]
"""A number, or an array of rank 0 (which may be traced)."""

RandomKey = Key[Array, ""] | UInt32[Array, "2"]
"""A key from ``jax.random.key``, or an old-style key from ``jax.random.PRNGKey``."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check array arguments against their annotations and give them one floating dtype.

    ``Float[Array, "B d"]`` requires rank 2, and the same ``B`` and ``d`` in every argument that
    names them. ``T_plus_1`` is one more than ``T``; ``...`` stands for any leading axes. Every
    value that ``jnp.asarray`` takes is accepted. Integers become floats where the annotation is a
    float. The common dtype is the widest dtype of the non-scalar arguments, and at least float32.
    """
    signature = inspect.signature(function)
    kinds = {
        name: kind
        for name, p in signature.parameters.items()
        if (kind := _kind(p.annotation)) is not None
    }

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        arrays = {}
        for name, kind in kinds.items():
            default = signature.parameters[name].default
            value = bound.arguments.get(name, default)
            if value is not None or default is not None:
                arrays[name] = _as_array(function.__name__, name, kind, value)
        _check_shapes(function.__name__, {name: kinds[name][0] for name in arrays}, arrays)
        floating = {name: x for name, x in arrays.items() if kinds[name][1]}
        dtype = _common_dtype([x for name, x in floating.items() if kinds[name][0] != ""])
        bound.arguments.update(arrays)
        for name, x in floating.items():
            # A concrete number stays concrete inside jit, so that a wrong one is refused there too.
            with jax.ensure_compile_time_eval() if is_concrete(x) else contextlib.nullcontext():
                bound.arguments[name] = x.astype(dtype)
        return function(*bound.args, **bound.kwargs)

    return wrapper


def product(a: Array, b: Array) -> Array:
    """a @ b of two matrices in full precision; the default on recent GPUs keeps 10 bits of float32.

    Unlike ``jnp.matmul``, this function names no dtype. JAX checks a named dtype again when
    ``vmap`` meets a loop, and by then JAX is back in float32 mode.
    """
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST)


def returned_again(tree: Any, always: Array) -> Any:
    """The values of a tree, for a second place among the results of a jitted function.

    ``always`` is a traced condition that always holds. XLA cannot know that, and takes the values
    for others. Of equal results, a GPU writes only one where the arguments were donated (jax issue
    39625); XLA removes a ``jnp.copy``.
    """
    return jax.tree.map(lambda x: jnp.where(always, x, jnp.zeros((), x.dtype)), tree)


def known(value: Any) -> float | None:
    """The value of a scalar, for argument checks; None if ``jit`` or ``vmap`` traces the scalar."""
    return float(value) if is_concrete(value) else None


def is_concrete(value: Any) -> bool:
    """Whether a value, or every leaf of a tree, is concrete: not traced by ``jit`` or ``vmap``."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def is_broken(result: Array) -> bool:
    """Whether a concrete result holds NaN or infinity and must be refused; False if traced."""
    return is_concrete(result) and not bool(jnp.all(jnp.isfinite(result)))


def in_float64(function: Callable[..., R]) -> Callable[..., R]:
    """Compute in float64 in every mode of JAX; return the dtype of the first argument.

    The arguments are positional, and floating arrays or trees of them. The wrapper works under
    ``jit``, ``vmap`` and ``grad`` of float32 code, loops included. JAX differentiates such code
    long after this function has returned, so the wrapper defines a backward pass that turns float64
    on again. Forward mode and second derivatives of loops are not supported. Inside the wrapped
    function, multiply matrices with ``product``: its docstring gives a similar reason.
    """

    def forward(*args: Any) -> Any:
        dtype = jax.tree.leaves(args)[0].dtype
        with jax.enable_x64(True):
            return _cast(function(*_cast(args, jnp.float64)), dtype)

    def backward(args: Any, cotangent: Any) -> Any:
        with jax.enable_x64(True):
            _, pull_back = jax.vjp(function, *_cast(args, jnp.float64))
            wide = pull_back(_cast(cotangent, jnp.float64))
            return jax.tree.map(
                lambda x, like: jax.lax.convert_element_type(x, like.dtype), wide, args
            )

    wrapped = jax.custom_vjp(forward)
    wrapped.defvjp(lambda *args: (forward(*args), args), backward)
    return functools.wraps(function)(lambda *args: wrapped(*args))


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, dtype), tree)


def _is_floating(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)


def _kind(annotation: Any) -> tuple[str, bool] | None:
    """The annotated shape, and whether the dtype is floating; None unless one shape is given."""
    shaped = [
        option
        for option in typing.get_args(annotation) or (annotation,)
        if hasattr(option, "dim_str")
    ]
    return (shaped[0].dim_str, "float32" in shaped[0].dtypes) if len(shaped) == 1 else None


def _as_array(function: str, name: str, kind: tuple[str, bool], value: Any) -> Array:
    try:
        with jax.ensure_compile_time_eval() if is_concrete(value) else contextlib.nullcontext():
            array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{function}: {name} must be an array of shape {_show(kind[0])}, not {value!r:.80}"
        ) from error
    if not kind[1] and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(
            f"{function}: {name} must hold integers, not {array.dtype}; "
            f"cast it, e.g. {name}.astype(int)"
        )
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"{function}: {name} must be real, not {array.dtype}")
    return array


def _common_dtype(arrays: list[Array]) -> Any:
    floating = [x for x in arrays if _is_floating(x)]
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *floating) if floating else jnp.result_type(float)


def _check_shapes(function: str, expected: dict[str, str], arrays: dict[str, Array]) -> None:
    sizes: dict[str, tuple[int, str]] = {}
    for name, dims in expected.items():
        shape, axes = arrays[name].shape, dims.split()
        if axes[:1] == ["..."]:
            axes = axes[1:]
            shape = shape[len(shape) - len(axes) :] if len(shape) >= len(axes) else shape
        if len(shape) != len(axes):
            hint = "; put jax.vmap around the call for a batch" if len(shape) > len(axes) else ""
            raise ValueError(
                f"{function}: {name} must have shape {_show(dims)}, got {arrays[name].shape}{hint}"
            )
        for axis, size in zip(axes, shape, strict=True):
            symbol, _, plus = axis.partition("_plus_")
            size -= int(plus or 0)
            first, where = sizes.setdefault(symbol, (size, name))
            if first != size and where == name:
                raise ValueError(
                    f"{function}: {name} must be square, {_show(dims)}, got {arrays[name].shape}"
                )
            if first != size:
                raise ValueError(
                    f"{function}: {name} has shape {arrays[name].shape} and {where} "
                    f"{arrays[where].shape}, which disagree on {symbol}: "
                    f"{where} is {_show(expected[where])} and {name} {_show(dims)}"
                )


def _show(dims: str) -> str:
    axes = dims.replace("_plus_", "+").split()
    return f"({axes[0]},)" if len(axes) == 1 else f"({', '.join(axes)})"


def as_float64(value: Any, name: str, shape: str) -> np.ndarray:
    """A NumPy float64 copy of an array; it must be finite and of the rank of ``shape`` ("S A")."""
    array = np.array(value, dtype=np.float64)
    if array.ndim != len(shape.split()):
        raise ValueError(f"{name} must have shape {_show(shape)}, got {array.shape}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"{name}{list(where)} is {array[where]}; {len(bad)} of {array.size} entries are not "
            f"finite, and each must be a number: look at what made {name}"
        )
    return array
