"""Sequences: burn-in, targets by brute force and by rlax, masks, and memory."""

# ruff: noqa: TID252

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman.agents import AgentConfig, QAgent, Timestep
from spectral_bellman.agents.backbones import FeedForward, Recurrent
from spectral_bellman.agents.backups import NStepOperator, PrioritisedSampling, RetraceOperator
from spectral_bellman.agents.explorations import Epsilon, Thompson
from spectral_bellman.agents.representations import Plain, Spectral
from spectral_bellman.agents.representations.api import AdamSolver, LeastSquares
from spectral_bellman.environments.memory import Recall, TMaze
from spectral_bellman.networks.recurrent import Carry, Inputs, zero_carry
from spectral_bellman.replay import Index, Rollout, Rows, Sample, Sequence, add, init_ring, rows
from spectral_bellman.training.learner import extras_of
from spectral_bellman.training.rollout import collect, init_actor_state

from ..quick import quick

D, A, T, BURN, B, M = 5, 3, 6, 3, 8, 4
SHAPE = jax.ShapeDtypeStruct((4,), jnp.float32)
GAMMA = 0.9
BACKBONE = Recurrent(lstm=7, burn_in=BURN, trained=T, period=3)
CONFIG = AgentConfig(
    backbone=BACKBONE,
    operator=RetraceOperator(trace_decay=0.8),
    representation=Spectral(features=D, theta_samples=M, solver=AdamSolver(q_steps=2)),
    exploration=Thompson(precision_samples=60),
    sampling=PrioritisedSampling(),
    hidden=(6,),
    discount=GAMMA,
    rescaling=1e-2,
    reward_clip=0.0,
    batch=B,
    updates=4,
    warmup_steps=0,
)


def changed(**changes) -> AgentConfig:
    return dataclasses.replace(CONFIG, **changes)


@functools.cache
def played(maze: bool = True):
    """An agent, its state, and 60 steps of 3 environments with a policy that stands still."""
    environment = TMaze(4) if maze else Recall(3)
    agent = QAgent(CONFIG, environment.observation, environment.num_actions)
    state = quick(agent.init)(jax.random.key(0))
    policy = agent.init_policy(state)  # ε = 1
    actor = init_actor_state(agent, environment, jax.random.key(1), 3)
    play = quick(lambda actor, key: collect(agent, environment, policy, actor, key, 20))
    rollouts = []
    for number in range(3):
        actor, rollout, _ = play(actor, jax.random.key(2 + number))
        rollouts.append(jax.device_get(rollout))
    ring = init_ring(agent.observation, extras_of(agent), 3, 400, 20)
    for rollout in rollouts:
        ring = quick(add)(ring, jax.tree.map(jnp.asarray, rollout))
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *rollouts)
    return agent, state, ring, whole


def from_the_start(network, rollout: Rollout, env: int, until: int) -> np.ndarray:
    """φ(h_t, ·) of the observation at time ``until``, from the first step of its episode."""
    begin = max(t for t in range(until + 1) if rollout.first[t, env])
    carry, phi = zero_carry(7), None
    for t in range(begin, until + 1):
        inputs = Inputs(
            jnp.asarray(rollout.observation[t : t + 1, env]),
            jnp.asarray([t == begin]),
            jnp.asarray([0 if t == begin else rollout.action[t - 1, env]], jnp.int32),
            jnp.asarray([0.0 if t == begin else rollout.reward[t - 1, env]], jnp.float32),
        )
        carry = network.core.step(carry, network.embed(inputs)[0])
        phi = network.features(carry.hidden)
    return np.asarray(phi)


