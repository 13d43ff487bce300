"""The paper's tables and figures over 57 games, and its Montezuma's Revenge, of a collected suite beside the paper's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ube.errors import UsageError
from ube.figures.charts import Chart, Series
from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.results import Row, row, rows_of, rows_of_metrics
from ube.figures.style import LOOKS, canvas, draw, legend_below
from ube.stats import atari, bootstrap, iqm, mean_intervals, optimality_gap

AGENTS = tuple(atari.AGENTS)
CASES: dict[str, atari.Constants] = {"human-starts constants": "human-starts", "no-op constants": "no-op"}
"""The paper takes the first, although its games begin with no-ops."""
PAPER, SAME = " (paper)", " (paper, same games)"
POLICIES = {"greedy": "", "own": ", own policy"}
PUBLIC = "DQN of Dopamine, training, sticky actions (public)"
VIEWS = {"above_human": "games above human", "median": "median score, percent of human"}
MONTEZUMA = "montezuma_revenge"
MONTEZUMA_PAPER = {"ube-nstep": 3_000.0}
"""Raw score at 500 million frames: "consistently getting around 3000 points"."""

Evaluations = dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]
"""agent -> game -> frames (periods,), raw scores (seeds, periods)"""


def evaluations(rows: list[dict[str, str]], source: str) -> Evaluations:
    """From rows of `ube suite collect`, by name of agent and policy; other environments are left out."""
    settings: dict[str, set[tuple[str, ...]]] = {}
    scores: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    cells: dict[tuple[str, str, str], str] = {}
    for i, r in enumerate(rows, 1):
        if not r["env"].startswith("atari/") or r["policy"] not in POLICIES:
            continue
        game = r["env"].removeprefix("atari/")
        atari.players(game, "no-op")  # says so where there is none of this name
        settings.setdefault(r["agent"], set()).add((r["overrides"], r["env_args"], r["protocol"]))
        run = (r["agent"], game, r["seed"])
        if cells.setdefault(run, r["cell"]) != r["cell"]:
            raise UsageError(
                f"{source}, row {i}: {r['agent']}, {game}, seed {r['seed']} was run as {cells[run]} and as {r['cell']}: "
                "collect a suite that has one of them"
            )
        try:
            frames, score = int(r["frames"]), float(r["mean"])
        except (TypeError, ValueError) as error:
            raise UsageError(f"{source}, row {i}: {error}; collect the suite again") from None
        if not math.isfinite(score):
            raise UsageError(f"{source}, row {i}: mean {r['mean']} is no score; collect the suite again")
        key = (r["agent"] + POLICIES[r["policy"]], game)
        scores.setdefault(key, {}).setdefault(r["seed"], {})[frames] = score
    for agent, asked in settings.items():
        if len(asked) > 1:
            raise UsageError(f"{agent} was run with {len(asked)} settings: collect a suite that has one for each agent")
    found: Evaluations = {}
    for (agent, game), seeds in scores.items():
        frames_of_all = sorted(set.intersection(*(set(of) for of in seeds.values())))
        if not frames_of_all:
            raise UsageError(f"{source}: the seeds of {agent} in {game} were never evaluated after the same frames")
        table = np.array([[of[at] for at in frames_of_all] for of in seeds.values()])
        found.setdefault(agent, {})[game] = np.array(frames_of_all), table
    return found


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    from ube.suite.collect import read_csv

    games = settings["games"]
    source = settings["collected"]
    collected = read_csv(Path(source)) if source else None
    all_games = evaluations(collected.rows, source) if collected else {}
    ours = {agent: {game: of[game] for game in games if game in of} for agent, of in all_games.items()}
    ours = {agent: of for agent, of in ours.items() if of}
    if collected and not ours:
        what = games[0] if len(games) == 1 else "an Atari game"
        raise UsageError(f"{source}: no evaluation of {what} in it")
    progress("scores", 1, 1)
    curves: dict[str, dict[str, Any]] = {game: {} for game in games}
    for agent, of in ours.items():
        for game, (frames, table) in of.items():
            mean, low, high = mean_intervals(table)
            curves[game][agent] = {"frames": frames, "mean": mean, "low": low, "high": high, "seeds": len(table)}
    missing = _missing(ours, games, settings["agents"], settings["seeds"])
    data = {
        "made_by": collected.head if collected else None, "curves": curves, "missing": missing,
        "over_training": {agent: _over_training(of) for agent, of in ours.items()},
    }  # fmt: skip
    found = [
        row(agent, {"statistic": key}, "runs", value) for agent, of in missing.items() for key, value in of.items()
    ]
    runs = [r for r in found if r["setting"]["statistic"] != "games"] if collected else []
    seeds = max((len(table) for of in ours.values() for _, table in of.values()), default=0)
    return {"summary": runs + _tables(ours, games, np.random.default_rng(first_seed)), "data": data, "seeds": seeds}


def _missing(ours: Evaluations, games: list[str], agents: list[str], seeds: int) -> dict[str, dict[str, Any]]:
    """agent -> runs that are there, evaluated by either policy, and that are not, and the games that lack some."""
    there: dict[str, dict[str, int]] = {agent: {} for agent in agents}
    for name, tables in ours.items():
        of = there.setdefault(name.removesuffix(POLICIES["own"]), {})
        of |= {game: max(len(table), of.get(game, 0)) for game, (_, table) in tables.items()}
    return {
        agent: {
            "there": sum(of.values()),
            "missing": sum(max(0, seeds - of.get(game, 0)) for game in games),
            "games": [game for game in games if of.get(game, 0) < seeds],
        }
        for agent, of in there.items()
    }


def _over_training(of: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """At the frames where all games were evaluated, the mean over seeds of that evaluation in percent."""
    frames = sorted(set.intersection(*(set(at.tolist()) for at, _ in of.values())))
    percent = np.array(
        [
            [atari.normalised(float(table[:, np.searchsorted(at, f)].mean()), game, "human-starts") for f in frames]
            for game, (at, table) in of.items()
        ]
    )
    return {
        "frames": frames, "games": len(of),
        "above_human": (percent > 100).sum(0), "median": np.median(percent, 0),
    }  # fmt: skip


def _tables(ours: Evaluations, games: list[str], rng: np.random.Generator) -> list[Row]:
    rows: list[Row] = []
    for case, constants in CASES.items():
        scores = {
            agent: {
                game: atari.normalised(atari.final_score(table), game, constants) for game, (_, table) in of.items()
            }
            for agent, of in ours.items()
        }
        paper = {agent: {game: of[game] for game in games} for agent, of in atari.paper_scores(constants).items()}
        whole = {agent + PAPER: of for agent, of in paper.items()}
        same = {
            agent + SAME: {game: paper[agent][game] for game in of}
            for agent, of in scores.items()
            if agent in paper and len(of) < len(games)
        }
        for agent, of in (scores | same | whole).items():
            statistics = {"games": len(of), **atari.summary(of)._asdict()}
            rows += [
                row(agent, {"case": case, "statistic": name.replace("_", " ")}, "percent_of_human", value)
                for name, value in statistics.items()
            ]
        for agent in scores:
            rows += _robust(agent, {game: table for game, (_, table) in ours[agent].items()}, case, constants, rng)
        for agent, of in (scores | whole).items():
            rows += [row(agent, {"case": case, "game": game}, "score_percent", value) for game, value in of.items()]
        if constants == "human-starts":
            greedy = {agent: of for agent, of in scores.items() if not agent.endswith(POLICIES["own"])}
            rows += _wins(greedy, "") + _wins(paper, PAPER)
    return rows


def _robust(
    agent: str, tables: dict[str, np.ndarray], case: str, constants: atari.Constants, rng: np.random.Generator
) -> list[Row]:
    """Of the best period of each run, where every game has as many seeds, two or more."""
    counts = {len(table) for table in tables.values()}
    if len(counts) != 1 or counts == {1}:
        return []
    runs = np.array([
        [atari.normalised(best, game, constants) for best in table.max(1)] for game, table in tables.items()
    ]).T  # fmt: skip
    estimates = {
        "interquartile mean": bootstrap(iqm, runs, rng=rng),
        "optimality gap": bootstrap(partial(optimality_gap, goal=100.0), runs, rng=rng),
    }
    return [
        row(agent, {"case": case, "statistic": name}, "percent_of_human", *value) for name, value in estimates.items()
    ]


def _wins(scores: dict[str, dict[str, float]], whose: str) -> list[Row]:
    """How many games each leads, with the ties that the paper sets bold and without, and how it does against dqn."""
    rows: list[Row] = []
    if len(scores) < 2:
        return rows
    for name, tie in (("games led (ties: within 0.1 %)", atari.TIE), ("games led (ties: equal)", 0.0)):
        alone, tied = atari.wins(scores, tie)
        rows += [row(agent + whose, {"statistic": name}, "wins", number) for agent, number in alone.items()]
        rows.append(row(f"ties{whose}", {"statistic": name}, "wins", tied))
    if "dqn" not in scores:
        return rows
    rivals = {agent: of for agent, of in scores.items() if agent != "dqn"}
    if {"ube-1step", "ube-nstep"} <= set(rivals):
        one, n = (rivals[agent] for agent in ("ube-1step", "ube-nstep"))
        rivals["better of both ube"] = {game: max(one[game], n[game]) for game in one if game in n}
    for agent, of in rivals.items():
        for word, number in zip(("won", "tied", "lost"), atari.better(of, scores["dqn"]), strict=True):
            rows.append(row(agent + whose, {"statistic": f"{word} against dqn"}, "wins", number))
    return rows


def headline(results: Results) -> list[Row]:
    """What is there, the paper's first table, who wins, and its second table."""
    scores = rows_of(results, "score_percent", case=next(iter(CASES)))
    return rows_of_metrics(results, ("runs", "percent_of_human", "wins")) + scores


