"""One setting of each agent on many tasks: those that settings were chosen on, and others that nobody had looked at."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.learning_cells import LearningCell, Result
from ube.figures.minatar import final_return
from ube.figures.results import Row, quartiles, row, rows_of, rows_of_metrics
from ube.figures.style import canvas, draw, legend_below
from ube.figures.sweep import CANDIDATES, sweep
from ube.figures.workers import Workers
from ube.stats import bootstrap, mean, mean_interval, wilson

BINS = 20
CHECKPOINTS = 10
LAST = 5
"""Checkpoints whose evaluations are averaged."""
EPSILONS = (0.0, 0.05)
REFERENCE = "dqn"
LEARNED = 0.9
"""Evaluation return at the end, with ε = 0, from which a sparse task counts as learned."""
GRIDS, GYM = "Navix-", "gym/"
SPARSE_AGENTS = ["dqn", "boot", "ube-deep"]
GAME_AGENTS = ["dqn", "dqn-small-epsilon", "greedy", "ube-deep"]


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    grids = importlib.util.find_spec("navix") is not None
    tasks = [task for task in settings["tasks"] if grids or not task["env"].startswith(GRIDS)]
    left_out = [task["env"] for task in settings["tasks"] if task not in tasks]
    summary: list[Row] = []
    returns: dict[str, dict[str, Any]] = {}
    checkpoints: dict[str, dict[str, Any]] = {}
    games: dict[str, dict[str, list[Result]]] = {}
    with Workers(kept, progress) as workers:
        for task in tasks if settings["tuning"] else []:
            if "tuning_steps" in task:
                summary += _tuning(settings["tuning"], task, workers)
        for task in tasks:
            label, agents = task_label(task), [a for a in task["agents"] if a in settings["agents"]]
            most = min(task["seeds"], settings["seeds"])
            n_seeds = {agent: min(most, settings["fewer_seeds"].get(agent, most)) for agent in agents}
            cells = [cell(task, agent, first_seed + i) for agent in agents for i in range(n_seeds[agent])]
            results = iter(workers.run(label, cells))
            runs = {agent: [next(results) for _ in range(n_seeds[agent])] for agent in agents}
            for agent in agents:
                summary += task_rows(agent, task, runs[agent])
            returns[label] = {agent: [final_return(run) for run in runs[agent]] for agent in agents}
            checkpoints[label] = {agent: _checkpoints(runs[agent]).mean(0).T for agent in agents}
            if task["kind"] == "game":
                games[label] = runs
    if REFERENCE in settings["agents"]:
        seen = {task_label(task) for task in tasks if task.get("seen")}
        summary += _means_over_games(games, seen, first_seed)
    steps = {task_label(task): task["steps"] for task in tasks}
    return {
        "summary": summary,
        "data": {"steps": steps, "returns": returns, "checkpoints": checkpoints, "left_out": left_out},
    }


def task_label(task: dict[str, Any]) -> str:
    return ", ".join([task["env"], *(f"{name} {value}" for name, value in task["env_args"].items())])


def cell(task: dict[str, Any], agent: str, seed: int, **changes: Any) -> LearningCell:
    fields = {
        "env_args": task["env_args"], "overrides": {}, "bins": BINS, "checkpoints": CHECKPOINTS, "epsilons": EPSILONS,
        "evaluation_episodes": task["episodes"], "goal": task["goal"], "chunk": min(task["steps"] // CHECKPOINTS, 10_000),
        "stop": "solved" if task["kind"] == "solve" else "never",
    }  # fmt: skip
    return LearningCell(task["env"], agent, seed, task["steps"], **(fields | changes))


def _tuning(tuning: dict[str, Any], task: dict[str, Any], workers: Workers) -> list[Row]:
    """Score: successes in training."""
    rows, _ = sweep(
        workers, f"tuning on {task_label(task)}", tuning, {"env": task_label(task)},
        make=lambda agent, change, seed: cell(
            task | {"steps": task["tuning_steps"], "kind": "sparse"}, agent, seed, overrides=change, checkpoints=0,
            evaluation_episodes=0,
        ),
        score=lambda result: result["successes"],
        lower_is_better=False,
    )  # fmt: skip
    return rows


def _checkpoints(runs: list[Result]) -> np.ndarray:
    """(seeds, checkpoints, EPSILONS): mean evaluation returns; a run that stopped once it was solved repeats its last."""
    tables = [[one["returns"] for one in run["checkpoints"]] or [[math.nan] * len(EPSILONS)] for run in runs]
    longest = max(map(len, tables))
    return np.array([table + table[-1:] * (longest - len(table)) for table in tables])


def task_rows(agent: str, task: dict[str, Any], runs: list[Result]) -> list[Row]:
    setting = {"env": task_label(task), "steps": task["steps"]}
    n, rows = len(runs), []
    if runs[0]["successes"] is not None:
        firsts, solved = (
            np.array([math.inf if run[key] is None else run[key] for run in runs])
            for key in ("first_success_step", "episodes_to_solve")
        )
        rows = [
            row(agent, setting, "seeds_with_success", *wilson(int(np.isfinite(firsts).sum()), n)),
            row(agent, setting, "first_success_step", *quartiles(firsts)),
            row(agent, setting, "latest_first_success_step", None if np.isinf(firsts).any() else int(firsts.max())),
        ]
        if task["kind"] == "solve":
            rows.append(row(agent, setting, "solved_seeds", *wilson(int(np.isfinite(solved).sum()), n)))
            return [*rows, row(agent, setting, "episodes_to_solve", *quartiles(solved))]
        rows.append(row(agent, setting, "successes", *mean_interval(np.array([run["successes"] for run in runs]))))
    rows.append(row(agent, setting, "training_return", *mean_interval(np.array([final_return(run) for run in runs]))))
    evaluated = _checkpoints(runs)
    for index, epsilon in enumerate(EPSILONS):
        at = setting | {"case": f"ε = {epsilon:g}"}
        rows.append(row(agent, at, "evaluation_return", *mean_interval(evaluated[:, -LAST:, index].mean(1))))
        rows.append(row(agent, at, "evaluation_return_at_the_end", *mean_interval(evaluated[:, -1, index])))
        if task["kind"] == "sparse" and not epsilon:
            learned = int((evaluated[:, -1, index] >= LEARNED).sum())
            rows.append(row(agent, at, "seeds_that_learned", *wilson(learned, n)))
    return rows


def _means_over_games(games: dict[str, dict[str, list[Result]]], seen: set[str], seed: int) -> list[Row]:
    """Return the means over all games, and again without those that settings were chosen on."""
    unseen = {label: runs for label, runs in games.items() if label not in seen}
    groups = [games] if len(unseen) == len(games) else [games, unseen]
    return [row for group in groups if len(group) > 1 for row in _over_games(group, np.random.default_rng(seed))]


def _over_games(games: dict[str, dict[str, list[Result]]], rng: np.random.Generator) -> list[Row]:
    """The mean over games of an agent's scores over the mean of the reference's, with a 95 % interval that draws the seeds of
    both again within each game. Only games in which every seed of the reference scores: nothing can be divided by the
    others."""

    def scores(agent: str, index: int | None) -> np.ndarray:
        """(seeds, games): of training if index is None."""
        return np.array(
            [
                [final_return(run) for run in runs[agent]]
                if index is None
                else _checkpoints(runs[agent])[:, -LAST:, index].mean(1)
                for runs in games.values()
            ]
        ).T

    rows = []
    agents = [agent for agent in next(iter(games.values())) if agent != REFERENCE]
    for index, case in ((None, "training"), *((i, f"evaluation, ε = {e:g}") for i, e in enumerate(EPSILONS))):
        reference = scores(REFERENCE, index)
        there = (reference > 0).all(0)
        for agent in agents if there.any() else []:
            found = bootstrap(
                lambda mine, theirs: mean(mine.mean(0) / theirs.mean(0)),
                scores(agent, index)[:, there], reference[:, there], rng=rng,
            )  # fmt: skip
            rows.append(row(agent, {"games": int(there.sum()), "case": case}, f"score_over_{REFERENCE}", *found))
    return rows


@contextmanager
def plot_learning(results: Results) -> Iterator[Any]:
    """Greedy evaluation against steps, ε = 0.05: mean over seeds."""
    data = results["data"]
    labels = [label for label, of in data["checkpoints"].items() if np.isfinite(_curves(of)).any()]
    columns = min(4, max(1, len(labels)))
    with canvas(columns=columns, rows=max(1, math.ceil(len(labels) / columns)), width=2.4, height=1.9) as (
        figure,
        axes,
    ):
        for axis in axes.flat[len(labels) :]:
            axis.set_axis_off()
        for axis, label in zip(axes.flat, labels, strict=False):
            for agent, curves in data["checkpoints"][label].items():
                y = np.array(curves[-1], float)
                draw(axis, agent, (np.arange(len(y)) + 1) * data["steps"][label] / CHECKPOINTS, y)
            axis.set(title=label, xlabel="steps")
        for axis in axes[:, 0]:
            axis.set_ylabel(f"evaluation, ε = {EPSILONS[-1]:g}")
        if labels:
            legend_below(figure, axes.flat[0], 5)
        yield figure


def _curves(of_agents: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.array(curves, float).ravel() for curves in of_agents.values()])


def headline(results: Results) -> list[Row]:
    # Of evaluations over several checkpoints, as less hangs on the moment; tuning as its winners.
    return rows_of_metrics(results, METRICS) + rows_of(results, "tuned_setting")


METRICS = (
    "solved_seeds", "episodes_to_solve", "seeds_with_success", "first_success_step", "latest_first_success_step",
    "successes", "seeds_that_learned", "training_return", "evaluation_return", f"score_over_{REFERENCE}",
)  # fmt: skip


def make_task(
    kind: str, env: str, steps: int, agents: list[str], seeds: int = 10, episodes: int = 20, goal: float | None = None,
    tuning_steps: int = 0, seen: bool = False, **env_args: Any,
) -> dict[str, Any]:  # fmt: skip
    """kind: "solve" stops once DeepSea's rule is met; "sparse" pays 1 for a success; "game" enters the mean over games;
    "return" is anything else. seen: settings were chosen on it, and the mean over games is also taken without it."""
    task = {
        "kind": kind, "env": env, "env_args": env_args, "steps": steps, "agents": agents, "seeds": seeds,
        "episodes": episodes, "goal": goal,
    }  # fmt: skip
    return task | ({"tuning_steps": tuning_steps} if tuning_steps else {}) | ({"seen": True} if seen else {})


_experiment = partial(
    Experiment, job=job, plots={"learning": plot_learning}, headline=headline, keeps_cells=True,
)  # fmt: skip

DEVELOPMENT = _experiment(
    name="development",
    title="Development tasks: one setting of each agent, where settings were chosen",
    note=(
        "Settings were chosen on these tasks (docs/protocol.md has what was tried), so these numbers flatter whoever was "
        "tried most, which is ube-deep; the experiment `confirmation` does not. first_success_step is the median over seeds "
        "with quartiles, latest_first_success_step the last seed's; counts of seeds have Wilson's interval. Evaluations are "
        "greedy, with ε = 0 and 0.05, the mean of the last five of ten checkpoints; seeds_that_learned have an evaluation "
        "return of at least 0.9 at the end with ε = 0. score_over_dqn is the mean over games of the score divided by dqn's, "
        "over the games in which every seed of dqn scores. tuning_score is successes in training on seeds of their own, with "
        "five values of each agent's one scale: it shows what each agent could gain. All agents run with their defaults."
    ),
    scales={
        "quick": {
            "agents": ["dqn", "ube-deep"],
            "seeds": 2,
            "fewer_seeds": {},
            "tuning": None,
            "tasks": [make_task("sparse", "KeyDoor-v0", 5_000, SPARSE_AGENTS, episodes=5, size=5)],
        },
        "paper": {
            "agents": ["dqn", "dqn-small-epsilon", "greedy", "boot", "ube-deep"],
            "seeds": 10,
            "fewer_seeds": {"boot": 5},
            "tuning": {"seeds": 2, "candidates": {name: CANDIDATES[name] for name in ("dqn", "boot", "ube-deep")}},
            "tasks": [
                make_task("game", "Breakout-MinAtar", 200_000, GAME_AGENTS, seeds=5),
                make_task("game", "SpaceInvaders-MinAtar", 200_000, GAME_AGENTS, seeds=5),
                make_task("solve", "DeepSea-v0", 6_000, SPARSE_AGENTS, size=10),
                make_task("solve", "DeepSea-v0", 12_000, SPARSE_AGENTS, size=20, tuning_steps=8_000),
                make_task("solve", "DeepSea-v0", 20_000, ["dqn", "ube-deep"], size=20, stochastic=True),
                make_task("solve", "DeepSea-v0", 30_000, ["dqn", "ube-deep"], size=30),
                make_task("solve", "DeepSea-v0", 125_000, ["ube-deep"], size=50),
                make_task("sparse", "MountainCarSparse-v0", 60_000, SPARSE_AGENTS, tuning_steps=20_000),
                make_task("sparse", "Tree-v0", 30_000, SPARSE_AGENTS, depth=50),
                make_task("sparse", "KeyDoor-v0", 50_000, SPARSE_AGENTS, size=7, tuning_steps=20_000),
                make_task("sparse", "KeyDoor-v0", 150_000, SPARSE_AGENTS, size=9),
                make_task(
                    "sparse", "KeyDoor-v0", 200_000, SPARSE_AGENTS, size=5, observation="image", new_layouts=True
                ),
            ],
        },
    },
)

CONFIRMATION = _experiment(
    name="confirmation",
    title="Held-out tasks: the same settings where none was chosen",
    note=(
        "Tasks that no present setting was chosen on, and fresh seeds, run once with the settings that development left; "
        "MinAtar's Breakout and SpaceInvaders, on which settings were chosen, are here on fresh seeds as well, for a mean "
        "over all five games beside that over the other three. "
        "MinAtar's games and the grids were published before with earlier settings; Gymnasium's tasks had never been run. "
        "Measures are those of the experiment `development`. Grids need navix (pip install 'ube-rl[grids]') and are left "
        "out without it."
    ),
    scales={
        "quick": {
            "agents": ["ube-deep"],
            "seeds": 2,
            "fewer_seeds": {},
            "tuning": None,
            "tasks": [make_task("sparse", "gym/FrozenLake-v1", 1_000, SPARSE_AGENTS, episodes=2, goal=0.5)],
        },
        "paper": {
            "agents": ["dqn", "dqn-small-epsilon", "greedy", "boot", "ube-deep"],
            "seeds": 10,
            "fewer_seeds": {"boot": 5},
            "tuning": None,
            "tasks": [
                make_task("game", "Asterix-MinAtar", 200_000, GAME_AGENTS, seeds=5),
                make_task("game", "Freeway-MinAtar", 200_000, GAME_AGENTS, seeds=5),
                make_task("game", "Seaquest-MinAtar", 200_000, GAME_AGENTS, seeds=5),
                make_task("game", "Breakout-MinAtar", 200_000, GAME_AGENTS, seeds=5, seen=True),
                make_task("game", "SpaceInvaders-MinAtar", 200_000, GAME_AGENTS, seeds=5, seen=True),
                make_task("sparse", "Navix-DoorKey-5x5-v0", 200_000, SPARSE_AGENTS, goal=0.5),
                make_task("sparse", "Navix-DoorKey-6x6-v0", 200_000, SPARSE_AGENTS, goal=0.5),
                make_task("sparse", "Navix-DoorKey-8x8-v0", 1_000_000, ["dqn", "ube-deep"], seeds=5, goal=0.5),
                make_task("sparse", "Navix-FourRooms-v0", 200_000, SPARSE_AGENTS, seeds=5, goal=0.5),
                make_task("return", "gym/CliffWalking-v1", 20_000, SPARSE_AGENTS, episodes=5, max_episode_steps=300),
                make_task("return", "gym/FrozenLake8x8-v1", 50_000, SPARSE_AGENTS, goal=0.5),
                make_task("return", "gym/Taxi-v4", 50_000, SPARSE_AGENTS, episodes=5),
                make_task("return", "gym/Acrobot-v1", 30_000, SPARSE_AGENTS, episodes=5),
                make_task("return", "gym/MountainCar-v0", 50_000, SPARSE_AGENTS, episodes=5),
                make_task("return", "gym/CartPole-v1", 30_000, SPARSE_AGENTS, episodes=5),
            ],
        },
    },
)
