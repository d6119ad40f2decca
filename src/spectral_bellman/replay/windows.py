"""What an agent learns from: windows of steps in a ring, which never mix two episodes.

``sampling`` says how windows are drawn.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from spectral_bellman.replay.ring import Ring, clear_older


class Transition(NamedTuple):
    """s_tm1, a_tm1, r_t, discount_t, s_t with any leading axes (…)."""

    observation: Any
    action: Any
    reward: Any
    """(…), or (…, n) for n steps."""
    discount: Any
    """0 where the episode terminated, else 1, before the agent's γ. (…), or (…, n) for n steps."""
    extras: Any
    """The extras of the first step."""
    next_observation: Any
    """The true observation after the last step that was taken."""
    taken: Any = None
    """(…, n) which of the n steps were taken; None for one step, which always is."""
    following: Any = None
    """The observation after the first of n steps, where the window reads it."""


@runtime_checkable
class Window(Protocol):
    """A kind of item that is read from a ring."""

    @property
    def length(self) -> int:
        """The most steps that a window spans."""
        ...

    @property
    def room(self) -> int:
        """Steps of an environment that always hold a window, once they are written."""
        ...

    def starts(self, ring: Ring) -> Bool[Array, "N C"]:
        """The slots that name a window: exactly those at which one may begin."""
        ...

    def take(self, ring: Ring, env: Int[Array, "..."], slot: Int[Array, "..."]) -> Any:
        """The items that begin at these slots, with the leading axes of ``env`` and ``slot``."""
        ...


@dataclass(frozen=True)
class OneStep:
    """Transitions of one step. Every step that is held is one."""

    @property
    def length(self) -> int:
        """One step."""
        return 1

    @property
    def room(self) -> int:
        """One step."""
        return 1

    def starts(self, ring: Ring) -> Bool[Array, "N C"]:
        """Every slot that holds a step."""
        return ring.held

    def take(self, ring: Ring, env: Int[Array, "..."], slot: Int[Array, "..."]) -> Transition:
        """``Transition`` without an axis for the steps."""
        # s and s' share all frames of a stack but two, which are read once.
        observation, next_observation = _observations(ring, env, slot, 2)
        action, reward, discount, extras = jax.tree.map(lambda leaf: leaf[env, slot], ring.steps)
        return Transition(observation, action, reward, discount, extras, next_observation)


@dataclass(frozen=True)
class NStep:
    """Transitions of n steps, or of fewer where the episode ends.

    Let m = Σ_k taken_k be the number of steps taken: n, or fewer where the episode
    ended. The target is

        G = Σ_{k<m} γᵏ r_k + γᵐ (Π_{k<m} d_k) V(s_m),    s_m = next_observation.

    Steps that were not taken have reward 0, and discount 1 after a truncation or 0 after a terminal
    step. ``operators.n_step`` therefore computes G from all n steps with

        rewards_k = r_k,    discounts_k = d_k · (γ where taken_k, else 1).
    """

    n: int
    following: bool = False
    """Whether the observation after the first step is read too."""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"NStep: n is {self.n}, and a window needs at least one step")

    @property
    def length(self) -> int:
        """n."""
        return self.n

    @property
    def room(self) -> int:
        """n."""
        return self.n

    def starts(self, ring: Ring) -> Bool[Array, "N C"]:
        """Steps that are followed by n - 1 others or by the end of their episode."""
        _check_room(self, ring)
        return ring.held & _complete(ring, self.n)

    def take(self, ring: Ring, env: Int[Array, "..."], slot: Int[Array, "..."]) -> Transition:
        """``Transition`` whose reward, discount and ``taken`` are (…, n)."""
        steps, taken, _ = _until_end(ring, env, slot, self.n)
        observation = _observations(ring, env, slot, 1)[0]
        reached = (slot + jnp.sum(taken, axis=-1, dtype=slot.dtype)) % ring.capacity
        next_observation = _observations(ring, env, reached, 1)[0]
        one, zero = jnp.ones((), steps.discount.dtype), jnp.zeros((), steps.reward.dtype)
        reward = jnp.where(taken, steps.reward, zero)
        discount = jnp.cumprod(jnp.where(taken, steps.discount, one), axis=-1)
        action, extras = jax.tree.map(
            lambda leaf: leaf[env, slot], (ring.steps.action, ring.steps.extras)
        )
        following = _observations(ring, env, slot + 1, 1)[0] if self.following else None
        return Transition(
            observation, action, reward, discount, extras, next_observation, taken, following
        )


