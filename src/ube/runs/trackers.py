"""Metrics for those who watch runs elsewhere, beside the JSON lines that are always written."""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ube.errors import UsageError
from ube.files import write_atomically
from ube.reading import read_bytes

Write = Callable[[int, Mapping[str, float]], None]
"""write(step, metrics)"""
Tracker = Callable[[Path, dict[str, Any], int], AbstractContextManager[Write]]
"""(directory of the run, its config.json, the step it goes on from) -> what to write with while the run goes on"""


@contextmanager
def trackers(names: Iterable[str], run: Path, config: dict[str, Any], step: int) -> Iterator[Write]:
    """One `write` for all that are named; without effect where none is. step: where the run goes on from."""
    with ExitStack() as stack:
        writes = [stack.enter_context(TRACKERS[name](run, config, step)) for name in names]

        def write(step: int, metrics: Mapping[str, float]) -> None:
            for one in writes:
                one(step, metrics)

        yield write


def check_trackers(names: Iterable[str]) -> None:
    """Their packages are here: to be known before a run begins."""
    for name in names:
        found = importlib.util.find_spec(PACKAGES[name])
        if found is None or found.origin is None:  # a folder of that name, such as wandb's own, is no package
            raise UsageError(f"--{name} needs {PACKAGES[name]}: pip install 'ube-rl[{name}]'")


@contextmanager
def _tensorboard(run: Path, config: dict[str, Any], step: int) -> Iterator[Write]:
    """Into RUN/tensorboard. What a run that was killed wrote after its checkpoint is not shown."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(run / "tensorboard"), purge_step=step + 1) as writer:

        def write(step: int, metrics: Mapping[str, float]) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        yield write


@contextmanager
def _wandb(run: Path, config: dict[str, Any], step: int) -> Iterator[Write]:
    """Into RUN/wandb, and to the server unless WANDB_MODE says otherwise. A run that goes on is the same run there."""
    import wandb

    kept = run / "wandb" / "id"
    if not kept.exists():
        write_atomically(kept, uuid.uuid4().hex)
    run_id = read_bytes(kept, inside=run, remedy="remove it, and a new run is begun there", most=100).decode(
        "ascii", "replace"
    )
    try:
        there = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "ube"), id=run_id, resume="allow", dir=run, config=config,
            name=f"{config['env']}-{config['agent']['name']}-seed{config['seed']}",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )  # fmt: skip
    except wandb.Error as error:
        raise UsageError(
            f"wandb does not start ({error}): run `wandb login`, or set WANDB_MODE=offline and `wandb sync` later"
        ) from None
    with there:
        # Its own clock refuses to go back, which a run that goes on from a checkpoint does.
        there.define_metric("step")
        there.define_metric("*", step_metric="step")
        yield lambda step, metrics: there.log({"step": step, **metrics})


TRACKERS: dict[str, Tracker] = {"tensorboard": _tensorboard, "wandb": _wandb}
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
