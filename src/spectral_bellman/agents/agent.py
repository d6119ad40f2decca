"""The agent: every DQN row of the paper's tables, composed of what the config names. Pure functions over pytrees of arrays.

A round (Algorithm 2) is: collect with the published policy; fit θ̂; publish the next policy from φ, θ̂ and Σ, and copy the target
network; learn φ. So what follows, φ now and θ̂ in the next round, is fitted to backups of one value function, φ_tᵀθ̂_{t+1}, which
was fitted itself. td fits φ and θ̂ with one loss and publishes after it. ``learn`` is all of it but the collecting; a loop that must
not be held up for so long goes through ``stages`` and ``publish`` itself.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from spectral_bellman import objective, posterior
from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents import exploration
from spectral_bellman.agents.config import AgentConfig
from spectral_bellman.agents.exploration import Actor, Policy, Timestep
from spectral_bellman.agents.representation import (
    Target,
    Terms,
    features,
    features_taken,
    first_feature,
    q_targets,
    representation,
    rewards_and_discounts,
)
from spectral_bellman.networks import FeatureNetwork, feature_network, uniform_weights, xavier_weights
from spectral_bellman.objective import Covariances
from spectral_bellman.replay import Replay, Rows, Transition, init_replay, rows, sample

PREPARED_BYTES = 128 * 2**20
"""What the targets of one chunk of gradient steps, computed at once, may need for s' and φ(s', ·)."""

LARGE_BYTES = 8 * 2**20
"""From here on a gradient step is large enough to have a chunk of its own."""


class AgentState(NamedTuple):
    """All that learns, and the target copies."""

    network: FeatureNetwork
    theta: Float[Array, " d"]
    backup: Any
    frozen: Any
    target: Target
    optimiser: Any
    theta_optimiser: Any
    covariances: Covariances
    draws: Array
    """propagated: the keys of the draws."""


class Phase(NamedTuple):
    """A run of gradient steps with targets that stand still."""

    steps: int
    prepare: Callable[[AgentState, Transition, RandomKey], Any]
    """(state, batches (S, B, …), key) -> a pytree with leading axis S."""
    update: Callable[[AgentState, Transition, Any], tuple[AgentState, Terms, Float[Array, " B"]]]
    """(state, batch, prepared) -> state, terms of the loss, priorities."""
    finish: Callable[[AgentState], AgentState] = lambda state: state
    """After a chunk of steps."""


class Stage(NamedTuple):
    """A part of a round's learning, done so many times: draw from the replay, then learn from what was drawn."""

    times: int
    steps: int
    """Gradient steps each time."""
    draw: Callable[[Replay, RandomKey], Any]
    run: Callable[[AgentState, Any, RandomKey], tuple[AgentState, Terms]]


