"""Both runners do the same: on one deterministic environment, with one staleness and one seed.

An agent is trained on an environment by the device runner, and on the same environment, wrapped as
a host environment, by the host runner. Random actions and draws from the replay are the same too.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.explorations import Epsilon
from spectral_bellman.agents.q_agent import QAgent
from spectral_bellman.agents.representations import Spectral
from spectral_bellman.agents.representations.api import AdamSolver
from spectral_bellman.environments.deep_sea import DeepSea
from spectral_bellman.training.config import TrainConfig
from spectral_bellman.training.device_runner import DeviceRunner
from spectral_bellman.training.host_runner import HostRunner

from .counting import numbers
from .stubs import Corridor, Hosted, Scribe, phase

STEPS, ENVS, ROUNDS = 4, 3, 7
AGENT = AgentConfig(
    representation=Spectral(
        features=4, theta_samples=4, solver=AdamSolver(q_steps=2, q_learning_rate=0.1)
    ),
    exploration=Epsilon(),
    network="mlp",
    hidden=(8,),
    batch=8,
    updates=6,
    warmup_steps=2 * STEPS * ENVS,
    learning_rate=0.01,
)


def settings(staleness: int) -> TrainConfig:
    return TrainConfig(
        "sbm-dqn",
        "either",
        frames=ROUNDS * STEPS * ENVS,
        num_envs=ENVS,
        round_steps=STEPS,
        staleness=staleness,
        replay_capacity=60 * ENVS,
        log_frames=3 * STEPS * ENVS,
        eval_episodes=2,
        agent=AGENT,
    )


def on_device(environment, build, staleness: int) -> list[dict]:
    """What has been learned after each round."""
    agent = build(environment.observation, 2)
    runner = DeviceRunner(settings(staleness), environment, agent)
    runner.init()
    found = []
    for number in range(ROUNDS):
        runner.run_round(number)
        one = jax.tree.map(lambda x: x[0], runner.state)
        found.append(jax.device_get(seen(one.learner, one.policies[-1])))
    return found


def on_host(environment, build, staleness: int, ahead: bool, programs: dict) -> list[dict]:
    """What has been learned after each round; the compiled programs may be shared."""

    def opener(seed, indices, stream):
        return Hosted(environment, len(indices))

    runner = HostRunner(settings(staleness), "either", opener, build, background=False)
    runner.programs = programs
    runner.init()
    found = []
    for number in range(ROUNDS):
        runner.run_round(number, ahead=ahead and number + 1 < ROUNDS)
        found.append(jax.device_get(seen(runner._learner, runner.newest_policy())))
    runner.close()
    return found


def seen(learner, policy) -> dict:
    ring = learner.replay
    # The slot of the next step shows what comes after the last one, which is no matter if it ended
    # an episode: the host shows the next episode there already.
    ended = ring.steps.discount[jnp.arange(ENVS), ring.head - 1] == 0
    observation = ring.observation.at[jnp.arange(ENVS), ring.head].mul(
        jnp.where(ended, 0.0, 1.0).reshape(-1, *(1,) * (ring.observation.ndim - 2))
    )
    return {
        "replay": (observation, ring.steps, ring.age, ring.valid, ring.written),
        "tally": learner.tally,
        "agent": learner.agent,
        "policy": policy,
        "key": jax.random.key_data(learner.key),
    }


def assert_equal(device: list[dict], host: list[dict], parts: list[str]) -> None:
    for number, (one, other) in enumerate(zip(device, host, strict=True)):
        for part in parts:
            for x, y in zip(numbers(one[part]), numbers(other[part]), strict=True):
                np.testing.assert_array_equal(x, y, err_msg=f"{part} after round {number}")


def scribe(observation, num_actions):
    return Scribe(observation, [phase(1, 2)], [phase(2, 3)])


@pytest.fixture(scope="module")
def programs():
    """Programs of the host runner by staleness, which the number of its policies depends on."""
    return {1: {}, 2: {}, 3: {}}


@pytest.fixture(scope="module", params=[1, 2, 3])
def device_runner(request):
    return request.param, on_device(Corridor(), scribe, request.param)


@pytest.mark.parametrize("ahead", [False, True])
def test_both_runners_do_the_same_at_one_staleness(device_runner, programs, ahead):
    """The agent's policy is the round that published it, and it acts by that: all is equal."""
    staleness, device = device_runner
    host = on_host(Corridor(), scribe, staleness, ahead, programs[staleness])
    assert_equal(device, host, ["replay", "tally", "agent", "policy", "key"])
    _, steps, age, valid, written = host[-1]["replay"]
    # Which version acted in which round, from the replay; the first round that learns is 1.
    published = [-1 if n - staleness < 1 else n - staleness for n in range(ROUNDS)]
    for env in range(ENVS):
        versions = steps.extras["version"][env][valid[env]]
        assert versions.tolist() == np.repeat(published, STEPS).tolist()
    # Some episodes have terminated and some were cut, which takes a slot more.
    assert host[-1]["tally"].episodes > ENVS
    assert (age[valid] == 0).sum() > ENVS
    assert (steps.discount[valid] == 0).any()
    assert written.min() > ROUNDS * STEPS


@pytest.mark.parametrize("staleness", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_both_runners_learn_the_same(staleness):
    """Random actions, draws of the replay, φ, θ̂, the optimisers, the targets and the policies."""
    environment = DeepSea(3)

    def build(observation, num_actions):
        return QAgent(AGENT, observation, num_actions)

    device = on_device(environment, build, staleness)
    host = on_host(environment, build, staleness, True, {})
    assert_equal(device, host, ["replay", "key"])
    for one, other in zip(device, host, strict=True):
        for part in ("agent", "policy", "tally"):
            for x, y in zip(numbers(one[part]), numbers(other[part]), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    first, last = (numbers(host[n]["policy"]) for n in (0, -1))
    assert any(not np.array_equal(x, y) for x, y in zip(first, last, strict=True))
