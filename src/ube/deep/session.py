"""A run as a stream of chunks: what `ube.train`, the experiments and the benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ube.deep.config import AgentConfig
from ube.deep.learner import LARGEST, MEANS, Learner, LearnerState
from ube.deep.loop import Carry, Log, Loop, compiled
from ube.deep.settings import filled, split_knobs
from ube.envs.contract import Environment
from ube.errors import RunError, UsageError

CHUNK = 10_000
"""The most steps between two looks at a run: progress, metrics and the refresh of Σ."""


class Episodes(NamedTuple):
    step: np.ndarray  # at which each episode ended
    episode_return: np.ndarray
    episode_length: np.ndarray


class Chunk(NamedTuple):
    step: int  # decisions so far
    episodes: Episodes  # that ended in this chunk
    metrics: dict[str, float]


class Evaluation(NamedTuple):
    """episode_return (undiscounted) and episode_length, (episodes,) each."""

    episode_return: np.ndarray
    episode_length: np.ndarray


class Session:
    """One agent in one environment with one seed.

    session = Session(env, config, seed=0)
    for chunk in session.run(50_000): ...  # and look at session.learner in between
    """

    def __init__(self, env: Environment, config: AgentConfig, seed: int):
        self.env, self.config, self.seed = env, filled(config, env), seed
        shape, self.knobs = split_knobs(self.config)
        self.loop: Loop = compiled(env, shape)
        self.step = 0
        self.carry: Carry | None = None  # valid until the next chunk is asked for
        self.instance: Any = None
        self.last_good: dict[str, Any] | None = None  # as `kept` was before the last chunk

    @property
    def learner(self) -> LearnerState:
        assert self.carry is not None, "run first"
        return self.carry.learner

    def start(self) -> Carry:
        return self.loop.start(jax.random.key(self.seed), self.knobs)

    def run(self, steps: int, chunk: int = CHUNK) -> Iterator[Chunk]:
        """At least `steps` steps in all: a few more where chunks of whole update periods ask for it."""
        period = self.config.update_period
        if self.carry is None:
            self.carry = self.start()
            self.instance = jax.device_get(self.carry.instance)
            if not np.isfinite(self.carry.place.observation).all():
                raise self._not_finite(1, 0)
        planned = 0
        for n_rounds, learning in self._plan(steps, chunk):
            planned += n_rounds * period
            if planned <= self.step:  # done before this run was continued
                continue
            self.last_good = jax.device_get(self.kept())
            began = time.perf_counter()
            self.carry, log, learned = self.loop.chunk(self.carry, self.knobs, n_rounds, learning)
            log, learned = jax.device_get((log, learned))
            seconds = time.perf_counter() - began
            metrics = {name: float(value) for name, value in learned.items()}
            metrics = summarised(log.noted) | {"u_loss": float(log.u_loss.mean())} | metrics
            metrics = in_rewards(metrics, self.config)
            if log.bad.any():
                raise self._not_finite(self.step + 1 + int(log.bad.argmax()), self.step)
            check_finite(metrics, self.config, planned, self.step)
            check_weights(self.learner, self.config, planned, self.step)
            ended = np.flatnonzero(log.ended)
            episodes = Episodes(self.step + 1 + ended, log.episode_return[ended], log.episode_length[ended])
            self.step = planned
            if len(ended):
                metrics["return"] = float(episodes.episode_return.mean())
            metrics |= {
                "epsilon": float(self.loop.learner.epsilon(self.step, self.knobs)),
                "beta_unit": float(self.loop.learner.unit(self.learner)),
                "steps_per_second": n_rounds * period / seconds,
            }
            self._refresh(log)
            yield Chunk(self.step, episodes, metrics)

    def _plan(self, steps: int, chunk: int) -> list[tuple[int, bool]]:
        """(rounds, whether they learn) of each chunk: equal ones, so that one program does for all but the warm-up's last."""
        if steps < 1:
            raise UsageError(f"steps={steps}: at least 1")
        period = self.config.update_period
        if steps < period:
            raise UsageError(f"steps={steps}: at least one update_period ({period})")
        most = CHUNK // period
        warmup = min(-(-self.config.warmup // period), -(-steps // period))
        rounds = -(-steps // period) - warmup
        n_chunks = -(-rounds // min(max(chunk // period, 1), most))
        filling = [most] * (warmup // most) + [warmup % most] * (warmup % most > 0)
        learning = [-(-rounds // n_chunks)] * n_chunks if n_chunks else []
        return [(part, False) for part in filling] + [(part, True) for part in learning]

    def _not_finite(self, at: int, good: int) -> RunError:
        return RunError(
            f"{self.env.name} gave a reward or an observation that is not finite at step {at}: mend the environment; "
            f"the last good state, of step {good}, is kept"
        )

    def _refresh(self, log: Log) -> None:
        """Σ free of the rounding of this chunk, or of the features of the past."""
        assert self.carry is not None
        learner, codes, actions = self.loop.learner, log.code, log.action
        if not learner.refreshes:
            return
        if not learner.keeps_codes:
            key, draw_key = jax.random.split(self.carry.key)
            self.carry = self.carry._replace(key=key)
            codes, actions = self.loop.drawn_codes(self.learner, self.carry.replay, draw_key, self.knobs)
        counts = refreshed(learner, self.learner.counts, codes, actions, self.config)
        self.carry = self.carry._replace(learner=self.learner._replace(counts=counts))

    replay = None  # of frames: there is none

    def kept(self) -> dict[str, Any]:
        """What it takes to play."""
        return {"learner": self.learner, "instance": self.carry.instance}  # type: ignore[union-attr]

    def like_kept(self) -> dict[str, Any]:
        like = jax.eval_shape(self.start)
        return {"learner": like.learner, "instance": like.instance}

    def snapshot(self) -> dict[str, Any]:
        """All there is to know between two chunks."""
        return {"carry": self.carry, "step": np.int64(self.step)}

    def like_snapshot(self) -> dict[str, Any]:
        return {"carry": jax.eval_shape(self.start), "step": np.int64(0)}

    def restore(self, saved: dict[str, Any], stop: Callable[[], int] = lambda: 0) -> None:
        """Goes on from a snapshot, at once: nobody need ask whether to `stop`."""
        self.carry, self.step = jax.tree.map(jnp.asarray, saved["carry"]), int(saved["step"])
        self.instance = jax.device_get(self.carry.instance)

    def close(self) -> None:
        """There is nothing to."""

    def play(
        self, learner: LearnerState, episodes: int, *, own: bool, seed: int, epsilon: float | None = None,
        chunk: int = 2_000,
    ) -> Evaluation:  # fmt: skip
        """Without learning. Episodes one after the other in one environment, so that short ones do not count more often.
        epsilon: of the greedy policy, instead of `epsilon_evaluation`."""
        epsilon = self.config.epsilon_evaluation if epsilon is None else epsilon
        game = self.loop.begin(jax.random.key(seed), self.instance)
        returns: list[float] = []
        lengths: list[int] = []
        for _ in range(MAX_CHUNKS):
            game, log = self.loop.evaluate(game, learner, self.instance, self.knobs, epsilon, chunk, own)
            ended = np.flatnonzero(log.ended)
            returns += np.asarray(log.episode_return)[ended].tolist()
            lengths += np.asarray(log.episode_length)[ended].tolist()
            if len(returns) >= episodes:
                return Evaluation(np.array(returns[:episodes]), np.array(lengths[:episodes]))
        raise RunError(
            f"{self.env.name}: {len(returns)} of {episodes} episodes ended within {MAX_CHUNKS * chunk:,} steps: "
            "give the environment a time limit, or ask for fewer"
        )


MAX_CHUNKS = 1_000


def in_rewards(values: dict[str, Any], config: AgentConfig) -> dict[str, Any]:
    """Values in what rewards are counted in, variances in its square: the learner's own unit is `reward_unit`."""
    powers = {"q": 1, "q_gap": 1, "spread": 1, "q_largest": 1, "u": 2, "nu": 2, "u_largest": 2}
    return {name: value * config.reward_unit ** powers.get(name, 0) for name, value in values.items()}


def summarised(noted: np.ndarray) -> dict[str, float]:
    """Metrics of many decisions, (N, len(MEANS) + len(LARGEST))."""
    means, largest = noted[:, : len(MEANS)].mean(0), noted[:, len(MEANS) :].max(0)
    return dict(zip((*MEANS, *LARGEST), (*means.tolist(), *largest.tolist()), strict=True))


def check_weights(learner: LearnerState, config: AgentConfig, step: int, good: int) -> None:
    """Metrics are of the weights before an update: the last one of a chunk shows only here, before it is kept as good."""
    finite = jax.device_get(
        _all_finite({"weights of q": learner.values.params, "weights of u": learner.u, "Σ": learner.counts})
    )
    check_finite({name: 0.0 if fine else np.nan for name, fine in finite.items()}, config, step, good)


@jax.jit
def _all_finite(trees: dict[str, Any]) -> dict[str, jax.Array]:
    def fine(tree: Any) -> jax.Array:
        return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()

    return {name: fine(tree) for name, tree in trees.items()}


def check_finite(metrics: dict[str, float], config: AgentConfig, step: int, good: int) -> None:
    wrong = [name for name, value in metrics.items() if not np.isfinite(value)]
    if wrong:
        raise RunError(
            f"the run diverged before step {step} ({', '.join(wrong)} not finite): lower learning_rate (is "
            f"{config.learning_rate:g}) or u_learning_rate (is {config.u_learning_rate:g}), or clip rewards; the last good "
            f"state, of step {good}, is kept"
        )


def refreshed(learner: Learner, state: Any, codes: Any, actions: Any, config: AgentConfig) -> Any:
    """Σ from all decisions since the last time, or from such as were drawn."""
    counts: Any = learner.counts
    anew = counts.refresh if learner.keeps_codes else counts.recounted
    try:
        return anew(state, np.asarray(codes), np.asarray(actions), config.prior)
    except np.linalg.LinAlgError:
        raise RunError(
            f"Σ⁻¹ is no longer positive definite: set normalise_features=true (is "
            f"{config.normalise_features}) or lower prior (is {config.prior:g}); the last good state is kept"
        ) from None
