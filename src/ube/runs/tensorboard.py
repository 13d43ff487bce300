"""Metrics for TensorBoard, beside the JSON lines that are always written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ube.errors import UsageError

Write = Callable[[int, dict[str, float]], None]


@contextmanager
def tensorboard(run: Path, wanted: bool) -> Iterator[Write]:
    """write(step, metrics), into RUN/tensorboard; without effect where it is not wanted."""
    if not wanted:
        yield lambda step, metrics: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise UsageError("--tensorboard needs tensorboardX: pip install 'ube-rl[tensorboard]'") from error
    with SummaryWriter(str(run / "tensorboard")) as writer:

        def write(step: int, metrics: dict[str, float]) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        yield write
