"""The feed-forward agent: every DQN row of the paper's tables, by the choices of its config.

A round (Algorithm 2) is: collect with a published policy; fit θ̂; publish the next policy from φ,
θ̂ and Σ, and copy the target network; learn φ. So φ of this round and θ̂ of the next are fitted to
backups of one value function, φ_tᵀθ̂_{t+1}, which was itself fitted. A representation that learns
φ and θ̂ together does so before publishing, as DQN does.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from spectral_bellman import posterior
from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import diagnostics
from spectral_bellman.agents.api import Phase, Progress, Terms, Timestep, where_first
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.explorations.api import Evidence, Setting, choose
from spectral_bellman.agents.optimisers import descend
from spectral_bellman.agents.representations.api import (
    AdamSolver,
    LeastSquares,
    Problem,
    Target,
    q_targets,
)
from spectral_bellman.agents.schedules import warm_up
from spectral_bellman.networks import (
    FeatureNetwork,
    feature_network,
    uniform_weights,
    xavier_weights,
)
from spectral_bellman.replay import OneStep, Rows, Transition


class TrainState(NamedTuple):
    """All that learns, and the target copies."""

    network: FeatureNetwork
    theta: Float[Array, " d"]
    beside: Any
    """What is trained beside φ: θ̃, say."""
    kept: Any
    """What the representation carries along: Λ1 and Λ2, frozen networks."""
    target: Target
    optimiser: Any
    theta_optimiser: Any
    exploration: Any
    """What the exploration keeps."""


class Policy(NamedTuple):
    """A snapshot that acts: φ, θ̂, the noise around it, and ε."""

    network: FeatureNetwork
    theta: Float[Array, " d"]
    noise: Any
    epsilon: Float[Array, ""]


Actor = Any
"""What the exploration keeps for each environment."""


class QAgent:
    """An agent for environments with this observation and this many actions."""

    window = OneStep()

    def __init__(
        self, config: AgentConfig, observation: jax.ShapeDtypeStruct, num_actions: int
    ) -> None:
        self.config, self.observation, self.num_actions = config, observation, num_actions
        self.problem = Problem(
            observation=observation,
            num_actions=num_actions,
            discount=config.discount,
            reward_clip=config.reward_clip,
            learning_rate=config.learning_rate,
            head_rate=config.head_rate,
            adam_epsilon=config.adam_epsilon,
            random_network=self._network,
        )
        self.representation = config.representation.build(self.problem)
        self.exploration = config.exploration.build(
            Setting(
                dimension=self.representation.dimension,
                discount=config.discount,
                warmup_steps=config.warmup_steps,
                round_items=config.updates * config.batch,
                largest_value=config.largest_value,
            )
        )
        self.publish_rows, self.publish_every = self.exploration.rows, self.exploration.every
        self.diagnostic_rows = 0
        if config.representation.has_features:
            rows = self.publish_rows or diagnostics.ROWS
            self.diagnostic_rows = min(rows, diagnostics.ROWS)
        solver = self.representation.solver
        self.theta_optimiser = (
            optax.adam(solver.q_learning_rate, eps=config.adam_epsilon)
            if isinstance(solver, AdamSolver)
            else None
        )

    def init(self, key: RandomKey) -> TrainState:
        """A state that has learned nothing."""
        part, d = self.representation, self.representation.dimension
        keys = jax.random.split(key, 3)
        network = self._network(self.num_actions, d, keys[0])
        if self.config.initial_weights == "uniform":
            network = uniform_weights(network, keys[0])
        elif self.config.initial_weights == "xavier":
            network = xavier_weights(network, keys[0])
        elif part.zero_q_head:
            # Random values would be overestimated by the maximum, and take long to forget.
            weight = network.head.weight.reshape(self.num_actions, d, -1).at[:, 0].set(0.0)
            network = eqx.tree_at(
                lambda x: x.head.weight, network, weight.reshape(network.head.weight.shape)
            )
        theta = part.init_theta(keys[1])
        beside, kept = part.init(keys[2], theta)
        target = Target(network, theta, part.target_of(beside))
        optimiser = self.theta_optimiser
        return TrainState(
            network=network,
            theta=theta,
            beside=beside,
            kept=kept,
            target=jax.tree.map(jnp.copy, target),  # a state is donated: no buffer twice
            optimiser=part.optimiser.init((network, beside)),
            theta_optimiser=optimiser.init(theta) if optimiser else (),
            exploration=self.exploration.init(jax.random.fold_in(keys[1], 1)),
        )

    def init_actor(self, num_envs: int, key: RandomKey) -> Actor:
        """What belongs to each of ``num_envs`` environments."""
        return self.exploration.init_actor(num_envs, key)

    def init_policy(self, state: TrainState) -> Policy:
        """The policy before the first round: random actions."""
        network, theta = jax.tree.map(jnp.copy, (state.network, state.theta))
        return Policy(network, theta, self.exploration.no_noise(), jnp.ones(()))

    def act(
        self,
        policy: Policy,
        actor: Actor,
        timestep: Timestep,
        key: RandomKey,
        *,
        greedy: bool = False,
    ) -> tuple[Int[Array, " N"], dict[str, Array], Actor]:
        """Actions of N environments, the probabilities they were chosen with, and the actor state.

        With ``greedy``, actions are ε-greedy in φᵀθ̂, ε being ``eval_epsilon``.
        """
        if greedy:
            values = self.values(policy, timestep.observation)
            action, prob = choose(values, jnp.asarray(self.config.eval_epsilon), key)
            return action, {"behaviour_prob": prob}, actor
        episode_key, action_key = jax.random.split(key)
        fresh = self.init_actor(len(timestep.first), episode_key)
        actor = self.exploration.follow(policy.noise, where_first(timestep.first, fresh, actor))
        phi = self.representation.features(policy.network, timestep.observation)
        values = self.exploration.values(policy.theta, policy.noise, actor, phi)
        action, prob = choose(values, policy.epsilon, action_key)
        return action, {"behaviour_prob": prob}, actor

    def values(self, policy: Policy, observation: Array) -> Float[Array, "N A"]:
        """Q = φᵀθ̂ of a policy."""
        return self.representation.features(policy.network, observation) @ policy.theta

    def phases(self) -> tuple[Sequence[Phase], Sequence[Phase]]:
        """What is learned in a round before the policy is published, and what after."""
        updates, solver = self.config.updates, self.representation.solver
        if solver is None:
            return [self._phase(updates, self._prepare, self._update)], []
        if isinstance(solver, AdamSolver):
            before = self._phase(solver.q_steps, self._prepare_theta, self._update_theta)
            updates -= solver.q_steps
        else:
            assert isinstance(solver, LeastSquares)
            before = Phase(1, lambda *_: None, self._regress, rows=solver.q_rows)
        learn = self._phase(updates, self._prepare, self._update)
        learn = learn._replace(finish=self._start_theta)
        # Without Q steps, θ̂ comes out of learning φ: publish after it, as DQN does.
        return ([before], [learn]) if before.steps else ([learn], [])

    def publish(
        self, state: TrainState, rows: Rows | None, progress: Progress, key: RandomKey
    ) -> tuple[TrainState, Policy]:
        """The policy (φ_t, θ̂_{t+1}, noise from Σ_t), and its copy as the target, if due."""
        noise = self.exploration.no_noise()
        if self.exploration.publish is not None:
            evidence = None if rows is None else self._evidence(state, rows)
            kept, noise = self.exploration.publish(state.exploration, evidence, progress, key)
            state = state._replace(exploration=kept)
        # Copies: the caller may donate the state, and no buffer can be donated twice.
        network, theta = jax.tree.map(jnp.copy, (state.network, state.theta))
        target = Target(state.network, state.theta, self.representation.target_of(state.beside))
        # A choice even where the copy is always due: state, target and policy would share one θ̂,
        # and of a result returned three times a GPU writes only one, where the arguments were
        # donated (jax issue 39625).
        every = self.config.target_rounds
        due = (progress.round + 1) % every == 0 if every > 1 else progress.round >= 0
        target = jax.tree.map(lambda new, old: jnp.where(due, new, old), target, state.target)
        epsilon = warm_up(
            progress.agent_steps,
            self.config.warmup_steps,
            self.exploration.epsilon(progress.agent_steps),
        )
        return state._replace(target=target), Policy(network, theta, noise, epsilon)

    def diagnose(
        self,
        state: TrainState,
        policy: Policy,
        items: Transition,
        rows: Rows | None,
        key: RandomKey,
    ) -> Terms:
        """Diagnostics on held-out transitions and rows of the replay."""
        return diagnostics.diagnose(self, state, policy, items, rows, key)

    def _network(self, actions: int, d: int, key: RandomKey) -> FeatureNetwork:
        config = self.config
        return feature_network(config.network, config.hidden, self.observation, actions, d, key)

    def _phase(self, steps: int, prepare: Any, update: Any) -> Phase:
        d = self.representation.dimension
        floats = self.num_actions * d + math.prod(self.observation.shape)
        batch = self.config.batch
        return Phase(steps, prepare, update, batch=batch, step_bytes=batch * floats * 4)

    def _evidence(self, state: TrainState, rows: Rows) -> Evidence:
        part, items = self.representation, rows.items
        return Evidence(
            part.features_taken(state.network, items),
            part.features(state.network, items.next_observation),
            *self.problem.rewards_and_discounts(items),
            weight=rows.weight,
            slot=rows.slot,
        )

    def _prepare(self, state: TrainState, batches: Transition, key: RandomKey) -> Any:
        return self.representation.prepare(state.target, state.kept, batches, key)

    def _update(
        self, state: TrainState, batch: Transition, prepared: Any
    ) -> tuple[TrainState, Terms, Array | None]:
        part = self.representation

        def loss(trained: tuple[FeatureNetwork, Any]) -> tuple[Array, Any]:
            return part.loss(*trained, state.kept, batch, prepared)

        trained = (state.network, state.beside)
        gradient, (kept, terms, priorities) = jax.grad(loss, has_aux=True)(trained)
        (network, beside), optimiser = descend(part.optimiser, gradient, state.optimiser, trained)
        state = state._replace(network=network, beside=beside, kept=kept, optimiser=optimiser)
        if part.theta_of is not None:
            state = state._replace(theta=part.theta_of(beside))
        return state, terms, priorities

    def _prepare_theta(
        self, state: TrainState, batches: Transition, _: RandomKey
    ) -> tuple[Array, Array]:
        part = self.representation
        phi = jax.vmap(lambda batch: part.features_taken(state.network, batch))(batches)
        targets = jax.vmap(lambda batch: self._q_targets(state, batch))(batches)
        return phi, targets

    def _q_targets(self, state: TrainState, batch: Transition) -> Array:
        return q_targets(self.representation.normalise, self.problem, state.target, batch)

    def _update_theta(
        self, state: TrainState, _: Transition, prepared: tuple[Array, Array]
    ) -> tuple[TrainState, Terms, Array]:
        phi, targets = prepared
        error = phi @ state.theta - targets
        gradient = 2 * (error @ phi) / len(error)
        theta, optimiser = descend(
            self.theta_optimiser, gradient, state.theta_optimiser, state.theta
        )
        state = state._replace(theta=theta, theta_optimiser=optimiser)
        return state, {"q": jnp.mean(jnp.square(error))}, jnp.abs(error)

    def _regress(self, state: TrainState, rows: Rows, _: Any) -> tuple[TrainState, Terms, None]:
        solver = self.representation.solver
        assert isinstance(solver, LeastSquares)
        phi = self.representation.features_taken(state.network, rows.items)
        targets = self._q_targets(state, rows.items)
        # XLA tries to fuse the concatenation with what made its parts, which no GPU kernel holds.
        columns = jnp.concatenate(jax.lax.optimization_barrier([phi, targets[:, None]]), axis=1)
        scatter = posterior.init_scatter(columns.shape[1])
        scatter = posterior.add_scatter(scatter, columns * jnp.sqrt(rows.weight)[:, None])
        factor = posterior.factor_scatter(scatter, solver.q_ridge)
        return state._replace(theta=posterior.regression_parameters(factor)), {}, None

    def _start_theta(self, state: TrainState) -> TrainState:
        start = self.representation.start_theta
        if start is None:
            return state
        return state._replace(theta=start(state.beside, state.target.theta))
