"""`ube compare`: parse, call, print."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import arg

from ube.errors import RunError, plain


@dataclass
class Compare:
    """Train several agents with several seeds each; a table with intervals, learning curves, and a page, OUT/index.html.

    What is done is not done again: the same command goes on after Ctrl-C, and more agents or seeds join those in OUT."""

    env: Annotated[str, arg(metavar="ID")]
    """An environment of `ube envs`."""
    agents: Annotated[tuple[str, ...], arg(metavar="PRESET,PRESET,...")] = ("dqn,ube-deep,boot",)
    """Presets of `ube agents`, with commas or spaces between; the others are measured by the first."""
    seeds: Annotated[int, arg(metavar="N")] = 5
    """How many, each a run of every agent."""
    steps: Annotated[int | None, arg(metavar="N")] = None
    """Decisions of each run, as of `ube train`."""
    frames: Annotated[int | None, arg(metavar="N")] = None
    """Instead of --steps, frames of an Atari game."""
    set: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE ...")] = ()
    """Replace fields of all agents (learning_rate=0.001) and arguments of the environment (env.size=20)."""
    seed: int = 0
    """The first seed."""
    episodes: Annotated[int, arg(metavar="N")] = 10
    """Of the evaluation after training, by each policy."""
    protocol: Annotated[str, arg(metavar="NAME")] = "auto"
    """Of Atari games, as of `ube train`."""
    evaluation_frames: Annotated[int | None, arg(metavar="FRAMES")] = None
    """Of an evaluation of Atari; half of --frames, and 500000 at most, if not given."""
    workers: Annotated[int | None, arg(metavar="N")] = None
    """Processes side by side, which share the cores; one for each core if not given."""
    checkpoint_minutes: Annotated[float, arg(metavar="M")] = 10.0
    """Minutes between the checkpoints of a run: as much as a killed process can lose."""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """The folder; compare/ENV if not given."""

    def run(self) -> None:
        from ube.comparison.compare import compare
        from ube.deep.config import parse_overrides
        from ube.figures.comparison import headline
        from ube.report.tables import summary_tables
        from ube.suite.command import watched

        overrides, env_args = parse_overrides(self.set)
        found = compare(
            self.env, [name for word in self.agents for name in word.replace(",", " ").split()], self.steps, self.seeds,
            frames=self.frames, seed=self.seed, protocol=self.protocol, env_args=env_args, overrides=overrides,
            episodes=self.episodes, evaluation_frames=self.evaluation_frames, out=self.out, workers=self.workers,
            checkpoint_minutes=self.checkpoint_minutes, watch=watched,
        )  # fmt: skip
        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)
        for summary in summary_tables(headline(found.results)):
            table = Table(summary.corner, *summary.columns, title=plain(f"{summary.title}, {found.results['title']}"))
            for cells in summary.rows:
                table.add_row(*cells)
            console.print(table)
        console.print(
            "Means over seeds (95 % interval); better: the probability that a run beats one of the first agent."
        )
        print(f"Open {found.page}")
        for cell, why in found.failures.items():
            print(plain(f"{cell} failed: {(why.strip().splitlines() or [''])[-1]}"), file=sys.stderr)
        if found.failures:
            raise RunError(f"{len(found.failures)} runs failed; the same command tries them again")
