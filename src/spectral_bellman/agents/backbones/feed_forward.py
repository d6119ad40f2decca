"""φ(s, ·) from one observation, and targets from one step or n."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from spectral_bellman import operators
from spectral_bellman._arrays import RandomKey, product
from spectral_bellman.agents.api import Timestep
from spectral_bellman.agents.backbones.api import Backbone, BackboneConfig, Torso, View
from spectral_bellman.agents.backups import OperatorConfig
from spectral_bellman.agents.features import raw_features, taken
from spectral_bellman.agents.representations.api import Backup, Problem, Target
from spectral_bellman.networks import FeatureNetwork, feature_network
from spectral_bellman.replay import NStep, OneStep, Transition


@dataclass(frozen=True)
class FeedForward(BackboneConfig):
    """φ(s, ·) from one observation; a row is a transition."""

    name: ClassVar[str] = "feed_forward"

    def operators(self) -> tuple[str, ...]:
        """Retrace needs sequences."""
        return ("one_step", "n_step")

    def build(self, problem: Problem, operator: OperatorConfig, torso: Torso) -> Backbone:
        """Transitions of one step or of n."""
        several = operator.name == "n_step"

        def network(actions: int, d: int, key: RandomKey) -> FeatureNetwork:
            return feature_network(*torso, problem.observation, actions, d, key)

        def step(network: Any, carry: Any, timestep: Timestep) -> tuple[Array, Any]:
            return raw_features(network, timestep.observation), carry

        def target_of(items: Transition) -> tuple[Array, Array]:
            return _sums(problem, items) if several else _one(problem, items)

        def view(network: Any, items: Transition) -> View:
            return View(
                raw_features(network, items.observation),
                raw_features(network, items.next_observation),
                items.action,
                *target_of(items),
                jnp.ones(len(items.action), bool),
            )

        def backup(
            norm: Callable[[Array], Array], target: Target, network: Any, items: Transition
        ) -> Backup:
            reward, discount = target_of(items)
            phi_next = norm(raw_features(target.network, items.next_observation))
            following, first_discount = phi_next, discount
            if several and problem.following:
                following = norm(raw_features(target.network, items.following))
                first_discount = problem.discount * items.discount[:, 0]
            online = norm(raw_features(network, items.next_observation)) if problem.double else None

            def values(theta: Array, chooser: Array) -> Array:
                chosen = None if online is None else q_grid(online, chooser)
                return operators.one_step_targets(
                    reward, discount, phi_next, theta, chosen, problem.transform
                )

            return Backup(
                values, target, phi_next, discount, following, first_discount, items.observation
            )

        return Backbone(
            window=NStep(operator.steps, problem.following) if several else OneStep(),
            rows=1,
            network=network,
            single=network,
            init_carry=lambda num_envs: (),
            step=step,
            taken=lambda network, items: taken(
                raw_features(network, items.observation), items.action
            ),
            view=view,
            backup=backup,
            mask=lambda items: jnp.ones((len(items.action), 1), bool),
            padded=False,
        )


def q_grid(phi: Array, theta: Array) -> Array:
    """φ(s, ·)ᵀθ for every s and θ: (M, …, A) of (…, A, d) and (M, d)."""
    flat = product(theta, phi.reshape(-1, phi.shape[-1]).T)
    return flat.reshape(len(theta), *phi.shape[:-1])


def _one(problem: Problem, items: Transition) -> tuple[Array, Array]:
    """r clipped, and γ, or 0 where the episode terminated."""
    return problem.clipped(items.reward), problem.discount * items.discount


def _sums(problem: Problem, items: Transition) -> tuple[Array, Array]:
    """Σ γᵏ r_k over the steps that were taken, and the discount of what comes after them."""
    gamma = jnp.where(items.taken, problem.discount, 1.0)
    discounts = items.discount * gamma
    ahead = jnp.cumprod(discounts, axis=-1)
    before = jnp.concatenate([jnp.ones_like(ahead[:, :1]), ahead[:, :-1]], axis=-1)
    reward = jnp.sum(before * problem.clipped(items.reward), axis=-1)
    return reward, ahead[:, -1]