class Sequence(NamedTuple):
    """L = burn-in + trained steps of one episode, leading axes (…). Masked values are 0."""

    observation: Any
    """(…, L + 1, …) with the true observation after the last step; 0 after a terminal step."""
    first: Any
    """(…, L + 1) whether the observation begins the episode: reset the recurrent state there."""
    previous_action: Any
    """(…, L + 1) the action that led to the observation; 0 where it begins the episode."""
    previous_reward: Any
    """(…, L + 1) the reward that came with the observation; 0 where it begins the episode."""
    action: Any
    """(…, L), like the fields that follow."""
    reward: Any
    discount: Any
    extras: Any
    """(…, L, …), without those that are read at step 0 alone."""
    mask: Any
    """(…, L) False before the episode's first step and after its last."""
    start: Any
    """(…, …) the extras of step 0 alone, such as the stored recurrent state; 0 where masked."""


@dataclass(frozen=True)
class Sequences:
    """Sequences of ``burn_in`` steps followed by ``trained`` steps, with stored recurrent state.

    The index of a sequence names its first trained step, which is step 0, period, 2 · period, … of
    an episode. With period = trained / 2 every step is trained in two sequences, except the first
    ``period`` steps of an episode, which are trained in one. Burn-in steps from before the episode
    are masked, so that the first steps of an episode are trained too. Steps after the end of the
    episode are masked. Overlapping sequences share their observations in the ring.
    """

    burn_in: int
    trained: int
    period: int
    """A sequence may begin every so many steps of an episode."""
    at_start: tuple[str, ...] = ()
    """Names of the extras that are read at step 0 alone."""

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.trained < 1 or self.period < 1:
            raise ValueError(f"{self}: burn_in must be at least 0, trained and period at least 1")

    @property
    def length(self) -> int:
        """Burn-in and trained steps, and the step before them, which led to the first of them."""
        return 1 + self.burn_in + self.trained

    @property
    def room(self) -> int:
        """A window, and the steps until the next one may begin."""
        return self.burn_in + self.trained + self.period

    def starts(self, ring: Ring) -> Bool[Array, "N C"]:
        """The steps 0, period, 2 · period, … of every episode whose sequence is in the ring.

        The burn-in must still be held, and the trained steps must be complete or end with the
        episode.
        """
        _check_room(self, ring)
        # One step more: its action and reward led to the first observation.
        before = jnp.minimum(ring.age, self.burn_in + 1)
        burn_in_held = ring.back + before < ring.size[:, None]
        return (
            ring.held & (ring.age % self.period == 0) & burn_in_held & _complete(ring, self.trained)
        )

    def take(self, ring: Ring, env: Int[Array, "..."], slot: Int[Array, "..."]) -> Sequence:
        """``Sequence`` whose step ``burn_in`` is in ``slot``."""
        names = self.at_start
        each = {k: v for k, v in ring.steps.extras.items() if k not in names} if names else None
        stored = ring.steps if each is None else ring.steps._replace(extras=each)
        burnt, before = _before(ring, stored, env, slot, self.burn_in + 1)
        trained, taken, after = _until_end(ring, env, slot, self.trained, stored)
        earlier, before = jax.tree.map(lambda leaf: leaf[(*_all(slot), 0)], burnt), before[..., 1:]
        burnt = jax.tree.map(lambda leaf: leaf[(*_all(slot), slice(1, None))], burnt)
        mask = jnp.concatenate([before, taken], axis=-1)
        seen = jnp.concatenate([before, jnp.ones_like(taken[..., :1]), after], axis=-1)
        steps = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=slot.ndim), burnt, trained)
        steps = jax.tree.map(lambda leaf: _masked(leaf, mask), steps)
        observation, first = _observation_sequence(ring, env, slot - self.burn_in, self.length)
        first = first & seen

        def previous(earlier: Array, given: Array) -> Array:
            led = jnp.concatenate([jnp.expand_dims(earlier, slot.ndim), given], axis=slot.ndim)
            return _masked(led, seen & ~first)

        begin = (env, (slot - self.burn_in) % ring.capacity)
        start = {name: ring.steps.extras[name] for name in names}
        return Sequence(
            observation=jax.tree.map(lambda leaf: _masked(leaf, seen), observation),
            first=first,
            previous_action=jax.tree.map(previous, earlier.action, steps.action),
            previous_reward=previous(earlier.reward, steps.reward),
            action=steps.action,
            reward=steps.reward,
            discount=steps.discount,
            extras=steps.extras,
            mask=mask,
            start=jax.tree.map(lambda leaf: _masked(leaf[begin], mask[..., 0]), start),
        )


def _all(index: Array) -> tuple[slice, ...]:
    """Everything along the axes of an index."""
    return (slice(None),) * index.ndim


def _check_room(window: Window, ring: Ring) -> None:
    # The head and the frames under the oldest stack are not to be read.
    room = ring.capacity - 1 - max(ring.stack - 1, 0)
    if window.room > room:
        raise ValueError(
            f"a ring of {room} steps per environment is too short for {window}, which needs "
            f"{window.room}: raise --replay-capacity to {len(ring.valid) * window.room:,} or more"
        )


