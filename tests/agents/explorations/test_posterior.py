"""Thompson sampling and UCB against their formulas in NumPy."""

# ruff: noqa: TID252

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_bellman import posterior
from spectral_bellman.agents import Progress
from spectral_bellman.agents.explorations import UCB, ReplayFeatures, Thompson
from spectral_bellman.agents.explorations.api import ExplorationContext
from spectral_bellman.agents.explorations.posterior import posterior_noise

from ..matrices import floats
from ..quick import quick

N, A, D = 5, 3, 4
RIDGE, SCALE = 0.1, 0.7
SETTING = ExplorationContext(
    dimension=D, discount=0.75, warmup_steps=100, round_items=64, largest_value=2.0
)
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(12, D))
SIGMA = RIDGE * np.eye(D) + ROWS.T @ ROWS
FACTOR = np.linalg.cholesky(SIGMA)
PHI = RNG.normal(size=(N, A, D)).astype(np.float32)
THETA = RNG.normal(size=D).astype(np.float32)


def progress(agent_steps: int) -> Progress:
    return Progress(jnp.asarray(agent_steps), jnp.asarray(0))


def replay_features(phi: np.ndarray, weight: np.ndarray) -> ReplayFeatures:
    count = len(phi)
    return ReplayFeatures(
        phi=floats(phi),
        phi_next=jnp.zeros((count, A, D)),
        reward=jnp.zeros(count),
        discount=jnp.zeros(count),
        weight=floats(weight),
        slot=jnp.arange(count),
    )


def test_noise_is_the_inverse_of_the_transposed_factor():
    noise = posterior_noise(floats(FACTOR), floats(SCALE))
    expected = np.sqrt(SCALE) * np.linalg.inv(FACTOR).T
    np.testing.assert_allclose(noise, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [Thompson, UCB])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_published_is_the_noise_of_the_weighted_rows(config, weighted):
    """Σ = λI + Σ_n w_n φ_n φ_nᵀ, and σ = λ_min(Σ)/(d(1 − γ)) times the factor asked for."""
    weight = np.arange(12) / 4 if weighted else np.ones(12)
    settings = config(ridge=RIDGE, noise_scale=3.0, noise_anneal_steps=200)
    exploration = settings.build(SETTING)
    sigma = RIDGE * np.eye(D) + ROWS.T @ (ROWS * weight[:, None])
    scale = 3 * np.linalg.eigvalsh(sigma)[0] / (D * 0.25)
    key = jax.random.key(0)
    kept = exploration.init(key)
    np.testing.assert_array_equal(exploration.publish(kept, None, progress(0), key)[1], kept)
    kept, noise = quick(exploration.publish)(kept, replay_features(ROWS, weight), progress(0), key)
    expected = np.sqrt(scale) * np.linalg.inv(np.linalg.cholesky(sigma)).T
    np.testing.assert_allclose(noise, expected, rtol=1e-4, atol=1e-5)
    # Between two precision matrices the schedule goes on.
    same, half = exploration.publish(kept, None, progress(200), key)
    np.testing.assert_array_equal(same, kept)
    np.testing.assert_allclose(half, 0.5 * expected, rtol=1e-4, atol=1e-5)


def test_the_precision_matrix_has_fifty_rows_a_feature_and_is_rebuilt_as_often_as_is_cheap():
    """A row costs a quarter of a transition that is learned from, of which a round has 64."""
    assert (Thompson().rows(D), Thompson(precision_samples=7).rows(D)) == (200, 7)
    assert Thompson().rounds(SETTING) == 4  # 256 rows are a quarter of 4 rounds' learning
    assert Thompson().rounds(SETTING._replace(round_items=200)) == 1
    assert Thompson().rounds(SETTING._replace(round_items=199)) == 2
    assert Thompson(precision_samples=641).rounds(SETTING) == 11
    assert Thompson(precision_rounds=3).rounds(SETTING) == 3
    exploration = UCB(precision_samples=640).build(SETTING)
    assert (exploration.rows, exploration.every) == (640, 10)


