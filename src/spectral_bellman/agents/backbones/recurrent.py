"""φ(h, ·) from the history of an episode: R2D2's sequences, with burn-in and stored state.

A sequence is ``burn_in`` steps, which only bring the recurrent state up to date, and ``trained``
steps, each of which is a row. It starts from the state that was stored when it was collected.
Sequences end with their episode. The first steps of an episode are trained after masked burn-in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from spectral_bellman import operators
from spectral_bellman._arrays import RandomKey
from spectral_bellman.agents.api import Terms, Timestep
from spectral_bellman.agents.backbones.api import (
    Backbone,
    BackboneConfig,
    Torso,
    View,
    in_rows,
)
from spectral_bellman.agents.backbones.feed_forward import q_grid
from spectral_bellman.agents.backups import OperatorConfig, RetraceOperator
from spectral_bellman.agents.choices import require, require_all
from spectral_bellman.agents.features import taken
from spectral_bellman.agents.representations.api import Backup, Problem, Target
from spectral_bellman.networks import FeatureNetwork, feature_network, torso_of
from spectral_bellman.networks.recurrent import Carry, Inputs, RecurrentNetwork, zero_carry
from spectral_bellman.replay import Sequence, Sequences

CARRY = "carry"
"""The extra that holds the recurrent state before each step."""


@dataclass(frozen=True)
class Recurrent(BackboneConfig):
    """φ(h, ·) by an LSTM over the episode so far; rows are the trained steps of sequences."""

    name: ClassVar[str] = "recurrent"
    lstm: int = 256
    """Units of the LSTM."""
    burn_in: int = 10
    """Steps that bring the recurrent state up to date before a sequence is learned from."""
    trained: int = 30
    """Steps of a sequence that are learned from."""
    period: int = 15
    """Steps of an episode from the start of one sequence to the start of the next."""
    core_inputs: Literal["all", "torso"] = "all"
    """What the LSTM reads: the torso's output with the last action and reward, or that alone."""
    head_hidden: tuple[int, ...] = ()
    """Units of hidden layers between the LSTM and the features."""
    memory: bool = True
    """Whether the LSTM keeps its state from step to step. Without memory, a control, it starts from
    zero at every step."""
    torso_precision: Literal["float32", "bfloat16"] = "float32"
    """What the torso computes in; everything else is float32."""

    def __post_init__(self) -> None:
        require_all(self, count=("lstm", "trained", "period"), not_negative=("burn_in",))
        require(self, "period", self.period <= self.trained, "at most --trained")

    @property
    def rows(self) -> int:
        """T, the trained steps."""
        return self.trained

    def operators(self) -> tuple[str, ...]:
        """All."""
        return ("one_step", "n_step", "retrace")

    def build(self, problem: Problem, operator: OperatorConfig, torso: Torso) -> Backbone:
        """Sequences, whose targets are computed over the whole of their trained steps."""
        burn, steps = self.burn_in, self.trained

        def network(actions: int, d: int, key: RandomKey) -> RecurrentNetwork:
            torso_key, rest_key = jax.random.split(key)
            read, width = torso_of(*torso, problem.observation, torso_key, recurrent=True)
            return RecurrentNetwork(
                read,
                width,
                self.lstm,
                self.head_hidden,
                actions,
                d,
                rest_key,
                shown_actions=problem.num_actions if self.core_inputs == "all" else 0,
                memory=self.memory,
                low_precision=self.torso_precision == "bfloat16",
            )

        def single(actions: int, d: int, key: RandomKey) -> FeatureNetwork:
            return feature_network(*torso, problem.observation, actions, d, key)

        def step(
            network: RecurrentNetwork, carry: Carry, timestep: Timestep
        ) -> tuple[Float[Array, "N A d"], Carry]:
            inputs = Inputs(
                timestep.observation, timestep.first, timestep.previous_action, timestep.reward
            )
            gates = network.embed(inputs)
            carry = jax.vmap(network.step)(carry, gates)
            return jax.vmap(network.features)(carry.hidden), carry

        def unroll(network: RecurrentNetwork, items: Sequence, count: int) -> Array:
            """φ(h_t, ·) of ``count`` times after the burn-in, (B, count, A, d)."""

            def one(item: Sequence) -> Array:
                inputs = Inputs(
                    item.observation, item.first, item.previous_action, item.previous_reward
                )
                carry = item.start[CARRY]
                if burn:
                    before = jax.tree.map(lambda x: x[:burn], inputs)
                    carry, _ = jax.lax.stop_gradient(network).unroll(carry, before)
                after = jax.tree.map(lambda x: x[burn : burn + count], inputs)
                _, hidden = network.unroll(carry, after)
                return jax.vmap(network.features)(hidden)

            return jax.vmap(one)(items)

        def trained(items: Sequence) -> tuple[Array, Array, Array, Array]:
            """Actions, rewards, discounts and mask of the trained steps, (B, T)."""
            action, reward, discount, mask = (
                x[:, burn:] for x in (items.action, items.reward, items.discount, items.mask)
            )
            return action, problem.clipped(reward), problem.discount * discount, mask

        def view(network: RecurrentNetwork, items: Sequence) -> View:
            phi = unroll(network, items, steps + 1)
            return View(*in_rows((phi[:, :-1], phi[:, 1:], *trained(items))))

        def features_taken(network: RecurrentNetwork, items: Sequence) -> Array:
            phi = unroll(network, items, steps)
            return taken(*in_rows((phi, items.action[:, burn:])))

        def backup(
            norm: Callable[[Array], Array],
            target: Target,
            network: RecurrentNetwork,
            items: Sequence,
        ) -> Backup:
            phi = norm(unroll(target.network, items, steps + 1))
            online = norm(unroll(network, items, steps + 1)) if problem.double else None
            action, reward, discount, mask = trained(items)
            probability = items.extras["behaviour_prob"][:, burn:]
            targets = _targets(problem, operator, target.epsilon)

            def values(theta: Array, chooser: Array) -> Array:
                chosen = None if online is None else jax.vmap(q_grid, (0, None))(online, chooser)
                return in_rows(
                    jax.vmap(targets, (0, None, 0, 0, 0, 0, 0, 0))(
                        phi, theta, action, reward, discount, probability, mask, chosen
                    )
                )

            after, ahead = in_rows((phi[:, 1:], discount))
            observation = in_rows(items.observation[:, burn:-1])
            return Backup(values, target, after, ahead, after, ahead, observation)

        def diagnose(
            norm: Callable[[Array], Array], target: Target, network: Any, items: Sequence
        ) -> Terms:
            if not isinstance(operator, RetraceOperator):
                return {}
            values = norm(unroll(target.network, items, steps + 1)) @ target.theta
            action, _, discount, mask = trained(items)
            probability = items.extras["behaviour_prob"][:, burn:]
            policy = operators.epsilon_greedy(values, target.epsilon)[:, :-1]
            ratio = jnp.take_along_axis(policy, action[..., None], axis=2)[..., 0] / probability
            trace = operator.trace_decay * jnp.minimum(1.0, ratio)
            lengths = jax.vmap(_trace_lengths)(jnp.where(mask, trace, 0.0), discount)
            count = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)
            return {"trace_length": jnp.sum(jnp.where(mask, lengths, 0.0)) / count}

        return Backbone(
            window=Sequences(burn, steps, self.period, at_start=(CARRY,)),
            rows=steps,
            network=network,
            single=single,
            init_carry=lambda num_envs: zero_carry(self.lstm, num_envs),
            step=step,
            taken=features_taken,
            view=view,
            backup=backup,
            mask=lambda items: items.mask[:, burn:],
            padded=True,
            diagnose=diagnose,
        )