def charts(results: Results) -> list[Chart]:
    data = results["data"]
    found = []
    for key, label in VIEWS.items():
        over = {agent: of for agent, of in data["over_training"].items() if of["frames"]}
        series = [Series(agent, of["frames"], of[key]) for agent, of in over.items()]
        levels = [(name, value) for agent, name, value in _paper_totals(results, key) if agent in over]
        found.append(Chart(label, "frames", label, _with_levels(series, levels)))
    for game, of in data["curves"].items():
        series = [Series(agent, one["frames"], one["mean"], one["low"], one["high"]) for agent, one in of.items()]
        levels = [(agent + PAPER, _paper_score(results, agent, game)) for agent in AGENTS]
        series = _with_levels(series, levels)
        if series and (public := atari.public_dqn(game)):
            until = public[0] * 1e6 <= max(max(one.x) for one in series)
            series.append(Series(PUBLIC, (public[0][until] * 1e6).tolist(), public[1][until].mean(1).tolist()))
        found.append(Chart(game.replace("_", " "), "frames", "evaluation score (mean, 95 %)", series))
    return [chart for chart in found if chart.series]


def _with_levels(series: list[Series], levels: list[tuple[str, float]]) -> list[Series]:
    """Level lines as far as the curves go."""
    if not series:
        return []
    ends = [min(min(one.x) for one in series), max(max(one.x) for one in series)]
    return series + [Series(name, ends, [value, value]) for name, value in levels]


