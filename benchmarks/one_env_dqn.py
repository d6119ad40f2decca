"""A single-file DQN, the baseline of a speed comparison: one environment, one update a dispatch.

taskset -c 1 python benchmarks/one_env_dqn.py --seed 1
taskset -c 1 python benchmarks/one_env_dqn.py --profile

Every environment step calls Gymnasium in Python and writes a row to a NumPy ring on the host.
Unless the action is random, the step also dispatches a jitted argmax, and the host waits for the
result. Every `train_every` steps NumPy draws a batch from the ring, and the host dispatches one
jitted Adam step, whose result stays on the device. The loss is the mean over the batch of

    (Q(s, a) − r − γ (1 − terminated) max_a' Q̄(s', a'))²

where Q̄ is a copy of Q, taken every `target_every` steps. An episode truncated by the time limit is
not terminated, so it bootstraps.

Agent steps per second count the steps after warm-up, acting and learning together. The clock
excludes compilation, warm-up and evaluation. Random actions need no dispatch, so the rate depends
on ε. `--profile` also times every part of a step, and waits for every update. Profiling slows the
run, so take the rate from a run without `--profile`.

The script turns off JAX's asynchronous dispatch to the CPU. The host waits for nearly every call
anyway, and passing each call to another thread costs more than it hides. `--asynchronous` leaves it
on. Code that calls `run` itself must set `jax_cpu_enable_async_dispatch` before its first JAX
computation.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array
from rich.console import Console
from rich.table import Table

Parameters = list[tuple[Array, Array]]
"""Weights (out, in) and bias of each layer."""


@dataclass(frozen=True)
class OneEnvDQN:
    """Settings."""

    env: str = "CartPole-v1"
    """Gymnasium's name; observations are vectors, actions discrete."""
    hidden: tuple[int, ...] = (120, 84)
    """Widths of the hidden layers."""
    batch: int = 128
    """Transitions an update."""
    train_every: int = 16
    """Environment steps an update."""
    learning_rate: float = 1e-3
    """Adam's."""
    target_every: int = 128
    """Environment steps between copies to the target network."""
    discount: float = 0.99
    """γ."""
    replay: int = 10_000
    """Transitions kept."""
    warmup: int = 1_000
    """Steps of random actions before the first update."""
    epsilon_start: float = 1.0
    """ε at step 0."""
    epsilon_end: float = 0.1
    """ε from step `epsilon_steps` on."""
    epsilon_steps: int = 10_000
    """Steps over which ε falls linearly."""
    steps: int = 100_000
    """Environment steps in all, warm-up included."""
    seed: int = 0
    """Of the parameters, the environment, the actions and the batches."""
    evaluate_every: int = 2_500
    """Environment steps between evaluations."""
    episodes: int = 20
    """Greedy episodes an evaluation."""
    solved: float = 475.0
    """Mean return of an evaluation that counts as solved."""
    profile: bool = False
    """Time the parts of a step."""

    def __post_init__(self) -> None:
        if not 0 < self.warmup < self.steps:
            raise ValueError(
                f"warmup is {self.warmup}, which is not between 0 and steps = {self.steps}: "
                "raise steps or lower warmup"
            )
        if self.replay < self.batch:
            raise ValueError(
                f"replay is {self.replay}, less than one batch of {self.batch}: raise replay"
            )


class Replay:
    """A ring of the last `size` transitions in preallocated NumPy arrays."""

    def __init__(self, size: int, observation: int) -> None:
        self.size, self.head, self.full = size, 0, False
        self.observations = np.zeros((size, observation), np.float32)
        self.following = np.zeros((size, observation), np.float32)
        self.actions = np.zeros(size, np.int32)
        self.rewards = np.zeros(size, np.float32)
        self.alive = np.zeros(size, np.float32)

    def add(
        self,
        observation: np.ndarray,
        action: int,
        reward: float,
        terminated: bool,
        following: np.ndarray,
    ) -> None:
        """Write over the oldest transition."""
        i = self.head
        self.observations[i] = observation
        self.following[i] = following
        self.actions[i] = action
        self.rewards[i] = reward
        self.alive[i] = not terminated
        self.head = i + 1
        if self.head == self.size:
            self.head, self.full = 0, True

    def sample(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, ...]:
        """Draw transitions with replacement: s, a, r, 1 − terminated, s'."""
        rows = rng.integers(self.size if self.full else self.head, size=batch)
        return tuple(
            x.take(rows, 0)
            for x in (self.observations, self.actions, self.rewards, self.alive, self.following)
        )


def init_parameters(key: Array, sizes: tuple[int, ...]) -> Parameters:
    """Weights and biases uniform within ±1/√in."""

    def layer(key: Array, fan_in: int, fan_out: int) -> tuple[Array, Array]:
        weight, bias = jax.random.split(key)
        draw = partial(jax.random.uniform, minval=-(fan_in**-0.5), maxval=fan_in**-0.5)
        return draw(weight, (fan_out, fan_in)), draw(bias, (fan_out,))

    keys = jax.random.split(key, len(sizes) - 1)
    return [layer(k, m, n) for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)]