def _targets(
    problem: Problem, operator: OperatorConfig, epsilon: Float[Array, ""]
) -> Callable[..., Float[Array, "T M"]]:
    """(φ⁻ (T + 1, A, d), θ, actions, rewards, discounts, μ, mask, chooser) -> targets."""

    def retrace(
        phi: Array,
        theta: Array,
        action: Array,
        reward: Array,
        discount: Array,
        probability: Array,
        mask: Bool[Array, " T"],
        chooser: Array | None,
    ) -> Array:
        assert isinstance(operator, RetraceOperator)
        # The trace ends at the last observation of an episode that was cut, and at padding.
        probability = jnp.append(jnp.where(mask, probability, jnp.inf), jnp.inf)
        return operators.retrace_targets(
            phi,
            theta,
            jnp.append(action, 0),
            reward,
            discount,
            probability,
            operator.trace_decay,
            epsilon,
            problem.transform,
            chooser,
        )

    def n_step(
        phi: Array,
        theta: Array,
        action: Array,
        reward: Array,
        discount: Array,
        probability: Array,
        mask: Bool[Array, " T"],
        chooser: Array | None,
    ) -> Array:
        # Past the end of an episode the last value is carried along: reward 0, discount 1.
        last = jnp.sum(mask, dtype=jnp.int32)
        after = jnp.minimum(jnp.arange(len(mask)) + 1, last)
        return operators.n_step_targets(
            jnp.where(mask, reward, 0.0),
            jnp.where(mask, discount, 1.0),
            phi[after],
            theta,
            min(operator.steps, len(mask)),
            None if chooser is None else chooser[:, after],
            problem.transform,
        )

    return retrace if isinstance(operator, RetraceOperator) else n_step


def _trace_lengths(trace: Float[Array, " T"], discount: Float[Array, " T"]) -> Float[Array, " T"]:
    """1 + c_{t+1} (1 + c_{t+2} (…)): how many steps the target of each step sees."""

    def one(length: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        after, alive = given
        length = 1 + jnp.where(alive, after, 0.0) * length
        return length, length

    following = jnp.append(trace[1:], 0.0)
    return jax.lax.scan(one, jnp.zeros(()), (following, discount > 0), reverse=True)[1]
