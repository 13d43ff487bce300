"""The `ube` command in small chunks, which notes in the file FAULTS_NOTES what it does: python -m faults.driver WORDS..."""

import functools
import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHUNK, HOSTED_CHUNK = 100, 20
NOTES = "FAULTS_NOTES"


class Notes:
    """One line, "PHASE COUNT", which is there whenever the process is killed."""

    def __init__(self, path: Path):
        self.handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        self.counts = Counter[str]()

    def note(self, phase: str) -> None:
        self.counts[phase] += 1
        os.pwrite(self.handle, f"{phase} {self.counts[phase]}".ljust(40).encode(), 0)

    def around(self, phase: str, function: Callable[..., Any], after: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*args: Any, **more: Any) -> Any:
            self.note(phase)
            try:
                return function(*args, **more)
            finally:
                self.note(after)

        return noted


def read(path: Path) -> tuple[str, int]:
    """The phase that was noted last, and how often it was entered."""
    words = path.read_text().split() if path.exists() else []
    return (words[0], int(words[1])) if len(words) == 2 else ("starting", 0)


def noted(path: Path) -> None:
    from ube.runs import plan, training

    collect, work = (importlib.import_module(f"ube.suite.{name}") for name in ("collect", "work"))
    plan.CHUNK, plan.HOSTED_CHUNK = CHUNK, HOSTED_CHUNK
    notes = Notes(path)
    training._learn = notes.around("training", training._learn, "ending")
    training.Checkpoints.save = notes.around("checkpointing", training.Checkpoints.save, "training")  # type: ignore[method-assign]
    training._evaluate = notes.around("evaluation", training._evaluate, "training")
    for module, name in ((collect, "_rows"), (collect, "write_atomically"), (work, "write_atomically")):
        setattr(module, name, notes.around("collecting", getattr(module, name), "training"))


if NOTES in os.environ:  # also in the workers of a suite, which import the module that was started
    noted(Path(os.environ[NOTES]))
if __name__ == "__main__":
    from ube.cli import main

    main(sys.argv[1:])