def q_values(parameters: Parameters, observation: Array) -> Array:
    """Q(s, ·): a perceptron with ReLU."""
    *hidden, (weight, bias) = parameters
    for w, b in hidden:
        observation = jax.nn.relu(w @ observation + b)
    return weight @ observation + bias


@jax.jit
def greedy(parameters: Parameters, observation: Array) -> Array:
    """argmax_a Q(s, a)."""
    return jnp.argmax(q_values(parameters, observation))


@jax.jit
def greedy_each(parameters: Parameters, observations: Array) -> Array:
    """argmax_a Q(s, a) at each of several observations."""
    return jax.vmap(lambda s: jnp.argmax(q_values(parameters, s)))(observations)


@jax.jit
def copy(parameters: Parameters) -> Parameters:
    """Buffers of their own, as the update donates the ones it is given."""
    return jax.tree.map(jnp.copy, parameters)


def make_update(optimizer: Any, discount: float) -> Callable[..., tuple[Parameters, Any]]:
    """The jitted step of Adam on one batch; it donates the parameters and the optimiser's state."""

    def error(
        online: Parameters,
        target: Parameters,
        s: Array,
        a: Array,
        r: Array,
        alive: Array,
        s_next: Array,
    ) -> Array:
        goal = r + discount * alive * jnp.max(q_values(target, s_next))
        return q_values(online, s)[a] - goal

    def loss(online: Parameters, target: Parameters, *batch: Array) -> Array:
        errors = jax.vmap(partial(error, online, target))(*batch)
        return jnp.mean(jnp.square(errors))

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(
        online: Parameters, state: Any, target: Parameters, *batch: Array
    ) -> tuple[Parameters, Any]:
        changes, state = optimizer.update(jax.grad(loss)(online, target, *batch), state, online)
        return optax.apply_updates(online, changes), state

    return update


def evaluate(parameters: Parameters, envs: list[gymnasium.Env[Any, Any]], seed: int) -> float:
    """Mean return of one greedy episode in each environment.

    The environments advance together to save dispatches.
    """
    observations = np.stack(
        [np.asarray(env.reset(seed=seed + i)[0], np.float32) for i, env in enumerate(envs)]
    )
    returns, running = np.zeros(len(envs)), list(range(len(envs)))
    while running:
        # np.asarray waits for the result, so the rows may be written again.
        actions = np.asarray(greedy_each(parameters, observations))
        still = []
        for i in running:
            observations[i], reward, terminated, truncated, _ = envs[i].step(int(actions[i]))
            returns[i] += float(reward)
            if not (terminated or truncated):
                still.append(i)
        running = still
    return float(returns.mean())


