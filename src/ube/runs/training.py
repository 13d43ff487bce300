"""`ube.train`, `ube.load` and what they give back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ube.deep import watching
from ube.deep.checks import Checks
from ube.deep.config import AgentConfig, OwnNetwork, agent_config
from ube.deep.hosted_session import HostedSession, Stopped
from ube.deep.learner import LearnerState
from ube.deep.networks import found_network
from ube.deep.protocols import AUTO
from ube.deep.session import Episodes, Evaluation, Session, in_rewards
from ube.deep.watching import Episode
from ube.envs import Environment, HostedEnvironment
from ube.envs.gymnasium_games import STEP_TIMEOUT
from ube.errors import RunError, UsageError, brief, cut
from ube.files import to_json
from ube.machine import check_room
from ube.places import OBJECT
from ube.runs.checkpoints import Checkpoints, Damaged
from ube.runs.directory import BEST, CONFIG, NOT_A_RUN, STATE, Columns, RunDirectory
from ube.runs.jax_setup import set_up_jax
from ube.runs.plan import EVALUATED, POLICIES, Plan, Schedule, check_seed, default_path, made_from, planned
from ube.runs.trackers import check_trackers, trackers
from ube.stats.calibration import Calibration
from ube.stopping import gently, stopped

MAY_CHANGE = (
    "command", "versions", "resumed_with", "schedule.checkpoint_minutes", "schedule.track", f"env_args.{STEP_TIMEOUT}",
)  # fmt: skip
"""Fields of config.json, when a run goes on."""
STEPS = "steps"
"""May change as well, of a run outside of JAX."""
SOME = 10_000
"""Decisions that take a while to play."""


class Progress(NamedTuple):
    """What a callback is given after each chunk."""

    step: int
    """Decisions so far."""
    steps: int
    """Decisions in all."""
    metrics: dict[str, float]
    """Of this chunk: loss, q, u, nu, …"""
    episodes: Episodes
    """Those that ended in this chunk."""
    agent: TrainedAgent
    """As it is now; it may be kept, since what follows does not change it."""


Callback = Callable[[Progress], bool | None]
"""Returning True stops the run there."""


def train(
    env: Any,
    agent: str | AgentConfig = "ube-deep",
    steps: int | None = None,
    seed: int = 0,
    *,
    frames: int | None = None,
    protocol: str = AUTO,
    env_args: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    out: str | Path | None = None,
    chunk: int | None = None,
    callback: Callback | None = None,
    schedule: Schedule = Schedule(),  # noqa: B008 - it is frozen
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> Run:
    """Trains a preset (or a config of your own) and keeps all of it in a run directory.

    env: an id from `ube envs`, with `env_args` such as {"size": 20}; or of Gymnasium: a class or function that makes an
    environment with discrete actions (from `env_args`), or an environment, single or vector. overrides: fields of the agent
    to replace, such as {"beta": 0.1}. steps: decisions, 50,000 if not given; Atari games ask for `frames` instead, four for
    each decision (the paper: 200,000,000). protocol: of Atari games, a name in PROTOCOLS; `env_args` and `overrides` come
    before it. out: the directory, by default runs/ENV-AGENT-seedN; it must be new, unless `resume`, which goes on from its
    last checkpoint as if it had never stopped. chunk: steps between two rows of metrics, at most 10,000; Σ is refreshed then
    as well. callback: is called after each chunk with its `Progress`, and stops the run by returning True; what was learned
    until then is kept, and `resume` goes on from there. The same seed gives the same run to the bit on a CPU with as many
    threads. Ctrl-C and SIGTERM stop after the chunk that is under way, with a checkpoint.
    """
    set_up_jax()
    check_trackers(schedule.track)
    if chunk is not None and chunk < 1:
        raise UsageError(f"chunk={chunk}: at least 1")
    path = Path(out) if out is not None else default_path(env, agent, seed)
    begun = RunDirectory.open(path).config if resume and (path / CONFIG).exists() else None
    plan = planned(
        env, agent, steps, seed, frames=frames, protocol=protocol, env_args=env_args, overrides=overrides, schedule=schedule,
        begun=begun,
    )  # fmt: skip
    steps, schedule, hosted, made = plan.steps, plan.schedule, plan.hosted, plan.env
    session, chunk = plan.session(), chunk or plan.chunk
    content = plan.content(chunk)
    if isinstance(made, HostedEnvironment):
        check_room(
            session.config.replay_size, made.frame_shape, made.observation_dtype, path,
            checkpoint_minutes=schedule.checkpoint_minutes, n_envs=schedule.n_envs,
        )  # fmt: skip
    with RunDirectory.locked(path) as directory, closing(session), gently(say) as interrupted:
        checkpoints = Checkpoints(path)
        if directory.is_new:
            directory.begin(content)
        elif not resume:
            raise UsageError(f"{path} exists and is not empty: --resume goes on with it, --out chooses another place")
        else:
            _same_run(directory, content, hosted)
            if directory.finished(steps) and not (hosted and checkpoints.any):
                say(f"{path} is finished")
                return Run(directory, plan.source, plan.own_network)
            _go_on(session, directory, checkpoints, steps, say, interrupted)
            directory.note_start(content["versions"], steps)
        try:
            _learn(session, directory, checkpoints, steps, chunk, schedule, callback, interrupted, say)
        except Exception as error:  # also of a callback
            if session.last_good is not None:
                with suppress(OSError) if isinstance(error, OSError) else nullcontext():  # the disk may be full
                    directory.save_state(session.last_good)
            if isinstance(error, RunError):
                raise RunError(f"{error} in {path}") from error.__cause__
            raise
    return Run(directory, plan.source, plan.own_network)


def _learn(
    session: Session | HostedSession, directory: RunDirectory, checkpoints: Checkpoints, steps: int, chunk: int,
    schedule: Schedule, callback: Callback | None, interrupted: Callable[[], int], say: Callable[[str], None],
) -> None:  # fmt: skip
    def checkpoint() -> None:
        facts = {"sizes": directory.sizes(), "run": _digest(directory)}
        checkpoints.save(session.step, session.snapshot(), session.replay, facts)

    def evaluate() -> None:
        with suppress(Stopped):  # then it is the first thing when the run goes on
            write(session.step, _evaluate(session, directory, schedule, interrupted))

    kept_at, enough, checks = time.monotonic(), False, Checks(session.config)
    with trackers(schedule.track, directory.path, directory.config, session.step) as write:
        if _evaluation_is_missing(session, directory):
            evaluate()
            if stop := interrupted():
                stopped(stop)
        for part in session.run(steps, chunk):
            directory.append("episodes", part.episodes._asdict())
            directory.append("metrics", {"step": part.step, **part.metrics})
            write(part.step, part.metrics)
            rewards = np.asarray(session.learner.reward_range)
            for message in checks.messages(part.metrics, rewards, last=part.step >= steps):
                say(message)
            if callback is not None:
                agent = TrainedAgent(session, jax.tree.map(jax.numpy.copy, session.learner))
                enough = bool(callback(Progress(part.step, steps, part.metrics, part.episodes, agent)))
            if isinstance(session, HostedSession) and part.step % session.restart_every == 0:
                evaluate()
            stop = interrupted()
            if stop or time.monotonic() - kept_at > 60 * schedule.checkpoint_minutes:
                checkpoint()
                kept_at = time.monotonic()
            if stop:
                stopped(stop)
            if enough:
                break
    if enough or isinstance(session, HostedSession):
        checkpoint()
    directory.save_state(session.kept())


def _evaluate(
    session: Any, directory: RunDirectory, schedule: Schedule, interrupted: Callable[[], int]
) -> dict[str, float]:
    """Mean returns, by policy. Written when all is played: an evaluation is there whole, or missing."""
    seed = int(np.random.SeedSequence((session.seed, session.step)).generate_state(1)[0])
    played = {
        policy: session.play(
            session.learner, own=policy == "own", seed=seed, steps=schedule.evaluation_steps, stop=interrupted
        )
        for policy in EVALUATED[schedule.evaluation_policy]
    }
    rows = [(policy, *row) for policy, games in played.items() for row in zip(*games, strict=True)]
    policies, returns, lengths = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"policy": policies, "episode_return": returns, "episode_length": lengths}
    if _is_best(played, directory):  # before the rows are there: a run that is killed in between evaluates again
        directory.save_state(session.kept(), BEST)
    directory.append("evaluations", {"step": [session.step] * len(rows), **columns})
    return {f"evaluation_{policy}": float(games.episode_return.mean()) for policy, games in played.items()}


def _is_best(played: dict[str, Evaluation], directory: RunDirectory) -> bool:
    """Of all evaluations so far, by mean return: greedy where both policies play."""
    if not played:
        return False
    if not (directory.path / BEST).exists():
        return True
    policy, games = next(iter(played.items()))
    rows = directory.columns("evaluations")
    before = rows["policy"] == policy if rows else np.zeros(0, bool)
    steps = rows["step"][before] if before.any() else np.zeros(0)
    means = [rows["episode_return"][before][steps == step].mean() for step in np.unique(steps)]
    return games.episode_return.mean() > max(means, default=-np.inf)


def _evaluation_is_missing(session: Session | HostedSession, directory: RunDirectory) -> bool:
    """Since the run was stopped in the middle of it."""
    if not isinstance(session, HostedSession) or not session.step or session.step % session.restart_every:
        return False
    return session.step not in directory.columns("evaluations").get("step", np.zeros(0))


def _same_run(directory: RunDirectory, asked: dict[str, Any], hosted: bool) -> None:
    """A run goes on only with what it began with; one outside of JAX may go on for longer."""
    before, now = _flat(directory.config), _flat(json.loads(to_json(asked, digits=17)))
    free = (*MAY_CHANGE, STEPS) if hosted else MAY_CHANGE
    for name in before | now:
        if not name.startswith(free) and before.get(name) != now.get(name):
            raise UsageError(
                f"{directory.path} was begun with {name}={before.get(name)}, not {now.get(name)}: a run goes on only with "
                "what it began with; leave that as it was, or start a new run (--out)"
            )


def _digest(directory: RunDirectory) -> str:
    """Of all that must stay as it is: checkpoints of other runs do not serve."""
    fixed = {
        name: value for name, value in _flat(directory.config).items() if not name.startswith((*MAY_CHANGE, STEPS))
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return leaves


def _go_on(
    session: Session | HostedSession, directory: RunDirectory, checkpoints: Checkpoints, steps: int, say: Any,
    interrupted: Callable[[], int],
) -> None:  # fmt: skip
    def check(facts: dict[str, Any]) -> None:
        if facts.get("run", own) != own:
            raise Damaged("it is of another run: this one was begun with other values")
        if lost := directory.lost(facts["sizes"]):
            raise Damaged(f"{' and '.join(lost)} lost rows since")

    own = _digest(directory)
    found = checkpoints.restore(session.like_snapshot(), session.replay, say, check)
    if found is None:
        if directory.finished(directory.config["steps"]):
            raise UsageError(
                f"{directory.path} is finished, and keeps no checkpoint: train for longer in a new run (--out)"
            )
        say(f"{directory.path} has no checkpoint yet: starting from the beginning")
        directory.cut_back({})
        return
    tree, facts = found
    step = int(tree["step"])
    if steps < min(step, directory.config["steps"]):
        raise UsageError(f"steps={steps}: {directory.path} has come to step {step} already; ask for more")
    again = step % session.restart_every if isinstance(session, HostedSession) else 0
    say(f"going on from step {step:,}{f', once {again:,} decisions are played again' if again > SOME else ''}")
    try:
        session.restore(tree, interrupted)
    except Stopped:
        stopped(interrupted())
    directory.cut_back(facts.get("sizes", {}))


def load(path: str | Path, env: Any = None, *, network: Any = None, best: bool = False) -> Run:
    """A run that `train` wrote.

    env, network: those it was trained with, where they are yours (module:NAME, or from Python): a file that names a module is
    not enough to run it. best: the agent of the best evaluation in training, instead of the last.
    """
    set_up_jax()
    run = Run(RunDirectory.open(Path(path)), network=found_network(network) if network is not None else None, best=best)
    return run if env is None else dataclasses.replace(run, env=made_from(env, run.config["env_args"]))


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory: what was asked, what happened, and the agent that came of it."""

    directory: RunDirectory
    env: Environment | HostedEnvironment | None = None
    """As it was made, if somebody gave it."""
    network: Any = None
    """Of one's own, likewise."""
    best: bool = False
    """Whether the agent is the one of the best evaluation in training, instead of the last."""

    @property
    def path(self) -> Path:
        """Of the directory."""
        return self.directory.path

    @cached_property
    def episodes(self) -> Columns:
        """step, episode_return and episode_length of each finished episode."""
        empty = {name: np.zeros(0) for name in ("step", "episode_return", "episode_length")}
        return self.directory.columns("episodes") or empty

    @cached_property
    def metrics(self) -> Columns:
        """step, loss, q, u, nu, … at the end of each chunk."""
        return self.directory.columns("metrics")

    @cached_property
    def evaluations(self) -> Columns:
        """step, policy, episode_return and episode_length of each episode played without learning."""
        return self.directory.columns("evaluations")

    def last_evaluation(self) -> dict[str, np.ndarray]:
        """Returns of the last evaluation in training, by policy; empty if there was none."""
        rows = self.evaluations
        if not rows:
            return {}
        last = rows["step"] == rows["step"].max()
        names = dict.fromkeys(rows["policy"][last].tolist())
        return {name: rows["episode_return"][last & (rows["policy"] == name)] for name in names}

    @cached_property
    def config(self) -> dict[str, Any]:
        """All that was asked, with every default filled in, and the versions of the packages."""
        return self.directory.config

    @cached_property
    def agent(self) -> TrainedAgent:
        """As it was at the end of training, or at its `best` evaluation."""
        name = BEST if self.best else STATE
        if self.best and not (self.path / BEST).exists():
            never = "it was not evaluated while it trained (compiled runs are not; for others, see evaluation_policy)"
            why = f"{BEST} is gone" if self.evaluations else never
            raise UsageError(f"{self.path} keeps no best agent, only the last: {why}")
        session = self.plan().session()
        try:
            loaded = self.directory.load_state(session.like_kept(), name)
        except UsageError as error:
            if self.env is None and self.network is None:
                raise
            given = " with this network" if self.network is not None else ""
            raise UsageError(f"{error}; was it trained in {session.env.name}{given}?") from None
        state = jax.tree.map(jax.numpy.asarray, loaded)
        session.instance = state["instance"]
        return TrainedAgent(session, state["learner"])

    def plan(self) -> Plan:
        """What was asked for, from config.json alone."""
        config = self.config
        try:
            fields = {**config["agent"], "reward_clip": config["agent"]["reward_clip"] or np.inf}
            fields["network"] = self._network(fields["network"])
            env = self.env if self.env is not None else self._made(config["env"], config["env_args"])
            return planned(
                env, agent_config(AgentConfig(), fields), config["steps"], config["seed"], frames=None, protocol=AUTO,
                env_args=config["env_args"], overrides=fields, schedule=Schedule(), begun=config,
            )  # fmt: skip
        except (LookupError, TypeError, ArithmeticError) as error:
            raise UsageError(f"{self.path / 'config.json'} is not that of a run ({error!r}); {NOT_A_RUN}") from None

    def _network(self, name: Any) -> Any:
        if self.network is None:
            return self._known("has the network", name, "network")
        given = self.network.place if isinstance(self.network, OwnNetwork) else self.network
        by_place = not str(name).startswith(OBJECT) and not given.startswith(OBJECT)
        if by_place and name != given:
            raise UsageError(
                f"{self.path} has the network {cut(str(name), 200)}, not {given}: give that, or none if it is ours"
            )
        return self.network

    def _made(self, name: str, env_args: dict[str, Any]) -> Environment | HostedEnvironment:
        return made_from(self._known("was trained in", name, "env"), env_args)

    def _known(self, what: str, name: Any, option: str) -> Any:
        """What a file may name: nothing that runs code of its choice."""
        if not isinstance(name, str):
            return name
        shown = cut(name, 200)
        if name.startswith(OBJECT):
            raise UsageError(
                f"{self.path} {what} {shown}, which only Python can give again: ube.load(path, {option}=…)"
            )
        if ":" in name:
            raise UsageError(
                f"{self.path} {what} {shown}, and a file may not choose which module is run: give it again "
                f"(--{option} {shown}, or ube.load(path, {option}={shown!r}))"
            )
        return name

    def evaluate(
        self, episodes: int = 10, *, policy: str = "greedy", seed: int = 0, epsilon: float | None = None
    ) -> Evaluation:
        """Play without learning: `policy` is "greedy" or "own", the agent's. epsilon: share of random actions of the greedy
        policy, `epsilon_evaluation` if not given."""
        return self.agent.evaluate(episodes, policy=policy, seed=seed, epsilon=epsilon)

    def video(
        self, path: str | Path | None = None, *, policy: str = "own", seed: int = 0, longest: int = 1_000
    ) -> Path:
        """One game with u drawn under the screen, as a GIF; by default DIR/game.gif. At most `longest` decisions."""
        where = Path(path) if path is not None else self.path / "game.gif"
        self.agent.video(where, policy=policy, seed=seed, longest=longest)
        return where

    def plot(self, path: str | Path | None = None) -> Path:
        """Returns and uncertainty against steps, as a picture; by default DIR/learning.png."""
        from ube.figures.learning import plot_run

        where = Path(path) if path is not None else self.path / "learning.png"
        plot_run(self, where)
        return where

    def plot_episode(
        self, path: str | Path | None = None, *, policy: str = "own", seed: int = 0, longest: int = 1_000
    ) -> Path:
        """One episode: Q of the actions taken with β√u around it, √u and √ν, and rewards; by default DIR/episode.png.

        At most its first `longest` decisions. The same policy and seed as for `video` show the same game.
        """
        from ube.figures.looking import plot_episode

        where = Path(path) if path is not None else self.path / "episode.png"
        plot_episode(self, where, policy=policy, seed=seed, longest=longest)
        return where

    def plot_calibration(
        self, path: str | Path | None = None, *, episodes: int = 50, policy: str = "own", seed: int = 0, bins: int = 10
    ) -> Calibration:
        """Is |Q - return| what β√u says? The numbers, and a picture of them; by default DIR/calibration.png.

        The return is the discounted one that followed in the episode, of the rewards that are learned (clipped). Where a time
        limit cut an episode off, the return goes on with max Q there, and decisions within 1 / (1 - γ) of the cut are left
        out: their return would mostly be Q itself.
        """
        from ube.figures.looking import plot_calibration

        where = Path(path) if path is not None else self.path / "calibration.png"
        return plot_calibration(self, where, episodes=episodes, policy=policy, seed=seed, bins=bins)

    def plot_map(
        self, path: str | Path | None = None, *, dims: tuple[int, int] = (0, 1), grid: tuple[int, int] | None = None,
        episodes: int = 20, policy: str = "own", seed: int = 0,
    ) -> Path:  # fmt: skip
        """β√u beside a map of visits in played episodes; by default DIR/map.png.

        Over two numbers of the observation (`dims`), the others at their median; where it is one-hot, over all cells, as a
        `grid` of (rows, columns) if they are numbered through, such as (4, 12) for CliffWalking.
        """
        from ube.figures.looking import plot_map

        where = Path(path) if path is not None else self.path / "map.png"
        plot_map(self, where, dims=dims, grid=grid, episodes=episodes, policy=policy, seed=seed)
        return where


