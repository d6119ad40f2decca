"""What XLA asks of our programs: donated arguments, seeds side by side, work in divisible chunks.

- A donated argument must come back first and in its own place: where a result takes the buffer of
  another argument, XLA moves that out of the way, and on a GPU in a wrong order (jax 0.11).
- A value that is returned twice may be written once on a GPU, where the arguments were donated (jax
  issue 39625), and no buffer may be donated twice: see ``returned_again``.
- An argument that nothing reads is left out, which shifts the pairs of donated arguments and
  results: ``keep_unused``.
"""

import math
from collections.abc import Callable
from typing import Any

import jax


def compiled_over_seeds(
    function: Callable[..., Any], *, in_axes: Any = 0, donate: tuple[int, ...] = ()
) -> Any:
    """``function`` of one seed, vmapped over the first axis of its arguments, and jitted."""
    mapped = jax.vmap(function, in_axes=in_axes)
    return jax.jit(mapped, donate_argnums=donate, keep_unused=bool(donate))


def lowered(function: Callable[..., Any], donate: tuple[int, ...], shapes: tuple[Any, ...]) -> Any:
    """``function`` for arguments of these shapes, ready to be compiled."""
    return jax.jit(function, donate_argnums=donate, keep_unused=True).lower(*shapes)


@jax.jit
def fold_keys(keys: jax.Array, *numbers: jax.Array | int) -> jax.Array:
    """The key of every seed, folded with the numbers one after the other."""
    for number in numbers:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
    return keys


def working_bytes(program: Any) -> int:
    """What a compiled program needs besides its arguments, as the compiler reports it."""
    analysis = program.memory_analysis()
    if analysis is None:
        return 0
    outputs = max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
    code = analysis.generated_code_size_in_bytes
    return int(analysis.temp_size_in_bytes + outputs + code)


def largest_divisor(number: int, bound: int) -> int:
    """The largest divisor of ``number`` up to ``bound``; at least 1."""
    return max((n for n in range(1, min(number, max(bound, 1)) + 1) if number % n == 0), default=1)


def array_bytes(tree: Any) -> int:
    """Bytes of the leaves of a tree of arrays or shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
