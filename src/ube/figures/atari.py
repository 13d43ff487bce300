"""Atari: our DQN beside Dopamine's public curves, and a small comparison of agents on the real emulator."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ube.figures.charts import Chart, of_bins
from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.learning_cells import Cell, Result, binned
from ube.figures.results import Row, evaluations, row, rows_of, rows_of_metrics
from ube.figures.style import canvas, draw, legend_below
from ube.figures.workers import Workers
from ube.stats import atari
from ube.suite.cells import FRAME_SKIP

BINS = 20
MILLION = 1_000_000
PUBLIC = "dopamine, public"
METRICS = (
    "training_return",
    "training_return_last_tenth",
    "evaluation_return",
    "own_policy_return",
    "frames_to_first_score",
)


@dataclass(frozen=True)
class AtariCell(Cell):
    """A run of `ube.train`, which goes on from its checkpoint if it was stopped."""

    protocol: str = "auto"
    evaluation_steps: int = 0
    """Decisions of the evaluation at the end, greedy but for ε and again by the agent's own policy; 0 for none."""

    def run(self, kept: Path) -> Result:
        from ube.runs import Schedule, train

        schedule = Schedule(
            evaluate_every=self.steps, evaluation_steps=max(self.evaluation_steps, 1),
            evaluation_policy="both" if self.evaluation_steps else "none",
        )  # fmt: skip
        run = train(
            self.env, self.agent, self.steps, self.seed, env_args=self.env_args, overrides=self.overrides,
            protocol=self.protocol, out=kept / "runs" / self.key, resume=True, schedule=schedule,
            say=lambda text: None,
        )  # fmt: skip
        played, step = run.last_evaluation(), run.episodes["step"].astype(int)
        scored = step[run.episodes["episode_return"] > 0]
        return {
            "first_score_step": int(scored[0]) if len(scored) else None,
            "bins": binned(step, run.episodes["episode_return"], None, self.steps, BINS),
            "metrics": {name: run.metrics[name].tolist() for name in ("step", "q", "u", "frames_per_second")},
            "greedy_returns": played.get("greedy", np.zeros(0)).tolist(),
            "own_returns": played.get("own", np.zeros(0)).tolist(),
        }


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    from ube.envs.atari import PREFIX, REMEDY  # brings JAX, which describing the experiment must not

    seeds = range(first_seed, first_seed + settings["seeds"])
    games = settings["games"] if importlib.util.find_spec("ale_py") else []
    left_out = [
        {"game": game, "why": f"left out: ale-py is not installed; {REMEDY}"} for game in settings["games"] if not games
    ]
    steps = settings["frames"] // FRAME_SKIP
    base = AtariCell(
        "", "", 0, steps, overrides=settings["overrides"], protocol=settings["protocol"],
        evaluation_steps=settings["evaluation_frames"] // FRAME_SKIP,
    )  # fmt: skip
    cells = [
        dataclasses.replace(base, env=PREFIX + game, agent=agent, seed=seed)
        for game in games
        for agent in agents_of(settings, game)
        for seed in seeds
    ]
    with Workers(kept, progress) as workers:
        results = iter(workers.run("atari", cells))
    summary: list[Row] = []
    curves: dict[str, dict[str, Any]] = {}
    for game in games:
        curves[game] = {}
        for agent in agents_of(settings, game):
            runs = [next(results) for _ in seeds]
            mean, low, high = _over_seeds(np.array([_curve(run) for run in runs]))
            curves[game][agent] = {
                "mean": mean,
                "low": low,
                "high": high,
                "seeds": [_training(run, 1.0) for run in runs],
            }
            summary += _rows(agent, {"game": game, "frames": settings["frames"]}, runs)
        if settings["protocol"] == "dopamine":
            summary += _beside_public(game, settings["frames"], curves[game])
    return {"summary": summary, "data": {"bins": BINS, "curves": curves, "left_out": left_out}}


def agents_of(settings: dict[str, Any], game: str) -> list[str]:
    """All agents, unless the settings name those of this game."""
    return settings.get("agents_of", {}).get(game, settings["agents"])


def _curve(run: Result) -> np.ndarray:
    total, episodes = (np.array(run["bins"][key], float) for key in ("returns", "episodes"))
    return np.where(episodes > 0, total / np.maximum(episodes, 1), np.nan)


def _training(run: Result, share: float) -> float:
    """Mean return of the games that ended in the last `share` of training."""
    last = slice(BINS - round(share * BINS), None)
    games = sum(run["bins"]["episodes"][last])
    return sum(run["bins"]["returns"][last]) / games if games else math.nan


