"""The `ube` command: parse, call, print."""

from __future__ import annotations

import functools
import operator
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import Positional, arg, subcommand

from ube._version import __version__
from ube.comparison.command import Compare
from ube.completion import Completion
from ube.doctor import Doctor
from ube.errors import RunError, UsageError, nearest, plain
from ube.stopping import CODES, Terminated, terminable
from ube.suite.command import SuiteCommand

if TYPE_CHECKING:
    from ube.runs import Progress as RunProgress
    from ube.runs import Run


@dataclass
class Reproduce:
    """Run an experiment: writes OUT/NAME/results.json, its figures as SVG and PNG, and prints a table."""

    name: Annotated[Positional[str | None], arg(metavar="NAME")] = None
    """Which one (see --list); `quick` runs every small one and writes a page, OUT/quick/index.html."""
    list: bool = False
    """List what there is, and stop."""
    scale: Annotated[str, arg(metavar="quick|paper")] = "quick"
    """quick (seconds to a minute each) or paper (the published size)."""
    seeds: Annotated[int | None, arg(metavar="N")] = None
    """How many seeds, instead of the scale's own number."""
    seed: int = 0
    """The first seed; every run is repeated to the bit from its seed."""
    collected: Annotated[Path | None, arg(metavar="FILE.csv")] = None
    """For atari57 and montezuma, which run nothing: the runs of a suite, as `ube suite collect` wrote them."""
    out: Path = Path("results")
    """Folder to write to."""

    def run(self) -> None:
        from ube.figures import EXPERIMENTS, reproduce

        if self.list:
            for experiment in EXPERIMENTS.values():
                print(f"{experiment.name:16} {experiment.title}")
            return
        if self.name is None:
            raise UsageError("which experiment? `ube reproduce --list` shows them; `ube reproduce quick` runs them all")
        everything = self.name == "quick"
        names = list(EXPERIMENTS) if everything else [self.name]
        out = self.out / "quick" if everything else self.out
        with _progress() as report:
            all_results = [
                reproduce(
                    name,
                    out,
                    scale=self.scale,
                    seeds=self.seeds,
                    seed=self.seed,
                    progress=report,
                    collected=self.collected,
                )
                for name in names
            ]
        for results in all_results:
            print_tables(results)
        if everything:
            from ube.report import write_page

            print(f"\nOpen {write_page(out)}")
        else:
            print(f"\nWrote {out / self.name}")