class Agent:
    """An agent for environments with this observation and this many actions."""

    def __init__(self, config: AgentConfig, observation: jax.ShapeDtypeStruct, num_actions: int) -> None:
        self.config, self.observation, self.num_actions = config, observation, num_actions
        self.representation = representation(config, observation)
        self.optimiser = _slower_head(_optimiser(config, config.learning_rate), config.head_rate)
        self.theta_optimiser = _optimiser(config, config.q_learning_rate)

    def init(self, key: RandomKey) -> AgentState:
        """A state that has learned nothing."""
        config, d = self.config, self.config.dimension
        keys = jax.random.split(key, 3)
        network = feature_network(config.network, config.hidden, self.observation, self.num_actions, d, keys[0])
        if config.initial_weights == "uniform":
            network = uniform_weights(network, keys[0])
        elif config.initial_weights == "xavier":
            network = xavier_weights(network, keys[0])
        elif config.q_first:
            # Q starts at 0: the maximum over random values would be taken for worth, and takes long to forget.
            weight = network.head.weight.reshape(self.num_actions, d, -1).at[:, 0].set(0.0)
            network = eqx.tree_at(lambda x: x.head.weight, network, weight.reshape(network.head.weight.shape))
        if config.q_first:
            theta = first_feature(config)
        elif config.representation == "td":
            # θ = 0 gives φ nothing to learn from where both come from one loss; a large θ makes Q large, see above.
            theta = jax.random.normal(keys[1], (d,)) / math.sqrt(d)
        else:
            theta = jnp.zeros(d)
        backup, frozen = self.representation.init(keys[2]) if self.representation else ((), ())
        return AgentState(
            network=network,
            theta=theta,
            backup=backup,
            frozen=frozen,
            # Arrays of their own: a state is donated, and the same buffer must not be given away twice.
            target=jax.tree.map(jnp.copy, Target(network, theta, self._target_backup(backup))),
            optimiser=self.optimiser.init((network, backup) if self.representation else network),
            theta_optimiser=self.theta_optimiser.init(theta),
            covariances=objective.init_covariances(d),
            draws=jax.random.split(keys[1], config.propagated_draws if config.exploration == "propagated" else 0),
        )

    def init_actor(self, num_envs: int, key: RandomKey) -> Actor:
        """What belongs to each of ``num_envs`` environments."""
        return exploration.init_actor(self.config, num_envs, key)

    def init_policy(self, state: AgentState) -> Policy:
        """The policy before the first round: random actions."""
        network, theta = jax.tree.map(jnp.copy, (state.network, state.theta))
        return Policy(network, theta, exploration.no_noise(self.config), jnp.ones(()))

    def act(
        self, policy: Policy, actor: Actor, timestep: Timestep, key: RandomKey
    ) -> tuple[Int[Array, " N"], Float[Array, " N"], Actor]:
        """Actions of N environments, the probabilities they were chosen with, and the actor after them."""
        episode_key, action_key = jax.random.split(key)
        actor = exploration.begin_episodes(actor, timestep.first, self.config, episode_key)
        phi = features(policy.network, timestep.observation, self.config)
        values = exploration.action_values(policy, actor, phi, self.config)
        return *exploration.choose(values, policy.epsilon, action_key), actor

    def act_greedily(
        self, policy: Policy, observation: Array, epsilon: float, key: RandomKey
    ) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
        """Evaluation: ε-greedy in φᵀθ̂, without noise."""
        values = features(policy.network, observation, self.config) @ policy.theta
        return exploration.choose(values, jnp.asarray(epsilon), key)

    def learn(
        self, state: AgentState, replay: Replay, agent_steps: Int[Array, ""], round_number: Int[Array, ""], key: RandomKey
    ) -> tuple[AgentState, Policy, Terms]:
        """One round of learning: the new state, the policy to publish, and the terms of the losses after each chunk of steps."""
        before, after = self.stages()
        keys = jax.random.split(key, 3)

        def run(stage: Stage, state: AgentState, key: RandomKey) -> tuple[AgentState, Terms]:
            def once(state: AgentState, key: RandomKey) -> tuple[AgentState, Terms]:
                return stage.run(state, stage.draw(replay, key), key)

            return jax.lax.scan(once, state, jax.random.split(key, stage.times)) if stage.times else (state, {})

        state, terms = run(before, state, keys[0])
        state, policy = self.publish(state, self.select(replay, keys[1]), agent_steps, round_number, keys[1])
        state, more = run(after, state, keys[2])
        return state, policy, terms | more

    @functools.cached_property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms that a round of learning reports."""
        replay = jax.eval_shape(lambda: init_replay(self.observation, 1, 4, 1))
        key, number = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), jnp.int32)
        return tuple(jax.eval_shape(self.learn, jax.eval_shape(self.init, key), replay, number, number, key)[2])

    def stages(self, most: int = 0) -> tuple[Stage, Stage]:
        """What is learned before the policy is published and what after, in chunks of at most ``most`` gradient steps; 0: any."""
        config = self.config
        if self.representation is None:
            return self._stage(Phase(config.updates, self._prepare_q, self._update_td), most), Stage(0, 0, _nothing, _nothing)
        phase = Phase(config.representation_steps, self._prepare_representation, self._update_representation, self._start_theta)
        after = self._stage(phase, most)
        if config.q_solver == "adam":
            return self._stage(Phase(config.q_steps, self._prepare_theta, self._update_theta), most), after

        def draw(replay: Replay, key: RandomKey) -> Rows:
            return rows(replay, key, config.precision_samples)

        return Stage(1, 0, draw, lambda state, selection, _: (self._regress(state, selection), {})), after

    def select(self, replay: Replay, key: RandomKey) -> Rows | None:
        """The transitions that Σ is made of; None for those who explore without it."""
        if self.config.exploration == "epsilon":
            return None
        return rows(replay, jax.random.split(key)[0], self.config.precision_samples)

    def precision_factor(self, network: FeatureNetwork, selection: Rows) -> Float[Array, "d d"]:
        """L of Σ = λI + Σ_D φφᵀ with the features of ``network``."""
        phi = features_taken(network, selection.transitions, self.config)
        scatter = posterior.init_scatter(self.config.dimension)
        return posterior.factor_scatter(
            posterior.add_scatter(scatter, phi * jnp.sqrt(selection.weight)[:, None]), self.config.ridge
        )

    def _stage(self, phase: Phase, most: int) -> Stage:
        """The steps of a phase in chunks, whose targets are computed at once."""
        if not phase.steps:
            return Stage(0, 0, _nothing, _nothing)
        per_step = self.config.batch * (self.num_actions * self.config.dimension + math.prod(self.observation.shape)) * 4
        most = min(most or phase.steps, 1 if per_step >= LARGE_BYTES else PREPARED_BYTES // per_step)
        chunk = largest_divisor(phase.steps, most)

        def draw(replay: Replay, key: RandomKey) -> Transition:
            return sample(replay, jax.random.split(key)[0], (chunk, self.config.batch))

        def run(state: AgentState, batches: Transition, key: RandomKey) -> tuple[AgentState, Terms]:
            prepared = phase.prepare(state, batches, jax.random.split(key)[1])

            def step(state: AgentState, inputs: tuple[Transition, Any]) -> tuple[AgentState, None]:
                return phase.update(state, *inputs)[0], None

            # The terms are looked at once a chunk: where nobody reads them, XLA leaves out a third of a step.
            state, _ = jax.lax.scan(step, state, jax.tree.map(lambda x: x[:-1], (batches, prepared)))
            state, terms, _ = phase.update(state, *jax.tree.map(lambda x: x[-1], (batches, prepared)))
            return phase.finish(state), terms

        return Stage(phase.steps // chunk, chunk, draw, run)

    def _regress(self, state: AgentState, selection: Rows) -> AgentState:
        phi = features_taken(state.network, selection.transitions, self.config)
        targets = q_targets(state.target, selection.transitions, self.config)
        # XLA cannot put what these are computed from and the concatenation into one GPU kernel, and tries to.
        columns = jnp.concatenate(jax.lax.optimization_barrier([phi, targets[:, None]]), axis=1)
        scatter = posterior.init_scatter(columns.shape[1])
        scatter = posterior.add_scatter(scatter, columns * jnp.sqrt(selection.weight)[:, None])
        return state._replace(theta=posterior.regression_parameters(posterior.factor_scatter(scatter, self.config.ridge)))

    def _prepare_theta(self, state: AgentState, batches: Transition, _: RandomKey) -> tuple[Array, Array]:
        phi = jax.vmap(lambda batch: features_taken(state.network, batch, self.config))(batches)
        return phi, self._prepare_q(state, batches, _)

    def _update_theta(self, state: AgentState, _: Transition, prepared: tuple[Array, Array]) -> tuple[AgentState, Terms, Array]:
        phi, targets = prepared
        error = phi @ state.theta - targets
        gradient = 2 * (error @ phi) / len(error)
        theta, optimiser = _descend(self.theta_optimiser, gradient, state.theta_optimiser, state.theta)
        state = state._replace(theta=theta, theta_optimiser=optimiser)
        return state, {"q": jnp.mean(jnp.square(error))}, jnp.abs(error)

    def _prepare_q(self, state: AgentState, batches: Transition, _: RandomKey) -> Array:
        return jax.vmap(lambda batch: q_targets(state.target, batch, self.config))(batches)

    def _update_td(self, state: AgentState, batch: Transition, targets: Array) -> tuple[AgentState, Terms, Array]:
        """The DQN loss (φ(s, a)ᵀθ − r − γ max_a' φ⁻(s', a')ᵀθ⁻)², in φ and θ together."""

        def loss(network: FeatureNetwork, theta: Array) -> tuple[Array, Array]:
            error = features_taken(network, batch, self.config) @ theta - targets
            return jnp.mean(jnp.square(error)), error

        (value, error), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(state.network, state.theta)
        network, optimiser = _descend(self.optimiser, gradients[0], state.optimiser, state.network)
        state = state._replace(network=network, optimiser=optimiser)
        if not self.config.plain:
            theta, optimiser = _descend(self.theta_optimiser, gradients[1], state.theta_optimiser, state.theta)
            state = state._replace(theta=theta, theta_optimiser=optimiser)
        return state, {"td": value}, jnp.abs(error)

    def _prepare_representation(self, state: AgentState, batches: Transition, key: RandomKey) -> Any:
        assert self.representation is not None
        return self.representation.prepare(state.target, state.frozen, batches, key)

    def _update_representation(self, state: AgentState, batch: Transition, prepared: Any) -> tuple[AgentState, Terms, Array]:
        assert self.representation is not None
        loss_of = self.representation.loss

        def loss(trained: tuple[FeatureNetwork, Any]) -> tuple[Array, tuple[Covariances, Terms]]:
            return loss_of(*trained, batch, prepared, state.covariances)

        trained = (state.network, state.backup)
        gradient, (covariances, terms) = jax.grad(loss, has_aux=True)(trained)
        (network, backup), optimiser = _descend(self.optimiser, gradient, state.optimiser, trained)
        state = state._replace(network=network, backup=backup, optimiser=optimiser, covariances=covariances)
        return state, terms, jnp.zeros(len(batch.action))

    def _start_theta(self, state: AgentState) -> AgentState:
        assert self.representation is not None
        theta, theta_tilde = state.target.theta, self.representation.theta_tilde
        if self.config.q_start == "last" or theta_tilde is None:
            return state
        return state._replace(theta=theta_tilde(state.backup, theta[None], theta)[0])

    def publish(
        self, state: AgentState, selection: Rows | None, agent_steps: Array, round_number: Array, key: RandomKey
    ) -> tuple[AgentState, Policy]:
        """The policy (φ_t, θ̂_{t+1}, noise from Σ_t), fixed until the next round publishes, and its copy as the target, if due."""
        config = self.config
        noise = exploration.no_noise(config)
        if selection is not None:
            factor = self.precision_factor(state.network, selection)
            if config.exploration == "propagated":
                draw_key = jax.random.split(key)[1]
                state = state._replace(draws=state.draws.at[round_number % config.propagated_draws].set(draw_key))
                noise = self._propagate(state, selection, factor)
            else:
                scale = posterior.exploration_scale_from_factor(factor, config.discount)
                noise = exploration.posterior_noise(factor, scale * exploration.noise_factor(agent_steps, config))
        # Copies in earnest: the caller may give the state away, and no buffer can be given twice.
        network, theta = jax.tree.map(jnp.copy, (state.network, state.theta))
        target = Target(state.network, state.theta, self._target_backup(state.backup))
        # Chosen even where it is always due: state, target and policy would have one θ̂, and of a result that is returned three
        # times a GPU writes one only, where the arguments were given away (jax issue 39625).
        due = (round_number + 1) % config.target_rounds == 0 if config.target_rounds > 1 else round_number >= 0
        target = jax.tree.map(lambda new, old: jnp.where(due, new, old), target, state.target)
        policy = Policy(network, theta, noise, exploration.epsilon_at(agent_steps, config))
        return state._replace(target=target), policy

    def _propagate(self, state: AgentState, selection: Rows, factor: Array) -> Array:
        config, batch = self.config, selection.transitions
        deviation = config.propagated_variance**0.5

        def noise_of(key: RandomKey) -> tuple[Array, Array]:
            each_key, prior_key = jax.random.split(key)
            # By slot, so that a transition keeps its noise for as long as the draw lives.
            noise = jax.vmap(lambda slot: jax.random.normal(jax.random.fold_in(each_key, slot)))(selection.slot)
            return deviation * noise, deviation * config.ridge**0.5 * jax.random.normal(prior_key, (config.dimension,))

        noise, prior = jax.vmap(noise_of)(state.draws)
        return exploration.propagated_parameters(
            features_taken(state.network, batch, config),
            features(state.network, batch.next_observation, config),
            *rewards_and_discounts(batch, config),
            selection.weight,
            noise.T,
            prior,
            factor,
            config.propagated_iterations,
            config.value_bound or config.largest_value,
        )

    def _target_backup(self, backup: Any) -> Any:
        return backup if self.config.representation == "pvn" else ()


def largest_divisor(number: int, bound: int) -> int:
    """The largest divisor of a number that is at most ``bound``; 1 if there is none."""
    return max((c for c in range(1, min(number, bound) + 1) if number % c == 0), default=1)


def _nothing(*_: Any) -> Any:
    raise AssertionError("a stage of no steps is not run")


def _optimiser(config: AgentConfig, learning_rate: float) -> Any:
    if config.optimiser == "adam":
        return optax.adam(learning_rate, eps=config.adam_epsilon)
    return _centred_rmsprop(learning_rate, config.adam_epsilon)


def _centred_rmsprop(learning_rate: float, epsilon: float, memory: float = 0.95) -> optax.GradientTransformation:
    """A gradient over its own standard deviation; optax's is NaN where rounding makes the variance of equal gradients negative."""

    def init(parameters: Any) -> tuple[Any, Any]:
        return jax.tree.map(jnp.zeros_like, parameters), jax.tree.map(jnp.zeros_like, parameters)

    def update(gradient: Any, state: tuple[Any, Any], _: Any = None) -> tuple[Any, tuple[Any, Any]]:
        mean = jax.tree.map(lambda m, g: memory * m + (1 - memory) * g, state[0], gradient)
        square = jax.tree.map(lambda s, g: memory * s + (1 - memory) * jnp.square(g), state[1], gradient)

        def step(g: Array, m: Array, s: Array) -> Array:
            return -learning_rate * g / (jnp.sqrt(jnp.maximum(s - jnp.square(m), 0)) + epsilon)

        return jax.tree.map(step, gradient, mean, square), (mean, square)

    return optax.GradientTransformation(init, update)


def _slower_head(optimiser: Any, rate: float) -> optax.GradientTransformation:
    """The optimiser with its steps on the head of φ, wherever that is among what is trained, multiplied by ``rate``."""

    def head(x: Any) -> Any:
        return (x if isinstance(x, FeatureNetwork) else x[0]).head

    def update(gradient: Any, state: Any, _: Any = None) -> tuple[Any, Any]:
        updates, state = optimiser.update(gradient, state)
        return eqx.tree_at(head, updates, jax.tree.map(lambda x: rate * x, head(updates))), state

    return optax.GradientTransformation(optimiser.init, update)


def _descend(optimiser: Any, gradient: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
    # optax counts its steps in integers and multiplies them with floats.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimiser.update(gradient, state)
    return optax.apply_updates(parameters, updates), state