def _over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, lowest and highest of each column of (seeds, columns), of what is there: an interval of so few seeds would span
    all there is."""
    there = [column[np.isfinite(column)] for column in np.transpose(values)]
    mean = np.array([column.mean() if len(column) else math.nan for column in there])
    low, high = (np.array([end(c) if len(c) > 1 else math.nan for c in there]) for end in (np.min, np.max))
    return mean, low, high


def _rows(agent: str, setting: dict[str, Any], runs: list[Result]) -> list[Row]:
    values = {
        "training_return": np.array([_training(run, 1.0) for run in runs]),
        "training_return_last_tenth": np.array([_training(run, 0.1) for run in runs]),
        **evaluations(runs),
    }
    rows = [
        row(agent, setting, metric, *(float(number[0]) for number in _over_seeds(value[:, None])))
        for metric, value in values.items()
        if len(value) and np.isfinite(value).all()  # a game ended in each run
    ]
    firsts = [run["first_score_step"] for run in runs]
    frames = [math.inf if step is None else step * FRAME_SKIP for step in firsts]
    return [*rows, row(agent, setting, "frames_to_first_score", *(_reached(f(frames)) for f in (np.median, min, max)))]


def _reached(frames: float) -> int | None:
    return None if math.isinf(frames) else int(frames)


def _beside_public(game: str, frames: int, curves: dict[str, Any]) -> list[Row]:
    """Only whole millions compare: Dopamine publishes the mean over each."""
    setting = {"game": game, "frames": frames}
    found = atari.public_dqn(game)
    if found is None:
        return []
    public = found[1][0]  # of the first million frames
    rows = [row(PUBLIC, setting, "training_return", float(public.mean()), float(public.min()), float(public.max()))]
    if frames == MILLION:
        ours = np.array(curves["dqn"]["seeds"])
        within = int(((public.min() <= ours) & (ours <= public.max())).sum())
        rows.append(row("dqn", setting, "seeds_within_public_spread", within))
    return rows


def charts(results: Results) -> list[Chart]:
    curves, frames = results["data"]["curves"], results["settings"]["frames"]
    return of_bins(curves, dict.fromkeys(curves, frames), "frames", _score_label(results))


def _score_label(results: Results) -> str:
    several = results["settings"]["seeds"] > 1
    return "training score (mean, range)" if several else "training score (one seed)"


@contextmanager
def plot_curves(results: Results) -> Iterator[Any]:
    data, frames = results["data"], results["settings"]["frames"]
    columns = max(1, len(data["curves"]))
    with canvas(columns=columns, width=3.2, height=2.5) as (figure, axes):
        x = (np.arange(data["bins"]) + 0.5) * frames / data["bins"]
        for axis, (game, curves) in zip(axes[0], data["curves"].items(), strict=False):
            for agent, curve in curves.items():
                mean, low, high = (np.array(curve[key], float) for key in ("mean", "low", "high"))
                draw(axis, agent, x, mean, low, high, marks=True)
            if rows_of(results, "seeds_within_public_spread", game=game):
                (public,) = rows_of(results, "training_return", PUBLIC, game=game)
                (ours,) = rows_of(results, "training_return", "dqn", game=game)
                axis.axhspan(public["low"], public["high"], color="#CC79A7", alpha=0.3, linewidth=0, label=PUBLIC)
                axis.axhline(ours["value"], color="black", linestyle=":", label="dqn, mean over the million")
            axis.set(title=game, xlabel="frames", xlim=(0, frames))
        if not data["curves"]:
            axes[0, 0].text(0.5, 0.5, "left out: ale-py is not installed", ha="center", transform=axes[0, 0].transAxes)
        else:
            axes[0, 0].set_ylabel(_score_label(results))
            legend_below(figure, axes[0, 0], 2 * columns)
        yield figure


QUICK = {
    "frames": 4_000, "evaluation_frames": 0, "seeds": 2,
    "overrides": {"replay_size": 1_000, "warmup": 400, "epsilon_steps": 400},
}  # fmt: skip

DOPAMINE = Experiment(
    name="atari-dopamine",
    title="Atari: our DQN beside Dopamine's public curves",
    note=(
        "dqn with Dopamine's settings (sticky actions, no life loss, ε from 1 to 0.01 over 250,000 decisions). Dopamine "
        "publishes, for five seeds, the mean return of the games in each million frames; the band is their spread in the "
        "first, the dotted line our mean over the same million, the curve our mean in each twentieth of it. The replay holds "
        "all decisions of the run."
    ),
    scales={
        "quick": {"agents": ["dqn"], "games": ["breakout"], "protocol": "dopamine"} | QUICK,
        "paper": {
            "agents": ["dqn"], "games": ["breakout", "pong"], "protocol": "dopamine", "frames": MILLION,
            "evaluation_frames": 0, "seeds": 1, "overrides": {"replay_size": 260_000},
        },
    },
    job=job,
    plots={"atari-dopamine": plot_curves},
    headline=partial(rows_of_metrics, metrics=("training_return", "seeds_within_public_spread")),
    charts=charts,
    keeps_cells=True,
)  # fmt: skip

EXPERIMENT = Experiment(
    name="atari",
    title="Atari: the paper's agents and ours on the real emulator, a million frames",
    note=(
        "The games of Mnih et al. 2015, learned from with Adam, three-step Q-learning and a schedule that fits so few frames "
        "(warm-up 5,000 decisions, ε of dqn down to 0.1 over 50,000), the same for all agents. Training score: of all games, "
        "and of those that ended in the last tenth of training. Evaluation: without learning, greedy but for ε = 0.05, and "
        "by the agent's own policy. Means over three seeds, with the lowest and the highest; frames_to_first_score is the "
        "median seed's, at the end of its first game with a score. A two-hundredth of the paper's frames."
    ),
    scales={
        "quick": {"agents": ["dqn", "ube-1step"], "games": ["space_invaders"], "protocol": "short"} | QUICK,
        "paper": {
            "agents": ["dqn", "ube-1step", "ube-nstep", "ube-deep"], "games": ["freeway", "breakout", "qbert", "asterix"],
            "agents_of": {"freeway": ["dqn", "ube-deep"], "qbert": ["dqn", "ube-deep"], "asterix": ["dqn", "ube-deep"]},
            "protocol": "short", "frames": MILLION, "evaluation_frames": 100_000, "seeds": 3, "overrides": {},
        },
    },
    job=job,
    plots={"atari": plot_curves},
    headline=partial(rows_of_metrics, metrics=METRICS),
    charts=charts,
    keeps_cells=True,
)  # fmt: skip