class Uncertainty(NamedTuple):
    """q, u and nu (ν) of each action, (A,) each."""

    q: np.ndarray
    u: np.ndarray
    nu: np.ndarray


@dataclasses.dataclass(frozen=True)
class TrainedAgent:
    """What a run learned, to act, to be asked and to be evaluated. It learns no more."""

    session: Session | HostedSession
    state: LearnerState

    @property
    def env(self) -> Environment | HostedEnvironment:
        """The environment it was trained in."""
        return self.session.env

    def act(self, observation: Any, seed: int = 0) -> Any:
        """The agent's own choice at one observation, as its environment takes it. `seed` draws its noise: give another at
        each step of an episode to act as it does in training."""
        action = int(self._think(observation, seed).action)
        return self.env.decode(action) if isinstance(self.env, HostedEnvironment) else action

    def uncertainty(self, observation: Any) -> Uncertainty:
        """Q, u and ν of each action. u and ν are 0 for agents that have none."""
        choice = self._think(observation, 0)
        parts = {name: np.asarray(getattr(choice, name)) for name in Uncertainty._fields}
        return Uncertainty(**in_rewards(parts, self.session.config))

    def _think(self, observation: Any, seed: int) -> Any:
        array = self._frame(observation)
        if array.shape != self.env.observation_shape:
            raise UsageError(f"observation has shape {array.shape}: {self.env.name} gives {self.env.observation_shape}")
        array = array.astype(self.env.observation_dtype)
        return self.session.loop.think(self.state, array, jax.random.key(seed), self.session.knobs)

    def _frame(self, observation: Any) -> np.ndarray:
        """As the environment shows it, or several of them side by side where it stacks them."""
        if not isinstance(self.env, HostedEnvironment) or self.env.stack > 1:
            return np.asarray(observation)
        try:
            return self.env.encode(observation)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise UsageError(f"{brief(observation)} is no observation of {self.env.name}: {error}") from None

    def video(self, path: Path, *, policy: str, seed: int, longest: int) -> None:
        """As `Run.video`."""
        from ube.runs.video import Watched, write_video

        session = self.session
        if not isinstance(session, HostedSession) or session.env.screens is None:
            raise UsageError(
                f"{session.env.name} has no screen: videos are of Atari games, and of single environments of Gymnasium"
            )
        _check_policy(policy)
        game = next(self.episodes(1, policy=policy, seed=seed, longest=longest))
        write_video(Watched(session.env.screens(seed, game.action), game.taken(game.u), game.q.max(1)), path)

    def episodes(
        self, number: int = 1, *, policy: str = "own", seed: int = 0, longest: int | None = None,
        observations: bool = True,
    ) -> Iterator[Episode]:  # fmt: skip
        """Plays without learning, one after the other, and keeps every decision and what the agent thought of it.

        longest: decisions after which an episode is left as it is. observations: without them, long games need less memory.
        """
        _check_policy(policy)
        check_seed(seed)
        if number < 1:
            raise UsageError(f"episodes={number}: at least 1")
        return watching.episodes(
            self.session, self.state, number, own=policy == "own", seed=seed, longest=longest, observations=observations
        )

    @property
    def beta(self) -> float:
        """What √u counts in the policy: β in its unit, the largest return or 1."""
        return float(self.session.knobs.beta * self.session.loop.learner.unit(self.state))

    def evaluate(
        self, episodes: int = 10, *, policy: str = "greedy", seed: int = 0, epsilon: float | None = None
    ) -> Evaluation:
        """As `Run.evaluate`."""
        _check_policy(policy)
        if epsilon is not None and policy != "greedy":
            raise UsageError(f"epsilon={epsilon!r}, policy={policy}: only the greedy policy takes an ε; leave one out")
        if epsilon is not None and not (isinstance(epsilon, int | float) and 0 <= epsilon <= 1):
            raise UsageError(f"epsilon={epsilon!r}: ε must be a number within 0..1")
        check_seed(seed)
        if episodes < 1:
            raise UsageError(f"episodes={episodes}: at least 1")
        return self.session.play(self.state, episodes, own=policy == "own", seed=seed, epsilon=epsilon)


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise UsageError(f"policy={policy!r}: choose greedy or own")
