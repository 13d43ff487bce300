"""Local uncertainty ν against how often a decision was really taken: exact counts in MinAtar, states of the RAM in Atari."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.learning_cells import Cell, Result
from ube.figures.results import Row, row, rows_of_metrics
from ube.figures.style import canvas, draw
from ube.figures.workers import Workers

DRAWN = 4_000
"""Decisions whose ν is compared."""
MOST = 10
"""Visits are put in groups of 1, 2, 3-4, 5-8, …, the last of which has more than 2^(MOST - 1)."""
LANES, FIRST_LANE, LANE = 10, 18, 15
"""Of Freeway: how many, where the first begins and how wide they are, in the units of the player's place."""
PLACE, CARS = 14, slice(108, 118)
"""Bytes of Freeway's RAM: the player's place on the way up, and where each lane's car is."""


@dataclass(frozen=True)
class VisitsCell(Cell):
    """A run whose replay holds all of its decisions, so that they can be counted."""

    def run(self, kept: Path) -> Result:
        from ube.deep.hosted_session import HostedSession
        from ube.runs.jax_setup import set_up_jax
        from ube.runs.plan import Schedule, planned

        set_up_jax()
        atari = self.env.startswith("atari/")
        plan = planned(
            self.env, self.agent, self.steps, self.seed, frames=None, protocol="auto", env_args=self.env_args,
            overrides=self.overrides | {"replay_size": self.steps + 16 if atari else self.steps},
            schedule=Schedule(evaluate_every=self.steps, evaluation_policy="none"),
        )  # fmt: skip
        session = plan.session()
        for _ in session.run(self.steps):
            pass
        rng = np.random.default_rng(self.seed)
        if isinstance(session, HostedSession):
            actions = session.actions[: self.steps, 0].astype(int)
            states = freeway_states(actions, session.replay)
            drawn = _drawn(states, actions, rng)
            frames = session.replay
            from ube.deep.hosted import stacked_at

            back = (drawn[:, None] + np.arange(1 - frames.stack, 1)) % frames.slots
            observations = np.asarray(stacked_at(frames.frames[0][back], frames.age[0][drawn].astype(np.int32)))
        else:
            rows = session.carry.replay.rows  # type: ignore[union-attr]
            held = np.asarray(rows.observation)
            actions = np.asarray(rows.action)
            states = np.unique(held.reshape(len(held), -1), axis=0, return_inverse=True)[1].ravel()
            drawn = _drawn(states, actions, rng)
            observations = held[drawn]
        nu = local_uncertainty(session, observations, actions[drawn])
        session.close()
        return {"visits": visits_of(states, actions)[drawn].tolist(), "nu": nu.tolist()}


