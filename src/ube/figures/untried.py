"""Which actions Algorithm 1 takes on frames, and what it thinks of those that it does not take."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.learning_cells import Cell, Result
from ube.figures.results import Row, row, rows_of_metrics
from ube.figures.style import canvas
from ube.figures.workers import Workers

ACTIONS = {"atari/breakout": ("nothing", "fire", "right", "left")}
METRICS = (
    "share_of_the_rarest_action", "share_of_the_commonest_action", "nu_of_the_rarest_action",
    "nu_of_the_commonest_action", "sqrt_u_of_the_rarest_action", "sqrt_u_of_the_commonest_action", "q_gap",
)  # fmt: skip


@dataclass(frozen=True)
class UntriedCell(Cell):
    """A short run, and then a game by the agent's own policy without learning."""

    decisions: int = 500
    """Of that game, at most."""

    def run(self, kept: Path) -> Result:
        from ube.runs import Schedule, train

        run = train(
            self.env, self.agent, self.steps, self.seed, env_args=self.env_args, overrides=self.overrides,
            out=kept / "runs" / self.key, resume=True, say=lambda text: None,
            schedule=Schedule(evaluate_every=self.steps, evaluation_policy="none"),
        )  # fmt: skip
        agent = run.agent
        game = next(agent.episodes(1, seed=self.seed, longest=self.decisions, observations=False))
        ordered = np.sort(game.q, 1)
        return {
            "taken": np.asarray(agent.state.counts.visits).tolist(),  # Σ_a has seen each decision for a
            "nu": game.nu.mean(0).tolist(),
            "sqrt_u": np.sqrt(game.u).mean(0).tolist(),
            "q_gap": float((ordered[:, -1] - ordered[:, -2]).mean()),
        }


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    there = importlib.util.find_spec("ale_py") is not None or not settings["env"].startswith("atari/")
    variants = settings["variants"] if there else {}
    seeds = range(first_seed, first_seed + settings["seeds"])
    cells = [
        UntriedCell(settings["env"], "ube-1step", seed, settings["steps"], overrides=settings["overrides"] | changes)
        for changes in variants.values()
        for seed in seeds
    ]
    with Workers(kept, progress) as workers:
        results = iter(workers.run("untried actions", cells))
    summary: list[Row] = []
    shares: dict[str, list[list[float]]] = {}
    for variant in variants:
        runs = [next(results) for _ in seeds]
        shares[variant] = [(np.array(run["taken"]) / sum(run["taken"])).tolist() for run in runs]
        values = np.array([_values(run) for run in runs])
        summary += [
            row(variant, {"env": settings["env"], "steps": settings["steps"]}, metric, *map(float, found))
            for metric, found in zip(
                METRICS, zip(values.mean(0), values.min(0), values.max(0), strict=True), strict=True
            )
        ]
    names = ACTIONS.get(settings["env"]) or [f"action {i}" for i in range(len(next(iter(shares.values()), [[]])[0]))]
    return {"summary": summary, "data": {"shares": shares, "actions": list(names), "left_out": not there}}


def _values(run: Result) -> list[float]:
    """METRICS of a run."""
    taken = np.array(run["taken"])
    rare, common = int(taken.argmin()), int(taken.argmax())
    each = (taken / taken.sum(), np.array(run["nu"]), np.array(run["sqrt_u"]))
    return [*(float(values[action]) for values in each for action in (rare, common)), run["q_gap"]]


@contextmanager
def plot_shares(results: Results) -> Iterator[Any]:
    """A bar for each seed of each variant, cut into the actions it took."""
    shares, names = results["data"]["shares"], results["data"]["actions"]
    with canvas(width=5.5, height=2.4) as (figure, axes):
        axis, at, ticks = axes[0, 0], 0.0, []
        for runs in shares.values():
            for share in runs:
                edges = np.concatenate([[0.0], np.cumsum(share)])
                for index, width in enumerate(share):
                    axis.barh(at, width, left=edges[index], height=0.8, color=COLOURS[index % len(COLOURS)])
                at += 1
            ticks.append(at - len(runs) / 2 - 0.5)
            at += 0.6
        axis.set_yticks(ticks, list(shares))
        axis.invert_yaxis()
        axis.set(xlim=(0, 1), xlabel="share of the decisions (a bar for each seed)")
        axis.grid(visible=False)
        handles = [axis.barh(0, 0, color=COLOURS[i % len(COLOURS)], label=name) for i, name in enumerate(names)]
        if shares:
            figure.legend(handles=handles, loc="outside lower center", ncols=len(names))
        yield figure


COLOURS = ("#777777", "#D55E00", "#0072B2", "#56B4E9", "#009E73", "#E69F00")
RANDOM = {"initial_values": "random"}
AS_PRINTED = RANDOM | {"warmup_policy": "agent"}
VARIANTS: dict[str, dict[str, Any]] = {
    "Algorithm 1 as printed": AS_PRINTED,
    "… with random warm-up": RANDOM,
    "… with u = ν + what follows": AS_PRINTED | {"u_predicts": "continuation"},
    "… with output layers of zero": {"warmup_policy": "agent"},
}

EXPERIMENT = Experiment(
    name="untried",
    title="The actions that Algorithm 1 never tries",
    note=(
        "ube-1step in Breakout, with Adam and φ of unit length. As the algorithm is printed, u is learned for actions "
        "that were taken only: an action that the random weights disfavour keeps its large ν, but ν never reaches its u. "
        "Without FIRE no game of Breakout begins. Beside it three changes, each alone: random play before learning "
        "starts, as Mnih et al. fill their replay; u = ν + what follows, a switch within Algorithm 1; output layers that "
        "start at zero. The first and the last cure it. With the second u of an untried action is right, but at the "
        "paper's β = 0.01 too little to overcome what random weights say of Q. Means over seeds with the lowest and "
        "highest; √u, ν and q_gap (the best Q less the second best) are of a game by the agent's own policy after "
        "training."
    ),
    scales={
        "quick": {
            "env": "Breakout-MinAtar", "steps": 1_000, "seeds": 2, "overrides": {"warmup": 200},
            "variants": {name: VARIANTS[name] for name in list(VARIANTS)[:2]},
        },
        "paper": {
            "env": "atari/breakout", "steps": 20_000, "seeds": 3, "variants": VARIANTS,
            "overrides": {"warmup": 5_000, "replay_size": 25_000, "q_steps": 1},
        },
    },
    job=job,
    plots={"untried": plot_shares},
    headline=partial(rows_of_metrics, metrics=METRICS),
    keeps_cells=True,
)  # fmt: skip