def test_burn_in_from_the_stored_state_equals_a_run_from_the_start():
    """The parameters stand still, so that stored states are those of the network."""
    agent, state, ring, rollout = played()
    assert rollout.truncated.any()
    assert (rollout.discount == 0).any()
    env, slot = (jnp.asarray(x, jnp.int32) for x in np.nonzero(agent.window.starts(ring)))
    items = quick(agent.window.take)(ring, env, slot)
    seen = quick(agent.backbone.view)(state.network, items)
    phi = np.asarray(seen.phi).reshape(len(env), T, A, D)
    after = np.asarray(seen.phi_next).reshape(len(env), T, A, D)
    mask = np.asarray(items.mask)[:, BURN:]
    # The slot of each step: a truncated step takes two.
    place = np.cumsum(1 + rollout.truncated, axis=0) - 1 - rollout.truncated
    compared = 0
    for i, (e, s) in enumerate(zip(np.asarray(env), np.asarray(slot), strict=True)):
        start = int(np.flatnonzero(place[:, e] == s)[0])
        if i % 3:  # a third of them, for time
            continue
        for k in range(T):
            if not mask[i, k]:
                continue
            expected = from_the_start(state.network, rollout, e, start + k)
            np.testing.assert_allclose(phi[i, k], expected, rtol=1e-4, atol=1e-5)
            if k + 1 < T and mask[i, k + 1]:
                np.testing.assert_allclose(after[i, k], phi[i, k + 1], rtol=1e-5, atol=1e-6)
            compared += 1
    assert compared > 60


def test_the_stored_state_is_read_and_the_burn_in_has_no_gradient():
    agent, state, ring, _ = played(maze=False)
    env, slot = (jnp.asarray(x[:4], jnp.int32) for x in np.nonzero(agent.window.starts(ring)))
    items = agent.window.take(ring, env, slot)
    middle = np.asarray(items.mask[:, 0])
    assert middle.any() or agent.window.burn_in
    other = items._replace(start=jax.tree.map(lambda x: x + 1.0, items.start))
    seen, moved = (agent.backbone.taken(state.network, x) for x in (items, other))
    moved_rows = np.any(np.asarray(seen != moved).reshape(len(env), T, D), axis=(1, 2))
    # Where the episode begins inside the window, the state is reset and the stored one is not read.
    begins = np.asarray(items.first[:, : BURN + 1]).any(axis=1)
    np.testing.assert_array_equal(moved_rows, ~begins)

    inputs = Inputs(items.observation, items.first, items.previous_action, items.previous_reward)
    burnt, trained = (
        jax.tree.map(lambda x, cut=cut: x[:, cut], inputs)
        for cut in (slice(BURN), slice(BURN, BURN + T))
    )
    carry, _ = jax.vmap(state.network.unroll)(items.start["carry"], burnt)

    def of_network(network):
        return jnp.sum(agent.backbone.taken(network, items))

    def without_burn_in(network):
        """The same with the state after the burn-in as a number."""
        _, hidden = jax.vmap(network.unroll)(carry, trained)
        phi = jax.vmap(jax.vmap(network.features))(hidden)
        return jnp.sum(jnp.take_along_axis(phi, items.action[:, BURN:, None, None], axis=2))

    found, expected = (jax.grad(f)(state.network) for f in (of_network, without_burn_in))
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(found)) > 0.1


def items_of(seed: int, lengths: list[int], endings: list[str]) -> Sequence:
    """Sequences by hand: so many trained steps, then terminated, truncated, or going on."""
    rng, count = np.random.default_rng(seed), len(lengths)
    taken = np.arange(T)[None] < np.asarray(lengths)[:, None]
    mask = np.concatenate([np.ones((count, BURN), bool), taken], axis=1)
    discount = mask.astype(np.float32)
    for i, (length, ending) in enumerate(zip(lengths, endings, strict=True)):
        if ending == "terminated":
            discount[i, BURN + length - 1] = 0

    def floats(*shape):
        return jnp.asarray(rng.normal(size=(count, *shape)), jnp.float32)

    steps = BURN + T
    probability = np.where(mask, rng.uniform(0.2, 1, size=mask.shape), 0)
    return Sequence(
        observation=floats(steps + 1, 4),
        first=jnp.zeros((count, steps + 1), bool),
        previous_action=jnp.asarray(rng.integers(A, size=(count, steps + 1)), jnp.int32),
        previous_reward=floats(steps + 1),
        action=jnp.asarray(rng.integers(A, size=(count, steps)), jnp.int32),
        reward=jnp.where(mask, 3 * floats(steps), 0.0),
        discount=jnp.asarray(discount),
        extras={"behaviour_prob": jnp.asarray(probability, jnp.float32)},
        mask=jnp.asarray(mask),
        start={"carry": Carry(floats(7), floats(7))},
    )