def _paper_score(results: Results, agent: str, game: str) -> float:
    (theirs,) = rows_of(results, "score_percent", agent + PAPER, game=game, case=next(iter(CASES)))
    return atari.raw(theirs["value"], game, "human-starts")


def _paper_totals(results: Results, statistic: str) -> list[tuple[str, str, float]]:
    """(agent, its name in the table, value), of the games that our runs of it have, where they have not all."""
    found = []
    for agent in AGENTS:
        setting = {"case": next(iter(CASES)), "statistic": statistic.replace("_", " ")}
        rows = rows_of(results, "percent_of_human", agent + SAME, **setting)
        (theirs,) = rows or rows_of(results, "percent_of_human", agent + PAPER, **setting)
        found.append((agent, theirs["agent"], theirs["value"]))
    return found


def _said(results: Results) -> str:
    """What is shown, and what is missing."""
    if not results["settings"]["collected"]:
        return "no runs given: only the paper's final numbers"
    there, missing = (sum(of[key] for of in results["data"]["missing"].values()) for key in ("there", "missing"))
    return f"{there} runs, {missing} missing; level lines: the paper's final numbers"


def _millions(curve: dict[str, Any]) -> np.ndarray:
    return np.array(curve["frames"]) / 1e6


def _draw_paper(axis: Any, agent: str, name: str, value: float) -> None:
    colour, line, _ = LOOKS[agent]
    axis.axhline(value, color=colour, linestyle=":" if line == "-" else "-.", linewidth=0.9, label=name)


@contextmanager
def plot_over_training(results: Results) -> Iterator[Any]:
    """The paper's Figures 4 and 5: games above human, and the median, against frames."""
    with canvas(columns=2, width=3.6, height=2.9) as (figure, axes):
        for axis, (key, label) in zip(axes[0], VIEWS.items(), strict=True):
            over = results["data"]["over_training"]
            for agent, of in over.items():
                draw(axis, agent, _millions(of), of[key], label=f"{agent}, {of['games']} games")
            for agent, name, value in _paper_totals(results, key):
                if agent in over or not over:
                    _draw_paper(axis, agent, name, value)
            axis.set(xlabel="million frames", ylabel=label)
            if not over:
                axis.set(xlabel="", xticks=[])
            axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
        figure.suptitle(_said(results), fontsize=7.5)
        legend_below(figure, axes[0, 0], 4)
        yield figure