def run(config: OneEnvDQN, progress: Callable[[int, float], None] | None = None) -> dict[str, Any]:
    """Train and measure; `progress` is given the step and mean return of each evaluation.

    Returns agent_steps_per_second, evaluations as (step, mean return), solved_step, solved_seconds,
    steps, updates, training_steps, training_seconds, warmup_seconds and, with `profile`, the calls
    and seconds of each part. solved_step and solved_seconds refer to the first evaluation that
    reached `solved`, or are None. The seconds count warm-up and training, neither compilation nor
    evaluation.
    """
    rng = np.random.default_rng(config.seed)
    env = gymnasium.make(config.env, disable_env_checker=True)
    envs = [gymnasium.make(config.env, disable_env_checker=True) for _ in range(config.episodes)]
    if (
        not isinstance(env.action_space, gymnasium.spaces.Discrete)
        or len(env.observation_space.shape or ()) != 1
    ):
        raise ValueError(
            f"{config.env} has no vector observations with discrete actions: "
            "choose one that has, such as CartPole-v1"
        )
    actions, width = int(env.action_space.n), (env.observation_space.shape or (0,))[0]
    replay = Replay(config.replay, width)
    optimizer = optax.adam(config.learning_rate)
    update = make_update(optimizer, config.discount)
    online = init_parameters(jax.random.key(config.seed), (width, *config.hidden, actions))
    state = jax.jit(optimizer.init)(online)
    target = copy(online)

    # Compile on copies, outside the clock.
    spare = copy(online), jax.jit(optimizer.init)(online)
    jax.block_until_ready(update(*spare, target, *replay_like(config.batch, width)))
    int(greedy(online, np.zeros(width, np.float32)))
    int(greedy_each(online, np.zeros((config.episodes, width), np.float32))[0])

    clock, parts, calls = (
        time.perf_counter,
        defaultdict[str, float](float),
        defaultdict[str, int](int),
    )
    profile = config.profile

    def lap(part: str, since: float) -> float:
        now = clock()
        parts[part] += now - since
        calls[part] += 1
        return now

    evaluations: list[tuple[int, float]] = []
    solved: tuple[int, float] | None = None
    seconds = warmup_seconds = mark = 0.0
    updates = 0
    slope = (config.epsilon_end - config.epsilon_start) / config.epsilon_steps
    observation, _ = env.reset(seed=config.seed)
    start = clock()
    for step in range(1, config.steps + 1):
        training = step > config.warmup
        timed = profile and training
        if timed:
            mark = clock()
        epsilon = max(config.epsilon_start + slope * step, config.epsilon_end) if training else 1.0
        if rng.random() < epsilon:
            action = int(rng.integers(actions))
            mark = lap("random action", mark) if timed else mark
        else:
            action = int(np.asarray(greedy(online, observation)))
            mark = lap("greedy action", mark) if timed else mark
        following, reward, terminated, truncated, _ = env.step(action)
        mark = lap("env.step", mark) if timed else mark
        replay.add(observation, action, float(reward), terminated, following)
        mark = lap("replay.add", mark) if timed else mark
        observation = following
        if terminated or truncated:
            observation, _ = env.reset()
            mark = lap("env.reset", mark) if timed else mark
        if not training:
            if step == config.warmup:
                warmup_seconds = clock() - start
                start = clock()
            continue
        if step % config.train_every == 0:
            batch = replay.sample(rng, config.batch)
            mark = lap("replay.sample", mark) if timed else mark
            online, state = update(online, state, target, *batch)
            updates += 1
            if timed:
                mark = lap("update, dispatch", mark)
                jax.block_until_ready(online)
                mark = lap("update, wait", mark)
        if step % config.target_every == 0:
            target = copy(online)
            mark = lap("target copy", mark) if timed else mark
        if step % config.evaluate_every == 0 or step == config.steps:
            jax.block_until_ready((online, state, target))
            seconds += clock() - start
            mean = evaluate(online, envs, 1_000_000 * (config.seed + 1) + config.episodes * step)
            evaluations.append((step, mean))
            if solved is None and mean >= config.solved:
                solved = step, warmup_seconds + seconds
            if progress is not None:
                progress(step, mean)
            start = clock()
    for each in (env, *envs):
        each.close()
    training_steps = config.steps - config.warmup
    return {
        "agent_steps_per_second": training_steps / seconds,
        "evaluations": evaluations,
        "solved_step": None if solved is None else solved[0],
        "solved_seconds": None if solved is None else solved[1],
        "steps": config.steps,
        "updates": updates,
        "training_steps": training_steps,
        "training_seconds": seconds,
        "warmup_seconds": warmup_seconds,
        "parts": {part: {"calls": calls[part], "seconds": parts[part]} for part in parts},
    }


def replay_like(batch: int, width: int) -> tuple[np.ndarray, ...]:
    """A batch of zeros of the shapes and types the replay gives."""
    empty = Replay(1, width)
    empty.add(np.zeros(width, np.float32), 0, 0.0, False, np.zeros(width, np.float32))
    return empty.sample(np.random.default_rng(0), batch)


def main(config: Annotated[OneEnvDQN, tyro.conf.arg(name="")], asynchronous: bool = False) -> None:
    """Measure and print.

    Args:
        config: Settings.
        asynchronous: Let JAX dispatch to the CPU asynchronously, which is its default.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", asynchronous)
    console = Console()
    facts = run(
        config,
        lambda step, mean: console.print(
            f"step {step:>8,}   mean return of {config.episodes} episodes {mean:6.1f}"
        ),
    )
    steps, updates, solved = facts["training_steps"], facts["updates"], facts["solved_step"]
    if facts["parts"]:
        table = Table(title=f"Parts of {steps:,} agent steps, {updates:,} updates")
        for column in ("part", "calls", "µs a call", "µs an agent step"):
            table.add_column(column, justify="left" if column == "part" else "right")
        for part, of in sorted(facts["parts"].items(), key=lambda item: -item[1]["seconds"]):
            micro = 1e6 * of["seconds"]
            table.add_row(
                part, f"{of['calls']:,}", f"{micro / of['calls']:.2f}", f"{micro / steps:.2f}"
            )
        console.print(table)
    reached = (
        "not reached"
        if solved is None
        else f"at step {solved:,}, after {facts['solved_seconds']:.2f} s of warm-up and training"
    )
    console.print(f"mean return of {config.solved:g}: {reached}")
    note = " (slowed by the profile)" if config.profile else ""
    rate = f"{facts['agent_steps_per_second']:,.0f} agent steps per second{note}"
    device = jax.devices()[0].device_kind
    console.print(f"{rate} over {steps:,} steps and {updates:,} updates   (device: {device})")


if __name__ == "__main__":
    tyro.cli(main)