def _ends(ring: Ring) -> Bool[Array, "N C"]:
    """Whether the slot's step is the last of its episode."""
    following = (
        jnp.roll(ring.back, -1, axis=1) < ring.capacity - 1
    )  # the slot after it is not the head
    return ring.valid & (
        (ring.steps.discount == 0) | (following & ~jnp.roll(ring.valid, -1, axis=1))
    )


def _complete(ring: Ring, length: int) -> Bool[Array, "N C"]:
    """Whether ``length`` steps from the slot on, or the end of the slot's episode, are written."""
    newest_end = jnp.min(jnp.where(_ends(ring), ring.back, ring.capacity), axis=1, keepdims=True)
    return (ring.back + 1 >= length) | (ring.back >= newest_end)


def _until_end(
    ring: Ring, env: Array, slot: Array, length: int, stored: Any = None
) -> tuple[Any, Bool[Array, "... n"], Bool[Array, "... n"]]:
    """``length`` steps from ``slot`` on, and two masks (…, length).

    The first mask says which steps were taken before the episode ended. The second says after which
    steps the observation belongs to the episode: steps that were taken and were not terminal.
    """
    ahead = jnp.arange(length, dtype=slot.dtype).reshape(*(1,) * slot.ndim, -1)
    where = (slot[..., None] + ahead) % ring.capacity
    env, following = env[..., None], (where + 1) % ring.capacity
    steps = jax.tree.map(lambda leaf: leaf[env, where], ring.steps if stored is None else stored)
    # The head is not valid either, but a window has no step after the newest one.
    cut = ~ring.valid[env, following]
    over = steps.discount == 0
    ended = jnp.cumsum((over | cut).astype(jnp.int32), axis=-1)
    taken = jnp.concatenate([jnp.ones_like(over[..., :1]), ended[..., :-1] == 0], axis=-1)
    return steps, taken, taken & ~over


def _before(
    ring: Ring, stored: Any, env: Array, slot: Array, length: int
) -> tuple[Any, Bool[Array, "... n"]]:
    """The ``length`` steps before ``slot``, and which of them belong to its episode."""
    ago = jnp.arange(length, 0, -1, dtype=slot.dtype).reshape(*(1,) * slot.ndim, -1)
    env, where = env[..., None], (slot[..., None] - ago) % ring.capacity
    steps = jax.tree.map(lambda leaf: leaf[env, where], stored)
    return steps, ring.age[env, slot[..., None]] >= ago


def _observations(ring: Ring, env: Array, slot: Array, length: int) -> list[Any]:
    """The observations in ``length`` slots from ``slot`` on, one by one."""
    if not ring.stack:
        return [_contents(ring, env, (slot + k) % ring.capacity) for k in range(length)]
    frames, first = _frames(ring, env, slot, length)

    def stacked(begin: int) -> Any:
        end = begin + ring.stack
        return jax.tree.map(
            lambda leaf: clear_older(
                jax.lax.slice_in_dim(leaf, begin, end, axis=slot.ndim), first[..., begin:end]
            ),
            frames,
        )

    return [stacked(k) for k in range(length)]


def _observation_sequence(
    ring: Ring, env: Array, slot: Array, length: int
) -> tuple[Any, Bool[Array, "... n"]]:
    """(…, length, …) observations in the slots from ``slot`` on; whether each begins an episode."""
    frames, first = _frames(ring, env, slot, length)
    axis = slot.ndim
    if not ring.stack:
        return frames, first
    shifts = range(ring.stack)
    begins = jnp.stack([first[..., k : k + length] for k in shifts], axis=-1)

    def stacks(leaf: Array) -> Array:
        parts = [jax.lax.slice_in_dim(leaf, k, k + length, axis=axis) for k in shifts]
        return clear_older(jnp.stack(parts, axis=axis + 1), begins)

    return jax.tree.map(stacks, frames), begins[..., -1]


def _frames(ring: Ring, env: Array, slot: Array, length: int) -> tuple[Any, Bool[Array, "... n"]]:
    """The contents of ``length`` slots from ``slot`` on; whether each begins an episode.

    Where the ring stacks frames, the older frames of the first slot's stack come before them.
    """
    offsets = jnp.arange(1 - max(ring.stack, 1), length, dtype=slot.dtype).reshape(
        *(1,) * slot.ndim, -1
    )
    env, where = env[..., None], (slot[..., None] + offsets) % ring.capacity
    return _contents(ring, env, where), ring.age[env, where] == 0


def _contents(ring: Ring, env: Array, slot: Array) -> Any:
    """What the slots hold: observations, or single frames where the ring stacks them."""
    return jax.tree.map(lambda leaf: leaf[env, slot], ring.observation)


def _masked(values: Array, mask: Bool[Array, "..."]) -> Array:
    """The values with zeros where the mask, which has their leading axes, is False."""
    return jnp.where(
        mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim)),
        values,
        jnp.zeros((), values.dtype),
    )