LENGTHS = [T, T, T, 4, 4, 1, 1, 2]
ENDINGS = ["on", "terminated", "truncated", "terminated", "truncated"] + ["truncated"] * 2 + ["on"]
ENDINGS[5] = "terminated"


def f(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-2 * x


def f_inverse(x):
    eps = 1e-2
    root = (np.sqrt(1 + 4 * eps * (np.abs(x) + 1 + eps)) - 1) / (2 * eps)
    return np.sign(x) * (root**2 - 1)


def by_hand(operator, q, chooser, items, i):
    """The targets of sequence i for one θ, from the definitions; NaN for padding."""
    mask = np.asarray(items.mask[i, BURN:])
    length = int(mask.sum())
    action = np.asarray(items.action[i, BURN:])
    reward = np.asarray(items.reward[i, BURN:], np.float64)
    gamma = GAMMA * np.asarray(items.discount[i, BURN:], np.float64)
    mu = np.asarray(items.extras["behaviour_prob"][i, BURN:], np.float64)
    plain, best = f_inverse(q), chooser.argmax(axis=-1)
    found = np.full(T, np.nan)
    for t in range(length):
        if isinstance(operator, RetraceOperator):
            total, weight = plain[t, action[t]], 1.0
            for k in range(t, length):
                delta = reward[k] + gamma[k] * plain[k + 1, best[k + 1]] - plain[k, action[k]]
                total += weight * delta
                if k + 1 == length:
                    break
                c = 0.8 * min(1.0, float(best[k + 1] == action[k + 1]) / mu[k + 1])
                weight *= gamma[k] * c
        else:
            total, weight, k = 0.0, 1.0, t
            while k < length and k < t + operator.n_steps:
                total += weight * reward[k]
                weight *= gamma[k]
                k += 1
            total += weight * plain[k, best[k]]
        found[t] = f(total)
    return found


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("operator", [CONFIG.operator, NStepOperator(3), NStepOperator(20)])
def test_targets_of_sequences_by_brute_force(operator, double):
    agent = QAgent(changed(operator=operator, double=double), SHAPE, A)
    state = quick(agent.init)(jax.random.key(3))
    online = quick(agent.init)(jax.random.key(4)).network
    items, rng = items_of(0, LENGTHS, ENDINGS), np.random.default_rng(5)
    thetas, choosers = (jnp.asarray(rng.normal(size=(M, D)), jnp.float32) for _ in range(2))
    norm = agent.representation.normalise

    def both(target, online, items):
        backup = agent.backbone.backup(norm, target, online, items)
        views = [agent.backbone.view(network, items) for network in (target.network, online)]
        return backup.values(thetas, choosers), [(norm(v.phi), norm(v.phi_next)) for v in views]

    found, views = quick(both)(state.target, online, items)
    found = np.asarray(found, np.float64).reshape(B, T, M)
    (phi, chosen) = (
        np.concatenate(
            [np.asarray(now).reshape(B, T, A, D), np.asarray(after).reshape(B, T, A, D)[:, -1:]], 1
        )
        for now, after in views
    )
    for i in range(B):
        for m in range(M):
            q = phi[i] @ np.asarray(thetas[m], np.float64)
            chooser = chosen[i] @ np.asarray(choosers[m], np.float64) if double else q
            expected = by_hand(operator, q, chooser, items, i)
            kept = ~np.isnan(expected)
            np.testing.assert_allclose(found[i, kept, m], expected[kept], rtol=2e-3, atol=2e-4)
    assert np.isfinite(found).all()


def test_whole_sequences_agree_with_rlax():
    with warnings.catch_warnings():  # of the packages that it imports
        warnings.simplefilter("ignore")
        import rlax
    agent = QAgent(CONFIG, SHAPE, A)
    state = quick(agent.init)(jax.random.key(3))
    items = items_of(1, [T] * B, ["on", "terminated"] * (B // 2))
    norm, theta = agent.representation.normalise, jnp.ones((1, D))
    backup = agent.backbone.backup(norm, state.target, state.network, items)
    found = np.asarray(backup.values(theta, theta)).reshape(B, T)
    seen = agent.backbone.view(state.network, items)
    q = (norm(seen.phi) @ theta[0]).reshape(B, T, A)
    after = (norm(seen.phi_next) @ theta[0]).reshape(B, T, A)
    pair = rlax.TxPair(
        lambda x: rlax.signed_hyperbolic(x, 1e-2), lambda x: rlax.signed_parabolic(x, 1e-2)
    )
    action, reward, discount = (
        getattr(items, n)[:, BURN:] for n in ("action", "reward", "discount")
    )
    mu = items.extras["behaviour_prob"][:, BURN:]
    policy = jax.nn.one_hot(jnp.argmax(after, axis=-1), A)
    with jax.numpy_rank_promotion("allow"):
        for i in range(B):
            error = rlax.transformed_retrace(
                q[i],
                after[i],
                action[i],
                jnp.append(action[i, 1:], 0),
                reward[i],
                GAMMA * discount[i],
                policy[i],
                jnp.append(mu[i, 1:], 1.0),
                0.8,
                tx_pair=pair,
            )
            taken = np.asarray(q[i])[np.arange(T), np.asarray(action[i])]
            # The last step's trace is rlax's to cut: ours ends with the sequence.
            np.testing.assert_allclose(found[i], taken + error, rtol=2e-3, atol=2e-4)


def test_padding_does_not_matter():
    """Whatever stands in padded steps: loss, gradient, priorities and diagnostics are the same."""
    agent = QAgent(CONFIG, SHAPE, A)
    state = quick(agent.init)(jax.random.key(3))
    items = items_of(2, LENGTHS, ENDINGS)
    mask = np.asarray(items.mask)
    # The observation after a terminal step is padding, the one after a truncated step is not.
    over = np.asarray(items.discount == 0) & mask
    seen = np.concatenate([np.ones((B, 1), bool), mask & ~over], axis=1)
    rng = np.random.default_rng(7)

    def noisy(x, mask=mask):
        x = np.asarray(x)
        noise = rng.integers(A, size=x.shape) if x.dtype == np.int32 else 5 * rng.random(x.shape)
        return jnp.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, noise.astype(x.dtype))

    dirty_items = items._replace(
        observation=noisy(items.observation, seen),
        previous_action=noisy(items.previous_action, seen),
        previous_reward=noisy(items.previous_reward, seen),
        action=noisy(items.action),
        reward=noisy(items.reward),
        discount=noisy(items.discount),
        extras={"behaviour_prob": noisy(items.extras["behaviour_prob"])},
    )

    def learned(items):
        nothing = jnp.zeros(B, jnp.int32)
        sample = Sample(items, jnp.linspace(0.5, 1.5, B), Index(nothing, nothing))
        one = jax.tree.map(lambda x: x[None], sample)
        prepared = jax.tree.map(lambda x: x[0], agent._prepare(state, one, jax.random.key(8)))
        after, terms, priorities = agent._update(state, sample, prepared)
        given = Rows(items, jnp.ones(B), nothing, jnp.float32(100))
        policy = agent.init_policy(state)._replace(noise=jnp.eye(D))
        shown = agent.diagnose(state, policy, items, given, jax.random.key(9))
        return after.network, terms, priorities, shown

    run = quick(learned)
    clean, dirty = run(items), run(dirty_items)
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert clean[2].shape == (B,)
    assert (np.asarray(clean[2]) > 0).all()


@functools.cache
def learning():
    """An agent with an orthogonality term, its state, a weighted batch, and its targets."""
    part = dataclasses.replace(CONFIG.representation, feature_orthogonality=0.3)
    agent = QAgent(changed(representation=part), SHAPE, A)
    state = quick(agent.init)(jax.random.key(3))
    state = state._replace(beside=jax.tree.map(lambda x: x + 0.1, state.beside))
    nothing = jnp.zeros(B, jnp.int32)
    sample = Sample(items_of(2, LENGTHS, ENDINGS), jnp.linspace(0.5, 2, B), Index(nothing, nothing))
    one = jax.tree.map(lambda x: x[None], sample)
    prepared = quick(lambda key: agent._prepare(state, one, key))(jax.random.key(8))
    return agent, state, sample, jax.tree.map(lambda x: x[0], prepared)


def test_the_gradient_is_that_of_the_weighted_bellman_mse():
    """With α = 1; the orthogonality term is a mean over pairs of steps of different sequences."""
    agent, state, sample, prepared = learning()
    mask = np.asarray(sample.items.mask[:, BURN:])
    weight = (mask * np.asarray(sample.weight)[:, None]).ravel()
    sequence = np.arange(B * T) // T
    pairs = np.outer(weight, weight) * (sequence[:, None] != sequence[None])

    def ours(trained):
        network, beside = trained
        rows = agent._learned(network, sample)
        return agent.representation.loss(rows, beside, state.kept, prepared)[0]

    def by_definition(trained):
        network, beside = trained
        phi = agent.features_taken(network, sample.items)
        values = phi @ jax.vmap(beside)(prepared.theta).T
        errors = jnp.mean(jnp.square(values - prepared.targets), axis=1)
        moments = (phi[:, :, None] * phi[:, None] * (1 - jnp.eye(D))[None]).reshape(B * T, -1)
        orthogonality = jnp.sum(pairs * (moments @ moments.T)) / pairs.sum()
        return weight @ errors / weight.sum() + 0.3 * orthogonality

    trained = (state.network, state.beside)
    found, expected = (quick(jax.grad(f))(trained) for f in (ours, by_definition))
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-5)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(found)) > 0.01