def test_thompson_values():
    exploration = Thompson().build(SETTING)
    z = exploration.init_actor(N, jax.random.key(0))
    noise = np.sqrt(SCALE) * np.linalg.inv(FACTOR).T
    drawn = THETA[None] + np.asarray(z) @ noise.T
    expected = np.einsum("nad,nd->na", PHI, drawn)
    found = exploration.values(floats(THETA), floats(noise), z, floats(PHI))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert exploration.update_actor(noise, z) is z


def test_thompson_noise_is_bounded_when_asked():
    exploration = Thompson(noise_bound=True).build(SETTING)  # R_max/(1 − γ) = 2
    z = floats([[3.0, 4.0, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0]])
    values = exploration.values(floats(THETA), jnp.eye(D), z, floats(PHI[:2]))
    drawn = THETA[None] + np.array([[1.2, 1.6, 0, 0], [0.6, 0.8, 0, 0]])
    expected = np.einsum("nad,nd->na", PHI[:2], drawn)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


def test_ucb_adds_the_bonus_of_the_posterior():
    exploration = UCB().build(SETTING)
    noise = posterior_noise(floats(FACTOR), floats(SCALE))
    actor = exploration.init_actor(N, jax.random.key(0))
    values = exploration.values(floats(THETA), noise, actor, floats(PHI))
    bonus = posterior.ucb_bonus(floats(PHI), floats(SIGMA), SCALE)
    brute = np.sqrt(SCALE * np.einsum("nad,de,nae->na", PHI, np.linalg.inv(SIGMA), PHI))
    np.testing.assert_allclose(bonus, brute, rtol=1e-4)
    np.testing.assert_allclose(values, PHI @ THETA + np.asarray(bonus), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [Thompson, UCB])
def test_without_noise_all_are_greedy_in_q(config):
    exploration = config().build(SETTING)
    actor = exploration.init_actor(N, jax.random.key(0))
    found = exploration.values(floats(THETA), exploration.init_noise(), actor, floats(PHI))
    np.testing.assert_allclose(found, PHI @ THETA, rtol=1e-4)
    assert [float(exploration.epsilon(jnp.asarray(n))) for n in (0, 10_000)] == [0, 0]


def test_the_deviation_of_the_noise_by_hand():
    fixed = Thompson(noise_scale=0.25)
    assert float(fixed.deviation(SETTING, progress(10_000))) == 0.5
    falling = Thompson(noise_scale=0.25, noise_anneal_steps=200)
    steps = (0, 100, 150, 200, 300, 1_000)
    found = [float(falling.deviation(SETTING, progress(n))) for n in steps]
    np.testing.assert_allclose(found, [0.5, 0.5, 0.375, 0.25, 0, 0], atol=1e-6)


def test_the_spread_of_the_values_and_the_largest_uncertainty():
    """Of z ~ N(0, I): how far the gaps between actions move, and √(σ φ̄ᵀΣ⁻¹φ̄)."""
    exploration = Thompson().build(SETTING)
    noise = np.sqrt(SCALE) * np.linalg.inv(FACTOR).T
    taken = PHI[:, 0]
    padded = [np.concatenate([x, 9 * np.ones_like(x)]) for x in (PHI, taken)]
    mask = jnp.arange(2 * len(PHI)) < len(PHI)
    given = (floats(noise), *map(floats, padded), mask)
    found = exploration.diagnose(*given, jax.random.key(0))
    mean = taken.mean(axis=0)
    expected = np.sqrt(SCALE * mean @ np.linalg.inv(SIGMA) @ mean)
    np.testing.assert_allclose(found["max_uncertainty"], expected, rtol=1e-4)
    centred = PHI - PHI.mean(axis=1, keepdims=True)
    spread = np.linalg.norm(centred @ noise, axis=-1).mean()
    np.testing.assert_allclose(found["ts_q_gap"], spread, rtol=0.2)  # 64 draws


@pytest.mark.parametrize("config", [Thompson, UCB])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_scale": -1.0}, "--noise-scale must be 0 or more, got -1.0"),
        ({"noise_anneal_steps": -1}, "--noise-anneal-steps must be 0 or more"),
        ({"ridge": 0.0}, "--ridge must be positive"),
        ({"precision_samples": -1}, "--precision-samples must be 0 or more"),
        ({"precision_rounds": -1}, "--precision-rounds must be 0 or more"),
    ],
)
def test_numbers_out_of_range_are_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)
