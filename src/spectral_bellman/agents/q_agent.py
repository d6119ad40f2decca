"""``QAgent``: its config selects a row of the paper's tables.

A round (Algorithm 2) is: collect with a published policy; fit θ̂; publish the next policy from φ,
θ̂ and Σ, and copy φ and θ̂ to the target network; learn φ. Round t publishes (φ_t, θ̂_{t+1}). The
copy of this pair gives the targets of φ_{t+1} in the same round, and of θ̂_{t+2} in the next round.
A representation that learns φ and θ̂ together does so before publishing, as DQN does.

The backbone computes φ, and turns what the replay holds into rows. The rest of the agent is the
same for transitions and for sequences.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from spectral_bellman import posterior
from spectral_bellman._arrays import RandomKey, returned_again
from spectral_bellman.agents import diagnostics
from spectral_bellman.agents.api import (
    Phase,
    Progress,
    Terms,
    Timestep,
    first_timestep,
    where_first,
)
from spectral_bellman.agents.backbones.api import Torso
from spectral_bellman.agents.backups import RetraceOperator
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.explorations.api import (
    ROWS_PER_FEATURE,
    ExplorationContext,
    ReplayFeatures,
    choose,
)
from spectral_bellman.agents.features import taken
from spectral_bellman.agents.optimisers import clip_gradient, descend
from spectral_bellman.agents.representations.api import (
    AdamSolver,
    Backup,
    Batch,
    LeastSquares,
    Problem,
    Target,
)
from spectral_bellman.agents.schedules import linear, warm_up
from spectral_bellman.agents.state import Actor, Policy, TrainState
from spectral_bellman.networks import uniform_weights, xavier_weights
from spectral_bellman.replay import Rows, Sample

BEGINNING = Progress(jnp.int32(0), jnp.int32(0))


class QAgent:
    """An agent for environments with this observation and this many actions."""

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
            rescaling=config.rescaling,
            double=config.double,
            priorities=config.sampling.sampler().by_priority,
            following=config.representation.needs_following,
        )
        torso = Torso(config.network, config.hidden)
        self.backbone = config.backbone.build(self.problem, config.operator, torso)
        self.window, self.sampler = self.backbone.window, config.sampling.sampler()
        self.representation = config.representation.build(self.problem, self.backbone.single)
        self.exploration = config.exploration.build(
            ExplorationContext(
                dimension=self.representation.dimension,
                discount=config.discount,
                warmup_steps=config.warmup_steps,
                round_items=config.updates * config.batch * self.backbone.rows,
                largest_value=config.largest_value,
            )
        )
        # Rows of the replay are drawn as whole items.
        self.publish_rows = -(-self.exploration.rows // self.backbone.rows)
        self.publish_distinct = self.exploration.distinct
        self.publish_every = self.exploration.every
        self.diagnostic_items = -(-diagnostics.ITEMS // self.backbone.rows)
        self.diagnostic_rows = 0
        if config.representation.has_features:
            # As many as the exploration builds Σ from: fewer would show a smaller λ_min.
            most = max(diagnostics.ROWS, ROWS_PER_FEATURE * self.representation.dimension)
            wanted = min(self.exploration.rows or diagnostics.ROWS, most)
            self.diagnostic_rows = -(-wanted // self.backbone.rows)
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
        network = self.backbone.network(self.num_actions, d, keys[0])
        if self.config.initial_weights == "uniform":
            network = uniform_weights(network, keys[0])
        elif self.config.initial_weights == "xavier":
            network = xavier_weights(network, keys[0])
        elif part.zero_q_head:
            # The maximum over random values is too large, and it takes long to unlearn.
            weight = network.head.weight.reshape(self.num_actions, d, -1).at[:, 0].set(0.0)
            network = eqx.tree_at(
                lambda x: x.head.weight, network, weight.reshape(network.head.weight.shape)
            )
        theta = part.init_theta(keys[1])
        beside, kept = part.init(keys[2], theta)
        target = Target(network, theta, part.target_of(beside), self._retrace_epsilon(BEGINNING))
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
        exploration = self.exploration.init_actor(num_envs, key)
        return Actor(exploration, self.backbone.init_carry(num_envs))

    def init_policy(self, state: TrainState) -> Policy:
        """The policy before the first round: random actions."""
        network, theta = jax.tree.map(jnp.copy, (state.network, state.theta))
        return Policy(network, theta, self.exploration.init_noise(), jnp.ones(()))

    def act(
        self,
        policy: Policy,
        actor: Actor,
        timestep: Timestep,
        key: RandomKey,
        *,
        greedy: bool = False,
    ) -> tuple[Int[Array, " N"], dict[str, Array], Actor]:
        """Actions of N environments, extras for the replay, and the actor state.

        The extras are the probability of each action and, for a recurrent agent, the recurrent
        state before the observation. With ``greedy``, actions are ε-greedy in φᵀθ̂, ε being
        ``eval_epsilon``.
        """
        episode_key, action_key = jax.random.split(key)
        carry = where_first(timestep.first, self._zero_carry(timestep), actor.carry)
        raw, after = self.backbone.step(policy.network, carry, timestep)
        phi = self.representation.normalise(raw)
        if greedy:
            episode, values = actor.exploration, phi @ policy.theta
            epsilon, action_key = jnp.asarray(self.config.eval_epsilon), key
        else:
            fresh = self._begin_episode(actor.exploration, len(timestep.first), episode_key)
            episode = where_first(timestep.first, fresh, actor.exploration)
            episode = self.exploration.update_actor(policy.noise, episode)
            values = self.exploration.values(policy.theta, policy.noise, episode, phi)
            epsilon = jnp.maximum(policy.epsilon, self.exploration.own_epsilon(episode))
        action, prob = choose(values, epsilon, action_key)
        extras = {"behaviour_prob": prob}
        if jax.tree.leaves(carry):
            extras["carry"] = carry
        return action, extras, Actor(episode, after)

    def _begin_episode(self, actor: Any, num_envs: int, key: RandomKey) -> Any:
        begin = self.exploration.begin_episode
        return self.exploration.init_actor(num_envs, key) if begin is None else begin(actor, key)

    def _zero_carry(self, timestep: Timestep) -> Any:
        return self.backbone.init_carry(len(timestep.first))

    def values(self, policy: Policy, observation: Array) -> Float[Array, "N A"]:
        """Q = φᵀθ̂ of a policy, each observation taken as the first of an episode."""
        timestep = first_timestep(observation)
        raw, _ = self.backbone.step(policy.network, self._zero_carry(timestep), timestep)
        return self.representation.normalise(raw) @ policy.theta

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
        noise = self.exploration.init_noise()
        if self.exploration.publish is not None:
            replay = None if rows is None else self._replay_features(state, rows)
            learned, noise = self.exploration.publish(state.exploration, replay, progress, key)
            state = state._replace(exploration=learned)
        network, theta = returned_again((state.network, state.theta), progress.round >= 0)
        target = Target(
            state.network,
            state.theta,
            self.representation.target_of(state.beside),
            self._retrace_epsilon(progress),
        )
        # ``jnp.where`` even if the copy is always due: see ``returned_again``.
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
        self, state: TrainState, policy: Policy, items: Any, rows: Rows | None, key: RandomKey
    ) -> Terms:
        """Diagnostics on held-out items and rows of the replay."""
        return diagnostics.diagnose(self, state, policy, items, rows, key)

    def features_taken(self, network: Any, items: Any) -> Float[Array, "R d"]:
        """φ(s, a) of the rows of a batch."""
        return self.representation.normalise(self.backbone.taken(network, items))

    def row_weights(self, rows: Rows) -> Float[Array, " R"]:
        """How many steps of the replay each row stands for; 0 for padding.

        ``rows.weight`` counts items. Sequences overlap and may contain padding, so the weights of
        their rows are rescaled to sum to the number of steps in the replay.
        """
        if not self.backbone.padded:
            return rows.weight
        weight = jnp.where(self.backbone.mask(rows.items), rows.weight[:, None], 0.0).ravel()
        return weight * rows.steps / jnp.maximum(jnp.sum(weight), 1.0)

    def _retrace_epsilon(self, progress: Progress) -> Float[Array, ""]:
        operator = self.config.operator
        if not isinstance(operator, RetraceOperator) or not operator.policy_epsilon_steps:
            return jnp.zeros(())
        steps, begin = operator.policy_epsilon_steps, self.config.warmup_steps
        return linear(progress.agent_steps, begin, steps, 1.0, 0.0)

    def _phase(self, steps: int, prepare: Any, update: Any) -> Phase:
        d, rows = self.representation.dimension, self.backbone.rows
        floats = self.num_actions * d + math.prod(self.observation.shape)
        batch = self.config.batch
        return Phase(
            steps,
            prepare,
            update,
            batch=batch,
            step_bytes=batch * rows * floats * 4,
            # Double Q-learning looks at the network as it is before each step.
            one_by_one=self.config.double,
        )

    def _replay_features(self, state: TrainState, rows: Rows) -> ReplayFeatures:
        norm, view = self.representation.normalise, self.backbone.view(state.network, rows.items)
        slot = (rows.slot * self.backbone.rows)[:, None] + jnp.arange(self.backbone.rows)[None]
        return ReplayFeatures(
            norm(taken(view.phi, view.action)),
            norm(view.phi_next),
            view.reward,
            view.discount,
            weight=self.row_weights(rows),
            slot=slot.ravel(),
        )

    def _learned(self, network: Any, sample: Sample) -> Batch:
        """The rows of a batch."""
        phi, backbone = self.features_taken(network, sample.items), self.backbone
        weight = None
        if backbone.padded or self.sampler.by_priority:
            mask = backbone.mask(sample.items)
            weight = jnp.where(mask, sample.weight[:, None], 0.0).ravel()
        return Batch(phi, weight, backbone.rows)

    def _priorities(self, errors: Array | None, sample: Sample) -> Array | None:
        if errors is None or not self.sampler.by_priority:
            return None
        mask = self.backbone.mask(sample.items)
        return self.config.sampling.priority(errors.reshape(mask.shape), mask)

    def _backup(self, state: TrainState, items: Any) -> Backup:
        norm = self.representation.normalise
        return self.backbone.backup(norm, state.target, state.network, items)

    def _prepare(self, state: TrainState, samples: Sample, key: RandomKey) -> Any:
        def one(sample: Sample, key: RandomKey) -> Any:
            backup = self._backup(state, sample.items)
            return self.representation.prepare(backup, state.beside, state.kept, key)

        return jax.vmap(one)(samples, jax.random.split(key, len(samples.weight)))

    def _update(
        self, state: TrainState, sample: Sample, prepared: Any
    ) -> tuple[TrainState, Terms, Array | None]:
        part = self.representation

        def loss(trained: tuple[Any, Any]) -> tuple[Array, Any]:
            network, beside = trained
            return part.loss(self._learned(network, sample), beside, state.kept, prepared)

        trained = (state.network, state.beside)
        gradient, (kept, terms, errors) = jax.grad(loss, has_aux=True)(trained)
        gradient = clip_gradient(gradient, self.config.gradient_clip)
        (network, beside), optimiser = descend(part.optimiser, gradient, state.optimiser, trained)
        state = state._replace(network=network, beside=beside, kept=kept, optimiser=optimiser)
        if part.theta_of is not None:
            state = state._replace(theta=part.theta_of(beside))
        return state, terms, self._priorities(errors, sample)

    def _prepare_theta(
        self, state: TrainState, samples: Sample, _: RandomKey
    ) -> tuple[tuple[Array, Array | None], Array]:
        def one(sample: Sample) -> tuple[Any, Array]:
            rows, targets = self._learned(state.network, sample), self._q_targets(state, sample)
            return (rows.phi, rows.weight), targets

        return jax.vmap(one)(samples)

    def _q_targets(self, state: TrainState, sample: Sample | Rows) -> Array:
        return self._backup(state, sample.items).of(state.target.theta, state.theta)

    def _update_theta(
        self, state: TrainState, sample: Sample, prepared: tuple[Any, Array]
    ) -> tuple[TrainState, Terms, Array | None]:
        (phi, weight), targets = prepared
        error = phi @ state.theta - targets
        if weight is None:
            gradient, loss = 2 * (error @ phi) / len(error), jnp.mean(jnp.square(error))
        else:
            share = weight / jnp.maximum(jnp.sum(weight), 1e-12)
            gradient, loss = 2 * ((share * error) @ phi), jnp.sum(share * jnp.square(error))
        theta, optimiser = descend(
            self.theta_optimiser, gradient, state.theta_optimiser, state.theta
        )
        state = state._replace(theta=theta, theta_optimiser=optimiser)
        return state, {"q": loss}, self._priorities(jnp.abs(error), sample)

    def _regress(self, state: TrainState, rows: Rows, _: Any) -> tuple[TrainState, Terms, None]:
        solver = self.representation.solver
        assert isinstance(solver, LeastSquares)
        phi, targets = self.features_taken(state.network, rows.items), self._q_targets(state, rows)
        # Without the barrier XLA fuses the concatenation with the computation of its inputs, and
        # the result is too large for a GPU kernel.
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
