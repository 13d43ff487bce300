"""A run as a stream of chunks: what `ube.train`, the experiments and the benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from ube.deep.config import AgentConfig
from ube.deep.learner import LearnerState, filled, split_knobs
from ube.deep.loop import Carry, Loop, compiled
from ube.envs.contract import Environment
from ube.errors import RunError, UsageError

CHUNK = 10_000
"""Steps between two looks at a run: progress, metrics and the refresh of Σ."""


class Episodes(NamedTuple):
    step: np.ndarray  # at which each episode ended
    episode_return: np.ndarray
    episode_length: np.ndarray


class Chunk(NamedTuple):
    step: int  # decisions so far
    episodes: Episodes  # that ended in this chunk
    metrics: dict[str, float]
    carry: Carry  # valid until the next chunk is asked for


class Session:
    """One agent in one environment with one seed.

    for chunk in Session(env, config, seed=0).run(50_000): ...
    """

    def __init__(self, env: Environment, config: AgentConfig, seed: int):
        self.env, self.config, self.seed = env, filled(config, env), seed
        shape, self.knobs = split_knobs(self.config)
        self.loop: Loop = compiled(env, shape)
        self.last_good: LearnerState | None = None
        self.instance: Any = None

    def run(self, steps: int, chunk: int = CHUNK) -> Iterator[Chunk]:
        """At least `steps` steps: a few more where chunks of whole update periods ask for it."""
        if steps < 1:
            raise UsageError(f"steps={steps}: at least 1")
        period = self.config.update_period
        warmup = min(-(-self.config.warmup // period), -(-steps // period))
        rounds = max(0, -(-steps // period) - warmup)
        n_chunks = -(-rounds * period // max(chunk, period))
        plan = [(warmup, False)] + [(-(-rounds // n_chunks), True)] * n_chunks if n_chunks else [(warmup, False)]
        carry = self.loop.start(jax.random.key(self.seed), self.knobs)
        self.instance = jax.device_get(carry.instance)
        if not np.isfinite(carry.place.observation).all():
            raise self._not_finite(1, 0)
        step = 0
        for n_rounds, learning in plan:
            self.last_good = jax.device_get(carry.learner)
            began = time.perf_counter()
            carry, log, learned = self.loop.chunk(carry, self.knobs, n_rounds, learning)
            log, learned = jax.device_get((log, learned))
            seconds = time.perf_counter() - began
            metrics = {name: float(value) for name, value in learned.items()}
            for name in ("q", "u", "nu", "u_loss"):
                metrics.setdefault(name, float(getattr(log, name).mean()))
            self._check(log, metrics, step)
            ended = np.flatnonzero(log.ended)
            episodes = Episodes(step + 1 + ended, log.episode_return[ended], log.episode_length[ended])
            step += n_rounds * period
            if len(ended):
                metrics["return"] = float(episodes.episode_return.mean())
            metrics |= {
                "epsilon": float(self.loop.learner.epsilon(step, self.knobs)),
                "beta_unit": float(self.loop.learner.unit(carry.learner)),
                "steps_per_second": n_rounds * period / seconds,
            }
            carry = self._refreshed(carry)
            yield Chunk(step, episodes, metrics, carry)

    def _check(self, log: Any, metrics: dict[str, float], step: int) -> None:
        if log.bad.any():
            raise self._not_finite(step + 1 + int(log.bad.argmax()), step)
        wrong = [name for name, value in metrics.items() if not np.isfinite(value)]
        if wrong:
            raise RunError(
                f"the run diverged before step {step + len(log.bad)} ({', '.join(wrong)} not finite): "
                f"lower learning_rate (is {self.config.learning_rate:g}) or u_learning_rate (is "
                f"{self.config.u_learning_rate:g}), or clip rewards; the last good state, of step {step}, is kept"
            )

    def _not_finite(self, at: int, good: int) -> RunError:
        return RunError(
            f"{self.env.name} gave a reward or an observation that is not finite at step {at}: mend the environment; "
            f"the last good state, of step {good}, is kept"
        )

    def _refreshed(self, carry: Carry) -> Carry:
        """Σ free of the rounding of this chunk, or of the features of the past."""
        counts = self.loop.learner.counts
        if counts is None:
            return carry
        state = carry.learner.counts
        if self.config.sigma_from == "replay":
            key, recount_key = jax.random.split(carry.key)
            carry = carry._replace(key=key)
            state = self.loop.recount(carry.learner, carry.replay, recount_key, self.knobs)
        try:
            state = counts.refresh(state, self.config.prior)
        except np.linalg.LinAlgError:
            raise RunError(
                f"Σ⁻¹ is no longer positive definite in float32: set normalise_features=true (is "
                f"{self.config.normalise_features}) or lower prior (is {self.config.prior:g}); the last good state is kept"
            ) from None
        return carry._replace(learner=carry.learner._replace(counts=state))