@contextmanager
def plot_games(results: Results) -> Iterator[Any]:
    """The paper's appendix: evaluation scores of every game; a panel without a curve is a game that is missing."""
    curves = results["data"]["curves"]
    columns = min(6, len(curves))
    n_rows = math.ceil(len(curves) / columns)
    with canvas(columns=columns, rows=n_rows, width=1.9, height=1.35) as (figure, axes):
        for axis in axes.flat[len(curves) :]:
            axis.set_axis_off()
        for axis, (game, of) in zip(axes.flat, curves.items(), strict=False):
            for agent, one in of.items():
                draw(axis, agent, _millions(one), *(np.array(one[key], float) for key in ("mean", "low", "high")))
            for agent in AGENTS:
                _draw_paper(axis, agent, agent + PAPER, _paper_score(results, agent, game))
            if of and (public := atari.public_dqn(game)):
                until = public[0] <= axis.get_xlim()[1]
                axis.plot(public[0][until], public[1][until].mean(1), "-", color="#CC79A7", linewidth=0.8, label=PUBLIC)
            axis.set_title(game.replace("_", " "), color="black" if of else "#888888")
            if not of:
                axis.set_xticks([])
        legend_below(figure, axes.flat[: len(curves)], 6)
        figure.suptitle(
            f"evaluation score against million frames (mean over seeds, 95 %); {_said(results)}", fontsize=8
        )
        yield figure


@contextmanager
def plot_montezuma(results: Results) -> Iterator[Any]:
    with canvas(width=4.2, height=2.9) as (figure, axes):
        axis = axes[0, 0]
        for agent, one in results["data"]["curves"][MONTEZUMA].items():
            draw(axis, agent, _millions(one), *(np.array(one[key], float) for key in ("mean", "low", "high")))
        for agent, score in MONTEZUMA_PAPER.items():
            _draw_paper(axis, agent, f"{agent} (paper, about)", score)
        axis.set(title="Montezuma's Revenge", xlabel="million frames", ylabel="evaluation score (mean, 95 %)")
        axis.legend()
        figure.suptitle(_said(results), fontsize=7.5)
        yield figure


_SETTINGS: dict[str, Any] = {"agents": list(AGENTS), "seeds": 3, "collected": None}

EXPERIMENT = Experiment(
    name="atari57",
    title="Atari, 57 games: the paper's tables and figures, of a collected suite beside the paper's own numbers",
    note=(
        "Each score is the average over seeds in each evaluation, then the largest; in percent of (score - random) / "
        "|human - random|. The paper's games begin with no-ops, its constants are those of human starts: both are shown. "
        "Without --collected only the paper's own 57 rows are scored, which gives its tables again, but for the last digit "
        "of one mean, since rows are rounded (bonus: 472.94, printed as 472.93); with it, a suite's runs stand beside them, "
        "and what is missing is named. Where a suite has not all games, the paper's agents are scored on the same ones as "
        "well. Interquartile mean and optimality gap, with bootstrap intervals, are of the best evaluation "
        "of each run."
    ),
    scales={scale: _SETTINGS | {"games": atari.games()} for scale in ("quick", "paper")},
    job=job,
    plots={"atari57": plot_over_training, "atari57-games": plot_games},
    headline=headline,
    charts=charts,
    digits=9,  # the paper prints 28,662.58 percent
    reads_collected=True,
)

MONTEZUMA_EXPERIMENT = Experiment(
    name="montezuma",
    title="Montezuma's Revenge: 500 million frames with more exploration, of a collected suite",
    note=(
        "The paper's β is 0.016 here, 0.01 elsewhere; it reports about 3,000 points for ube-nstep at 500 million frames. The "
        "percentages are of its 200 million frames at β = 0.01. `ube suite run montezuma` makes the runs."
    ),
    scales={scale: _SETTINGS | {"games": [MONTEZUMA]} for scale in ("quick", "paper")},
    job=job,
    plots={"montezuma": plot_montezuma},
    headline=partial(rows_of_metrics, metrics=("score_percent",)),
    charts=charts,
    digits=9,  # the paper prints 28,662.58 percent
    reads_collected=True,
)
