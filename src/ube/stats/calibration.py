"""Is a value wrong by as much as its agent says? |Q - G| against the deviation that was claimed for Q."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 1_000


class Calibration(NamedTuple):
    """(B,) of each bin, by what was claimed."""

    claimed: np.ndarray  # mean deviation that was claimed for Q
    error: np.ndarray  # mean |Q - G|
    low: np.ndarray  # 95 % interval for it
    high: np.ndarray
    decisions: np.ndarray  # how many


def returns_that_followed(reward: np.ndarray, closes: np.ndarray, follows: float, discount: float) -> np.ndarray:
    """(T,): G_t = r_t + γ G_{t+1}, and nothing after a decision that closes the return; `follows` after the last one."""
    returns, after = np.zeros(len(reward)), follows
    for t in reversed(range(len(reward))):
        returns[t] = after = reward[t] + discount * after * (not closes[t])
    return returns


def settled(closes: np.ndarray, discount: float) -> np.ndarray:
    """(T,): the return closes within the episode, or is cut off only after more than 1 / (1 - γ) decisions."""
    left = np.arange(len(closes), 0, -1)
    closed_later = np.logical_or.accumulate(closes[::-1])[::-1]
    return closed_later | (left * (1 - discount) > 1)


def calibration(
    claimed: Sequence[np.ndarray], errors: Sequence[np.ndarray], *, bins: int, rng: np.random.Generator
) -> Calibration:
    """Bins with about as many decisions each, equal claims in one bin; `claimed` and `errors` hold an array per episode.

    Decisions of an episode are alike, so whole episodes are drawn again for the intervals.
    """
    flat = np.concatenate(claimed)
    edges = np.unique(np.quantile(flat, np.linspace(0, 1, bins + 1)))[1:-1]
    table = np.zeros((3, len(claimed), len(edges) + 1))  # decisions, claims and errors, by episode and bin
    for episode, (mine, wrong) in enumerate(zip(claimed, errors, strict=True)):
        where = np.searchsorted(edges, mine, side="right")
        for row, weights in zip(table, (np.ones(len(mine)), mine, np.abs(wrong)), strict=True):
            row[episode] = np.bincount(where, weights, minlength=len(edges) + 1)
    table = table[:, :, table[0].sum(0) > 0]
    number, claims, wrong = table.sum(1)
    draws = rng.multinomial(len(claimed), np.full(len(claimed), 1 / len(claimed)), RESAMPLES)
    with np.errstate(invalid="ignore"):  # 0 / 0 where no episode that was drawn has such a decision
        again = (draws @ table[2]) / (draws @ table[0])
    low, high = np.nanquantile(again, [0.025, 0.975], axis=0)
    return Calibration(claims / number, wrong / number, low, high, number.astype(int))