def visits_of(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """How often each decision's (state, action) was taken in all."""
    _, which, counts = np.unique(np.stack([states, actions], 1), axis=0, return_inverse=True, return_counts=True)
    return counts[which.ravel()]


def _drawn(states: np.ndarray, actions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of decisions, each (state, action) at most once."""
    _, first = np.unique(np.stack([states, actions], 1), axis=0, return_index=True)
    return np.sort(rng.permutation(first)[:DRAWN])


def local_uncertainty(session: Any, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """ν of decisions, (N,), by what the agent has counted."""
    learner, state = session.loop.learner, session.learner
    parts = []
    for at in range(0, len(observations), 500):
        codes = learner.codes(state, observations[at : at + 500], session.knobs)
        nu = np.asarray(learner.counts.nu(state.counts, codes))
        parts.append(np.take_along_axis(nu, actions[at : at + 500, None], 1)[:, 0])
    return np.concatenate(parts)


def freeway_states(actions: np.ndarray, replay: Any) -> np.ndarray:
    """The games of a run played again from its actions, without sticky actions or random beginnings: a number for where the
    player and the car of its lane are at each decision, from the emulator's RAM. Rewards and ends of games must be those in
    the replay."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    rom = ale_py.roms.get_rom_path("freeway")
    assert rom is not None  # the wheel has it
    emulator.loadROM(rom)
    legal = emulator.getMinimalActionSet()
    emulator.reset_game()
    states, rewards = np.zeros(len(actions), int), np.zeros(len(actions))
    goes_on = np.ones(len(actions), bool)
    for t, action in enumerate(actions):
        ram = emulator.getRAM()
        place = int(ram[PLACE])
        lane = min(max((place - FIRST_LANE) // LANE, 0), LANES - 1)
        states[t] = place * 16 + int(ram[CARS][lane]) // 16
        for _ in range(4):
            rewards[t] += emulator.act(legal[action])
            if emulator.game_over():
                emulator.reset_game()
                goes_on[t] = False
                break
    played = np.clip(rewards, -1, 1), goes_on
    kept = replay.reward[0][: len(actions)], replay.continues[0][: len(actions)]
    if not all(np.array_equal(*pair) for pair in zip(played, kept, strict=True)):
        raise RuntimeError("the emulator did not repeat the run: its RAM says nothing about it")
    return states


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    there = importlib.util.find_spec("ale_py") is not None
    tasks = [task for task in settings["tasks"] if there or not task["env"].startswith("atari/")]
    seeds = range(first_seed, first_seed + settings["seeds"])
    cells = [
        VisitsCell(task["env"], task["agent"], seed, task["steps"], task["env_args"], task["overrides"])
        for task in tasks
        for seed in seeds
    ]
    with Workers(kept, progress) as workers:
        results = iter(workers.run("visits", cells))
    summary: list[Row] = []
    curves: dict[str, dict[str, Any]] = {}
    for task in tasks:
        runs = [next(results) for _ in seeds]
        visits, nu = (np.concatenate([run[name] for run in runs]) for name in ("visits", "nu"))
        ranks = [float(spearmanr(run["visits"], run["nu"]).statistic) for run in runs]
        summary.append(
            row(task["name"], {"env": task["env"], "steps": task["steps"]}, "rank_correlation", float(np.mean(ranks)),
                min(ranks), max(ranks))
        )  # fmt: skip
        curves.setdefault(task["env"], {})[task["name"]] = grouped(visits, nu)
    return {"summary": summary, "data": {"curves": curves, "left_out": not there}}


def grouped(visits: np.ndarray, nu: np.ndarray) -> dict[str, list[float]]:
    """Median and quartiles of ν among decisions of about the same visits; groups of fewer than five are left out."""
    group = np.minimum(np.ceil(np.log2(visits)).astype(int), MOST)
    found = [k for k in range(MOST + 1) if (group == k).sum() >= 5]
    quartiles = np.array([np.quantile(nu[group == k], [0.5, 0.25, 0.75]) for k in found]).reshape(-1, 3)
    return {
        "visits": [float(visits[group == k].mean()) for k in found],
        **{name: quartiles[:, i].tolist() for i, name in enumerate(("median", "low", "high"))},
    }


@contextmanager
def plot_visits(results: Results) -> Iterator[Any]:
    curves = results["data"]["curves"]
    with canvas(columns=max(1, len(curves)), width=3.2, height=2.6) as (figure, axes):
        for axis, (env, of_env) in zip(axes[0], curves.items(), strict=False):
            for index, (name, curve) in enumerate(of_env.items()):
                x, y, low, high = (np.array(curve[key]) for key in ("visits", "median", "low", "high"))
                draw(axis, name, x, y, low, high, marks=True)
                if "," in name:  # a variant has the colour of its agent
                    axis.lines[-1].set(linestyle="--", marker="^")
                if index == 0 and len(x):
                    axis.plot(x, 1 / (1 + x), color="black", linestyle=":", label="1 / (1 + visits)")
            axis.set(title=env, xlabel="visits of the decision", xscale="log", yscale="log")
            axis.legend()
        axes[0, 0].set_ylabel("ν (median, quartiles)")
        yield figure


def _task(name: str, env: str, agent: str, steps: int, env_args: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    return {"name": name, "env": env, "agent": agent, "steps": steps, "env_args": env_args, "overrides": overrides}


_WHOLE_GAMES = {"noops": 1}
MINATAR, FREEWAY = "Breakout-MinAtar", "atari/freeway"
EXPERIMENT = Experiment(
    name="visits",
    title="Local uncertainty against true visits",
    note=(
        "ν of up to 4,000 decisions a seed that were taken in training, against how often the same action was taken in the "
        "same state by its end. In MinAtar states are compared bit by bit. In Atari's Freeway the run is played again in the "
        "emulator, and a state is where the player and the car of its lane are, read from the RAM; all else on the screen is "
        "left out, so visits are an upper bound. rank_correlation is Spearman's, the mean over seeds with the lowest and "
        "highest; -1 is perfect. ube-deep learns the noise of outcomes, so its ν may fall faster than 1 / (1 + visits)."
    ),
    scales={
        "quick": {"seeds": 2, "tasks": [_task("ube-deep", MINATAR, "ube-deep", 6_000, {})]},
        "paper": {
            "seeds": 3,
            "tasks": [
                _task("ube-deep", MINATAR, "ube-deep", 100_000, {}),
                _task("ube-deep, windows", MINATAR, "ube-deep", 100_000, {}, features="windows"),
                _task("ube-1step", MINATAR, "ube-1step", 100_000, {}),
                _task("ube-deep", FREEWAY, "ube-deep", 50_000, _WHOLE_GAMES),
                _task("ube-1step", FREEWAY, "ube-1step", 50_000, _WHOLE_GAMES),
            ],
        },
    },
    job=job,
    plots={"visits": plot_visits},
    headline=partial(rows_of_metrics, metrics=("rank_correlation",)),
    keeps_cells=True,
)  # fmt: skip
