"""PVN, on networks that are a matrix: NumPy can say every number."""

# ruff: noqa: TID252

import functools

import jax
import jax.numpy as jnp
import numpy as np

from spectral_bellman.agents.representations import PVN
from spectral_bellman.agents.representations.pvn import Indicators, Prepared

from ..matrices import (
    BATCH,
    GAMMA,
    TARGET_WEIGHT,
    WEIGHT,
    B,
    D,
    S,
    floats,
    linear,
    loss_of,
    of_unit_norm,
    phi_of,
    prepared,
    problem,
    single,
    taken_of,
    target_of,
)
from ..quick import quick

TASKS = 6


def built(**changes):
    part = PVN(features=D, pvn_networks=2, pvn_outputs=3, **changes).build(problem(), single)
    return part, *quick(part.init)(jax.random.key(0), jnp.zeros(D))


def test_pvn_by_hand():
    part, indicators, kept = built(pvn_quantile=0.2)
    rng = np.random.default_rng(4)
    assert indicators.weights.shape == (TASKS, D)
    old_weights = rng.normal(size=(TASKS, D))
    copies = Indicators(floats(old_weights), jnp.zeros(TASKS))
    target = target_of(TARGET_WEIGHT, np.zeros(D), copies)
    ready = prepared(part, target, kept, BATCH, beside=indicators)
    frozen = np.asarray(kept.networks.head.weight)  # (networks, outputs, S)
    assert not np.allclose(frozen[0], frozen[1])
    output = np.einsum("nos,bs->bno", frozen, np.asarray(BATCH.observation)).reshape(B, TASKS)
    np.testing.assert_allclose(ready.output, output, rtol=1e-4, atol=1e-5)
    mean = of_unit_norm(phi_of(TARGET_WEIGHT, BATCH.next_observation)).mean(axis=1)
    future = GAMMA * np.asarray(BATCH.discount)[:, None] * (mean @ old_weights.T)
    np.testing.assert_allclose(ready.future, future, rtol=1e-4, atol=1e-5)

    bias = rng.normal(size=TASKS)
    indicators = indicators._replace(bias=floats(bias))
    loss, (after, terms, priorities) = quick(functools.partial(loss_of, part))(
        linear(WEIGHT), indicators, kept, BATCH, ready
    )
    excess = output + bias
    phi = taken_of(of_unit_norm(phi_of(WEIGHT, BATCH.observation)), BATCH)
    error = phi @ np.asarray(indicators.weights).T - (excess > 0) - future
    np.testing.assert_allclose(terms["pvn"], np.mean(error**2), rtol=1e-4)
    pinball = np.where(excess > 0, 0.8 * excess, -0.2 * excess)
    np.testing.assert_allclose(terms["quantile"], np.mean(pinball), rtol=1e-4)
    np.testing.assert_allclose(loss, terms["pvn"] + terms["quantile"], rtol=1e-5)
    np.testing.assert_allclose(part.covariances(after).feature, phi.T @ phi / B, rtol=1e-4)
    np.testing.assert_allclose(priorities, np.mean(np.abs(error), axis=1), rtol=1e-4)


def test_the_target_has_a_copy_of_the_indicators():
    part, indicators, _ = built()
    assert part.target_of(indicators) is indicators


def test_the_bias_learns_to_fire_on_the_share_that_was_asked():
    part, _, kept = built(pvn_quantile=0.1)
    count, rng = 2_000, np.random.default_rng(5)
    spread, offset = np.linspace(0.5, 1.5, TASKS), np.linspace(-1, 1, TASKS)
    output = floats(rng.normal(size=(count, TASKS)) * spread + offset)
    batch = jax.tree.map(lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype), BATCH)
    network, ready = linear(WEIGHT), Prepared(output, jnp.zeros((count, TASKS)))
    assert batch.observation.shape == (count, S)

    def loss(bias):
        indicators = Indicators(jnp.zeros((TASKS, D)), bias)
        return loss_of(part, network, indicators, kept, batch, ready)[0]

    def learned(bias):
        return jax.lax.fori_loop(0, 300, lambda _, b: b - TASKS * jax.grad(loss)(b), bias)

    bias = quick(learned)(jnp.zeros(TASKS))
    shares = np.mean(np.asarray(output) + np.asarray(bias) > 0, axis=0)
    np.testing.assert_allclose(shares, np.full(TASKS, 0.1), atol=0.01)


def test_the_weights_of_rows_count_in_both_terms():
    part, indicators, kept = built(pvn_quantile=0.2)
    rng, counts = np.random.default_rng(6), np.array([2, 0, 1, 1, 0.5, 0.5])
    output, future = rng.normal(size=(2, B, TASKS))
    ready = Prepared(floats(output), floats(future))
    _, (after, terms, _) = quick(functools.partial(loss_of, part))(
        linear(WEIGHT), indicators, kept, BATCH, ready, floats(counts)
    )
    phi = taken_of(of_unit_norm(phi_of(WEIGHT, BATCH.observation)), BATCH)
    error = phi @ np.asarray(indicators.weights).T - (output > 0) - future
    squares, share = np.mean(error**2, axis=1), counts / 5
    np.testing.assert_allclose(terms["pvn"], share @ squares, rtol=1e-4)
    pinball = np.mean(np.where(output > 0, 0.8 * output, -0.2 * output), axis=1)
    np.testing.assert_allclose(terms["quantile"], share @ pinball, rtol=1e-4)
    covariance = phi.T @ (phi * share[:, None])
    found = part.covariances(after).feature
    np.testing.assert_allclose(found, covariance, rtol=1e-4, atol=1e-6)