def test_a_priority_is_mostly_the_largest_error_of_the_sequence():
    agent, _, sample, _ = learning()
    errors = np.random.default_rng(0).random((B, T)).astype(np.float32)
    found = agent._priorities(jnp.asarray(errors.ravel()), sample)
    for i, length in enumerate(LENGTHS):
        taken = errors[i, :length]
        expected = (0.9 * taken.max() + 0.1 * taken.mean()) ** 0.9
        np.testing.assert_allclose(found[i], expected, rtol=1e-5)


def test_the_trace_of_a_single_step_has_length_one():
    """Whatever the padding behind it would add."""
    agent, state, _, _ = learning()
    items = items_of(3, [1] * B, ["truncated", "terminated"] * (B // 2))
    norm = agent.representation.normalise
    found = quick(agent.backbone.diagnose, static_argnums=0)(
        norm, state.target, state.network, items
    )
    assert float(found["trace_length"]) == 1.0


def test_acting_keeps_the_recurrent_state_and_resets_it_where_an_episode_begins():
    agent, state, _, _ = played()
    policy = agent.init_policy(state)
    actor = agent.init_actor(2, jax.random.key(0))
    moved = actor._replace(carry=jax.tree.map(lambda x: x + 1.0, actor.carry))
    observation, zeros = jnp.ones((2, 4)), jnp.zeros(2)
    timestep = Timestep(observation, jnp.asarray([True, False]), zeros, zeros.astype(jnp.int32))
    for greedy in (False, True):
        act = functools.partial(agent.act, policy, greedy=greedy)
        _, extras, after = act(moved, timestep, jax.random.key(1))
        _, _, fresh = act(actor, timestep, jax.random.key(1))
        before = np.asarray(extras["carry"].hidden)
        np.testing.assert_array_equal(before, np.stack([np.zeros(7), np.ones(7)]))
        np.testing.assert_array_equal(after.carry.hidden[0], fresh.carry.hidden[0])
        assert np.abs(after.carry.hidden[1] - fresh.carry.hidden[1]).max() > 1e-3


def test_the_weights_of_rows_add_up_to_the_steps_of_the_replay():
    agent, _, ring, _ = played()
    given = rows(ring, agent.window, jax.random.key(0), 10_000)
    weight = np.asarray(agent.row_weights(given)).reshape(-1, T)
    mask = np.asarray(given.items.mask[:, BURN:]) & (np.asarray(given.weight) > 0)[:, None]
    assert (weight[~mask] == 0).all()
    assert weight.sum() == pytest.approx(float(given.steps), rel=1e-5)
    assert len(np.unique(weight[mask])) == 1


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="--operator retrace needs sequences"):
        changed(backbone=FeedForward())
    with pytest.raises(ValueError, match="--q-solver least_squares regresses on transitions"):
        changed(representation=Spectral(solver=LeastSquares()))
    for name, value in (("lstm", 0), ("trained", 0), ("burn_in", -1), ("period", 31)):
        with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} must be"):
            Recurrent(**{name: value})
    assert Epsilon().any_scale
    assert not Plain().needs_following
