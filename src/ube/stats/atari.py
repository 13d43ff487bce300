"""Scores of the 57 Atari games as the paper makes them, and the paper's own."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Literal, NamedTuple

import numpy as np

from ube.errors import UsageError, nearest

Constants = Literal["human-starts", "no-op"]
"""Whose scores are 0 and 100 %: the paper has games begin with no-ops, but takes the constants of human starts."""
AGENTS = {"dqn": "paper_dqn", "bonus": "paper_bonus", "ube-1step": "paper_ube_1step", "ube-nstep": "paper_ube_nstep"}
"""Of the paper's second table -> their columns here."""
TIE = 1e-3
"""Scores within this share of the best are set bold in the paper's table."""


@functools.cache
def _table(name: str) -> list[dict[str, str]]:
    text = (resources.files("ube") / "data" / f"{name}.csv").read_text()
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


@functools.cache
def _rows() -> dict[str, dict[str, str]]:
    return {row["game"]: row for row in _table("atari57")}


def games() -> list[str]:
    """The 57, as they are named in ids of environments."""
    return list(_rows())


def players(game: str, constants: Constants) -> tuple[float, float]:
    """Scores of the random and of the human player."""
    if game not in _rows():
        raise UsageError(f"no constants for the game {game!r}: {nearest(game, games())}")
    if constants not in ("human-starts", "no-op"):
        raise UsageError(f"constants={constants!r}: choose human-starts or no-op")
    suffix = {"human-starts": "human_starts", "no-op": "noop"}[constants]
    row = _rows()[game]
    return float(row[f"random_{suffix}"]), float(row[f"human_{suffix}"])


def normalised(score: float, game: str, constants: Constants) -> float:
    """In percent. |human - random|: in Video Pinball the human is below the random player from human starts."""
    random, human = players(game, constants)
    return 100 * (score - random) / abs(human - random)


def raw(percent: float, game: str, constants: Constants) -> float:
    """The score of which `normalised` made this."""
    random, human = players(game, constants)
    return random + percent / 100 * abs(human - random)


def final_score(evaluations: np.ndarray) -> float:
    """Of (seeds, periods): the average over seeds in each period, then the largest."""
    if np.ndim(evaluations) != 2 or not np.size(evaluations):
        raise UsageError(f"evaluations of shape {np.shape(evaluations)}: expected (seeds, periods)")
    return float(np.mean(evaluations, 0).max())


def paper_scores(constants: Constants = "human-starts") -> dict[str, dict[str, float]]:
    """agent -> game -> percent, from the paper's second table, which has the human-starts constants."""
    printed = {agent: {game: float(row[column]) for game, row in _rows().items()} for agent, column in AGENTS.items()}
    if constants == "human-starts":
        return printed
    return {
        agent: {game: normalised(raw(percent, game, "human-starts"), game, constants) for game, percent in of.items()}
        for agent, of in printed.items()
    }


def public_dqn(game: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Of Dopamine's DQN, as published: which millions of frames (periods,), the mean training return in each, (periods, 5
    seeds). Sticky actions and no end at a lost life, unlike the paper. None where there is no curve."""
    rows = [row for row in _table("dopamine_dqn") if row["game"] == game]
    returns = [[float(row[f"seed{i}"]) for i in range(5)] for row in rows]
    return (np.array([int(row["million_frames"]) for row in rows]), np.array(returns)) if rows else None


class Summary(NamedTuple):
    """The paper's first table: mean and median percent, and games above_human."""

    mean: float
    median: float
    above_human: int


def summary(percents: Mapping[str, float]) -> Summary:
    """Of game -> percent."""
    values = np.array(list(percents.values()))
    return Summary(float(values.mean()), float(np.median(values)), int((values > 100).sum()))


def leaders(scores: Mapping[str, Mapping[str, float]], tie: float = TIE) -> dict[str, list[str]]:
    """game -> the agents with its best score, or within a share of `tie` of it; games that all agents have."""
    shared = [game for game in next(iter(scores.values())) if all(game in of for of in scores.values())]
    best = {game: max(of[game] for of in scores.values()) for game in shared}
    return {
        game: [agent for agent, of in scores.items() if of[game] >= best[game] - tie * abs(best[game])]
        for game in shared
    }


def wins(scores: Mapping[str, Mapping[str, float]], tie: float = TIE) -> tuple[dict[str, int], int]:
    """How many games each agent leads alone, and how many are tied."""
    led = list(leaders(scores, tie).values())
    return {agent: sum(first == [agent] for first in led) for agent in scores}, sum(len(first) > 1 for first in led)


def better(scores: Mapping[str, float], rival: Mapping[str, float]) -> tuple[int, int, int]:
    """Games won, tied and lost against a rival."""
    pairs = [(score, rival[game]) for game, score in scores.items() if game in rival]
    won, lost = sum(ours > theirs for ours, theirs in pairs), sum(ours < theirs for ours, theirs in pairs)
    return won, len(pairs) - won - lost, lost