@dataclass
class Train:
    """Train an agent; all of the run lands in OUT: config, episodes, metrics, checkpoints, what it learned."""

    env: Annotated[str, arg(metavar="ID")]
    """An environment of `ube envs`, such as DeepSea-v0, atari/Breakout, gym/CartPole-v1, or your own module:NAME."""
    agent: Annotated[str, arg(metavar="PRESET")] = "ube-deep"
    """A preset of `ube agents`."""
    steps: Annotated[int | None, arg(metavar="N")] = None
    """Decisions of the agent (50000 if not given)."""
    frames: Annotated[int | None, arg(metavar="N")] = None
    """Instead of --steps, frames of an Atari game: four for each decision."""
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE ...")] = ()
    """Replace fields of the agent (beta=0.1 n=5) and arguments of the environment (env.size=20)."""
    seed: int = 0
    """Of weights, exploration and environment; the same seed gives the same run to the bit on a CPU."""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """A new folder; runs/ENV-PRESET-seedN if not given."""
    resume: bool = False
    """Go on from the last checkpoint in OUT, as if the run had never stopped."""
    checkpoint_minutes: Annotated[float, arg(metavar="M")] = 10.0
    """Minutes between checkpoints."""
    protocol: Annotated[str, arg(metavar="NAME")] = "auto"
    """How Atari games are played and learned from: mnih2015 (the paper's), machado2018 (sticky actions), dopamine, or short
    (the games of mnih2015, learned from as suits up to 10 million frames). auto: short, and mnih2015 for longer runs."""
    envs: Annotated[int, arg(metavar="E")] = 1
    """Games side by side, of Atari or Gymnasium."""
    evaluate_every: Annotated[int | None, arg(metavar="FRAMES")] = None
    """Between evaluations, around which games begin anew: 1000000 frames of Atari, 10000 steps of Gymnasium."""
    evaluation_frames: Annotated[int | None, arg(metavar="FRAMES")] = None
    """Of an evaluation, whose games are played to their end: 500000 frames of Atari, 2000 steps of Gymnasium."""
    evaluation_policy: Annotated[str, arg(metavar="greedy|own|both|none")] = "both"
    """Who acts then: greedy but for a small ε (field epsilon_evaluation), the agent's own policy, both in turn, or none."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard as well (pip install 'ube-rl[tensorboard]')."""
    wandb: bool = False
    """Send the metrics to Weights & Biases as well (pip install 'ube-rl[wandb]'); WANDB_MODE=offline only writes them."""
    explain: bool = False
    """Say what would be chosen and why, and stop."""

    def run(self) -> None:
        from ube.deep.config import agent_config, parse_overrides
        from ube.envs import make
        from ube.envs.atari import FRAME_SKIP, PREFIX
        from ube.runs import Schedule, train

        overrides, env_args = parse_overrides(self.set)
        skip = FRAME_SKIP if self.env.startswith(PREFIX) else 1
        every, frames = (value and value // skip for value in (self.evaluate_every, self.evaluation_frames))
        schedule = Schedule(
            evaluate_every=every, evaluation_steps=frames,
            evaluation_policy=self.evaluation_policy, n_envs=self.envs, checkpoint_minutes=self.checkpoint_minutes,
            track=tuple(name for name in ("tensorboard", "wandb") if getattr(self, name)),
        )  # fmt: skip
        if self.explain:
            self._explain(env_args, overrides, schedule)
            return
        agent_config(self.agent, overrides)
        make(self.env, **env_args)  # the usual mistakes are said at once, and alone
        with _live() as (callback, say):
            run = train(
                self.env, self.agent, self.steps, self.seed, frames=self.frames, protocol=self.protocol,
                env_args=env_args, overrides=overrides, out=self.out, callback=callback, schedule=schedule,
                resume=self.resume, say=say,
            )  # fmt: skip
        returns = run.episodes["episode_return"]
        last = returns[-max(1, len(returns) // 10) :]
        if len(returns):
            print(
                f"{len(returns)} episodes; return of the last {len(last)}: {last.mean():.4g} (all: {returns.mean():.4g})"
            )
        else:
            print("no episode ended: train for more steps")
        for policy, played in run.last_evaluation().items():
            print(f"evaluation, {policy}: {played.mean():.4g} over {len(played)} episodes")
        again = f" --env {self.env}" if ":" in self.env else ""
        network = str(overrides.get("network", ""))
        again += f" --network {network}" if ":" in network else ""
        print(f"Open {run.plot()}; `ube evaluate {run.path}{again}` plays it")

    def _explain(self, env_args: dict[str, Any], overrides: dict[str, Any], schedule: Any) -> None:
        from ube.runs.plan import explained, planned

        plan = planned(
            self.env, self.agent, self.steps, self.seed, frames=self.frames, protocol=self.protocol, env_args=env_args,
            overrides=overrides, schedule=schedule,
        )  # fmt: skip
        table = Table("what", "chosen", "why", title=f"{self.agent} on {self.env}, {plan.steps:,} steps")
        for reason in explained(plan):
            table.add_row(*reason)
        _console().print(table)


@dataclass
class Evaluate:
    """Play a trained agent without learning, and print its returns."""

    run_dir: Annotated[Positional[Path], arg(metavar="RUN_DIR")]
    """A folder that `ube train` wrote."""
    env: Annotated[str | None, arg(metavar="module:NAME")] = None
    """Its environment, if that is one of your own."""
    network: Annotated[str | None, arg(metavar="module:NAME")] = None
    """Its network, likewise."""
    best: bool = False
    """The agent of the best evaluation in training, instead of the last (Atari and Gymnasium)."""
    episodes: Annotated[int | None, arg(metavar="N")] = None
    """How many (10 if not given; 50 for --calibration, 20 for --map)."""
    policy: Annotated[str, arg(metavar="greedy|own")] = "greedy"
    """greedy but for a small ε (--epsilon), or the agent's own exploring policy."""
    epsilon: Annotated[float | None, arg(metavar="E")] = None
    """Share of random actions of the greedy policy; the field epsilon_evaluation if not given. With 0, a deterministic game
    is the same in every episode."""
    seed: int = 0
    """Of the environment and the policy's noise."""
    out: Annotated[Path | None, arg(metavar="FILE.json")] = None
    """Write the returns to this file as well."""
    video: Annotated[Path | None, arg(metavar="FILE.gif")] = None
    """Instead, film one game with u under the screen (Atari, or Gymnasium's rgb_array; at most 1000 decisions)."""
    episode: Annotated[Path | None, arg(metavar="FILE.png")] = None
    """Instead, draw one episode: Q of the actions taken with β√u around it, √u, √ν and rewards (.png, .svg or .pdf)."""
    calibration: Annotated[Path | None, arg(metavar="FILE.png")] = None
    """Instead, draw how wrong Q was about the returns that followed, against β√u."""
    map: Annotated[Path | None, arg(metavar="FILE.png")] = None
    """Instead, draw β√u beside visits, over two numbers of the observation or over one-hot cells."""
    dims: Annotated[tuple[int, int], arg(metavar="I J")] = (0, 1)
    """Of --map: which two numbers."""
    grid: Annotated[tuple[int, int] | None, arg(metavar="ROWS COLUMNS")] = None
    """Of --map: how states that are numbered through lie, such as 4 12 for CliffWalking."""

    def run(self) -> None:
        from ube.files import to_json, write_atomically
        from ube.runs import load

        run = load(self.run_dir, self.env, network=self.network, best=self.best)
        if self._drawn(run):
            return
        played = run.evaluate(self._episodes(10), policy=self.policy, seed=self.seed, epsilon=self.epsilon)
        returns, lengths = played
        table = Table(
            "episodes",
            "mean return",
            "std",
            "lowest",
            "highest",
            "mean length",
            title=plain(str(self.run_dir)) + (", at its best evaluation" if self.best else ""),
        )
        numbers = (returns.mean(), returns.std(), returns.min(), returns.max(), lengths.mean())
        table.add_row(str(len(returns)), *(f"{number:.4g}" for number in numbers))
        _console().print(table)
        if self.out is not None:
            used = run.config["agent"]["epsilon_evaluation"] if self.epsilon is None else self.epsilon
            content = {
                "run": run.config,
                "best": self.best,
                "policy": self.policy,
                "epsilon": used if self.policy == "greedy" else None,
                "seed": self.seed,
                **played._asdict(),
            }
            write_atomically(self.out, to_json(content))

    def _episodes(self, default: int) -> int:
        return default if self.episodes is None else self.episodes

    def _drawn(self, run: Run) -> bool:
        """Draws what was asked for; whether there was any."""
        made = [path for path in (self.video, self.episode, self.calibration, self.map) if path is not None]
        if made and self.epsilon is not None:
            raise UsageError(f"--epsilon {self.epsilon:g}: pictures are drawn with the run's own ε; leave one out")
        how: dict[str, Any] = {"policy": self.policy, "seed": self.seed}
        if self.video is not None:
            run.video(self.video, **how)
        if self.episode is not None:
            run.plot_episode(self.episode, **how)
        if self.calibration is not None:
            run.plot_calibration(self.calibration, episodes=self._episodes(50), **how)
        if self.map is not None:
            run.plot_map(self.map, dims=self.dims, grid=self.grid, episodes=self._episodes(20), **how)
        for path in made:
            print(f"Open {path}")
        return bool(made)


@dataclass
class Envs:
    """List the environments there are, with their arguments."""

    def run(self) -> None:
        from ube.envs import environments

        table = Table("id", "what", "arguments (--set env.NAME=VALUE)")
        for listed in environments():
            table.add_row(listed.id, listed.description, " ".join(f"{k}={v}" for k, v in listed.args.items()))
        _console().print(table)


@dataclass
class Variance:
    """Mean and variance of the Q-values under a belief in an .npz file, and whether that variance is exact or a bound."""

    model: Annotated[Positional[Path | None], arg(metavar="MODEL.npz")] = None
    """A file made by numpy.savez; --arrays says what it holds."""
    arrays: bool = False
    """List the arrays that a model file can hold, and stop."""
    method: Annotated[str, arg(metavar="NAME")] = "exact"
    """ube, ube-horizon, count, pombu, exact, lower or delta (docs/theory.md)."""
    policy: Annotated[str | None, arg(metavar="uniform|greedy")] = None
    """Instead of the policy in the file (uniform if it has none)."""
    samples: int = 0
    """Also draw this many MDPs from the belief and report the Monte Carlo variance beside it."""
    seed: int = 0
    """For --samples."""
    rows: int = 20
    """How many (state, action) rows to print; the JSON holds all."""
    json: bool = False
    """Print JSON instead of the table."""
    out: Annotated[Path | None, arg(metavar="FILE.json")] = None
    """Write the JSON to this file."""

    def run(self) -> None:
        import numpy as np

        from ube.files import to_json, write_atomically
        from ube.tabular import METHODS, monte_carlo, solve
        from ube.tabular.model_file import FORMAT, read_model

        if self.arrays:
            print(FORMAT, end="")
            return
        if self.model is None:
            raise UsageError("which model? `ube variance --arrays` says what a model file holds")
        if self.method not in METHODS:
            raise UsageError(f"unknown method {self.method!r}: choose one of {', '.join(METHODS)}")
        for name in ("samples", "seed", "rows"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name} {getattr(self, name)}: it must be 0 or more")
        belief, policy = read_model(self.model)
        policy = policy if self.policy is None else self.policy
        solution = solve(belief, policy, self.method)
        columns: dict[str, Any] = {"q_mean": solution.q_mean, "variance": solution.variance}
        if self.samples:
            oracle = monte_carlo(belief, policy, self.samples, rng=np.random.default_rng(self.seed))
            columns |= {"monte_carlo_variance": oracle.variance, "monte_carlo_se": oracle.variance_se}
        content = {
            "model": self.model.name,
            "method": self.method,
            "guarantee": solution.guarantee,
            "why": solution.why,
            "ube": __version__,
            **columns,
        }
        if self.out is not None:
            write_atomically(self.out, to_json(content, digits=17))
        if self.json:
            print(to_json(content, digits=17), end="")
            return
        flat = {name: belief.graph.per_row(values, name) for name, values in columns.items()}
        table = Table("entry", *columns, title=plain(f"{self.model.name}: {self.method}"))
        shown = [r for r in range(belief.graph.n_decisions * belief.graph.n_actions) if belief.graph.successors[r] > 0]
        for row in shown[: self.rows]:
            table.add_row(belief.graph.entry(row), *(f"{flat[name][row]:.6g}" for name in columns))
        console = _console()
        console.print(table)
        if len(shown) > self.rows:
            console.print(f"… and {len(shown) - self.rows} more (--rows, --json or --out show them)")
        console.print(f"guarantee: {solution.guarantee}, because {solution.why}")


@dataclass
class Report:
    """Write one self-contained page, DIR/index.html, from the results in a folder."""

    dir: Annotated[Positional[Path], arg(metavar="DIR")]
    """A folder that `ube reproduce`, `ube train` or `ube suite run` wrote to."""
    markdown: Annotated[Path | None, arg(metavar="FILE.md")] = None
    """Write the printed tables to this file instead, as Markdown."""

    def run(self) -> None:
        from ube.report import write_markdown, write_page

        if self.markdown is None:
            print(f"Open {write_page(self.dir)}")
        else:
            write_markdown(self.dir, self.markdown)
            print(f"Wrote {self.markdown}")


@dataclass
class Agents:
    """List the agents there are and what they do."""

    def run(self) -> None:
        from ube.tabular.agents import AGENTS

        table = Table("agent", "kind", "variance", "noise", "beta", title="tabular agents")
        for agent in AGENTS.values():
            is_ube = agent.kind == "ube"
            uses_variance = agent.kind in ("ube", "bonus", "k-learning")
            table.add_row(
                agent.name, agent.kind, agent.variance if uses_variance else "–", agent.noise if is_ube else "–",
                f"{agent.beta:g}",
            )  # fmt: skip
        _console().print(table)
        from ube.deep.config import ABOUT, PRESETS, difference

        table = Table("agent", "what", "differs from the defaults in", title="learning agents (ube train --agent)")
        for name, config in PRESETS.items():
            table.add_row(name, ABOUT[name], difference(config))
        _console().print(table)


COMMANDS: dict[str, type] = {
    "train": Train, "compare": Compare, "evaluate": Evaluate, "reproduce": Reproduce, "variance": Variance,
    "suite": SuiteCommand, "report": Report, "agents": Agents, "envs": Envs, "doctor": Doctor, "completion": Completion,
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    if words in (["--version"], ["-V"]):
        print(f"ube {__version__}")
        return
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        print(f"ube: no command {words[0]!r}: {nearest(words[0], list(COMMANDS))}", file=sys.stderr)
        sys.exit(2)
    commands: Any = functools.reduce(
        operator.or_, (Annotated[kind, subcommand(name)] for name, kind in COMMANDS.items())
    )
    description = "Exploration by the uncertainty Bellman equation."
    try:
        chosen: Any = tyro.cli(
            commands, prog="ube", description=description, args=words or ["--help"],
            config=(tyro.conf.FlagCreatePairsOff,),
        )  # fmt: skip
    except SystemExit:
        if not words:  # a script that forgot the command must not go on
            sys.exit(2)
        raise
    if words[0] in ("train", "evaluate", "compare"):  # module:NAME may be in this folder
        sys.path.append(os.getcwd())
    try:
        with terminable():
            chosen.run()
    except UsageError as error:
        print(f"ube: {plain(str(error))}", file=sys.stderr)
        sys.exit(2)
    except RunError as error:
        print(f"ube: {plain(str(error))}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print("ube: stopped", file=sys.stderr)
        sys.exit(CODES[signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT])
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(
            f"ube: {plain(str(error.filename or 'output'))}: {error.strerror}; choose another place or make room",
            file=sys.stderr,
        )
        sys.exit(2)
    except MemoryError as error:
        print(f"ube: not enough memory ({error}); try a smaller model or replay_size, or method pombu", file=sys.stderr)
        sys.exit(2)


def print_tables(results: dict[str, Any]) -> None:
    from ube.figures import EXPERIMENTS
    from ube.report.tables import summary_tables

    console = _console()
    console.print(f"\n{results['title']}", style="bold")
    for summary in summary_tables(EXPERIMENTS[results["name"]].headline(results)):
        table = Table(summary.corner, *summary.columns, title=summary.title)
        for cells in summary.rows:
            table.add_row(*cells)
        console.print(table)


def _console() -> Console:
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A live bar on a terminal, a line per stage elsewhere; always on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        seen: set[str] = set()

        def line(what: str, done: int, total: int) -> None:
            if what not in seen:
                seen.add(what)
                print(f"{what}: {total} runs", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def move(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield move


@contextmanager
def _live() -> Iterator[tuple[Callable[[RunProgress], None], Callable[[str], None]]]:
    """How a run is going: a bar with its numbers on a terminal, a line per tenth elsewhere; always on stderr."""
    shown = ("return", "q", "u", "loss", "epsilon", "steps_per_second", "frames_per_second")
    console = Console(stderr=True, highlight=False, markup=False)

    def words(metrics: dict[str, float]) -> str:
        return "  ".join(
            f"{name.replace('_per_second', '/s')} {metrics[name]:.3g}" for name in shown if name in metrics
        )

    if not console.is_terminal:
        tenth = -1

        def line(now: RunProgress) -> None:
            nonlocal tenth
            if 10 * now.step // now.steps > tenth:
                tenth = 10 * now.step // now.steps
                print(f"step {now.step:,} of {now.steps:,}  {words(now.metrics)}", file=sys.stderr, flush=True)

        print("compiling …", file=sys.stderr, flush=True)
        yield line, lambda text: print(f"ube: {text}", file=sys.stderr, flush=True)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("compiling …", total=None)
        seen: dict[str, float] = {}

        def move(now: RunProgress) -> None:
            seen.update(now.metrics)  # no episode may have ended lately
            bar.update(task, completed=min(now.step, now.steps), total=now.steps, description=words(seen))

        yield move, console.print
