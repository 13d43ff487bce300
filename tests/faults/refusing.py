"""A disk that refuses: the k-th operation on files below a folder fails, comes short, or is the last before death."""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

FAULTS = ("ENOSPC", "EIO", "EACCES", "short", "death")
"""short: half of what was to be written is, then ENOSPC. death: no operation is done from there on, as after kill -9."""


class Death(BaseException):
    """The process is no more: what it does after this does not count."""


class Disk:
    """Counts the operations below `root`, and lets the one with number `at` go wrong."""

    CALLS = ("open", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate", "chmod", "scandir")

    def __init__(self, root: Path, at: int = 0, fault: str = ""):
        self.root, self.at, self.fault = str(root), at, fault
        self.operations: list[str] = []
        self.files: list[Watched] = []
        self.dead = False
        self.system = {name: getattr(os, name) for name in (*self.CALLS, "listdir")}
        self.io_open = io.open

    @property
    def hit(self) -> str:
        """What went wrong, if it came to that."""
        return self.operations[self.at - 1] if 0 < self.at <= len(self.operations) else ""

    def meet(self, what: str, target: Any, half: Callable[[], Any] = lambda: None) -> None:
        """An operation is to be done. half: does half of it."""
        if self.dead:
            raise Death
        if not self.watches(target):
            return
        self.operations.append(what)
        if len(self.operations) != self.at:
            return
        if self.fault == "death":
            half()
            self.die()
            raise Death
        if self.fault == "short":
            half()
        number = getattr(errno, "ENOSPC" if self.fault == "short" else self.fault)
        raise OSError(number, os.strerror(number), *([] if what in ("write", "fsync", "close") else [str(target)]))

    def watches(self, target: Any) -> bool:
        if isinstance(target, int):
            target = os.readlink(f"/proc/self/fd/{target}")
        return os.fspath(target).startswith(self.root)

    def die(self) -> None:
        """What was not yet written never is; locks are let go."""
        self.dead = True
        nowhere = self.system["open"](os.devnull, os.O_RDWR)
        for file in self.files:
            if not file.file.closed:
                os.dup2(nowhere, file.file.fileno())
        os.close(nowhere)

    def open(self, file: Any, *args: Any, **more: Any) -> Any:
        if not self.watches(file):
            return self.io_open(file, *args, **more)
        if not isinstance(file, int):
            self.meet("open", file)
        self.files.append(Watched(self.io_open(file, *args, **more), self))
        return self.files[-1]

    def call(self, name: str) -> Callable[..., Any]:
        def called(target: Any = ".", *args: Any, dir_fd: int | None = None, **more: Any) -> Any:
            self.meet(name, target if dir_fd is None else dir_fd)
            return self.system[name](target, *args, **more if dir_fd is None else more | {"dir_fd": dir_fd})

        return called


class Watched:
    """A file on such a disk."""

    def __init__(self, file: Any, disk: Disk):
        self.file, self.disk, self.waits = file, disk, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.file)

    def write(self, content: Any) -> Any:
        def half() -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()

        self.disk.meet("write", self.file.fileno(), half)
        self.waits = True
        return self.file.write(content)

    def flush(self) -> None:
        self.waits = False
        self.file.flush()

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        if self.disk.dead or self.file.closed or not self.waits:  # dead: to nowhere
            self.file.close()
            return
        try:
            self.disk.meet("close", self.file.fileno())
        finally:
            self.file.close()


@contextmanager
def disk(root: Path, at: int = 0, fault: str = "") -> Iterator[Disk]:
    """All that is done to files in the meantime is done on this disk."""
    refusing = Disk(root, at, fault)
    patches = [mock.patch.object(os, name, refusing.call(name)) for name in refusing.system]
    patches += [mock.patch.object(io, "open", refusing.open), mock.patch("builtins.open", refusing.open)]
    for patch in patches:
        patch.start()
    try:
        yield refusing
    finally:
        for patch in reversed(patches):
            patch.stop()


def every_fault(
    prepare: Callable[[], Path], work: Callable[[Path], None], verify: Callable[[Path, str, BaseException | None], None],
    choose: Callable[[int, str], bool] = lambda at, fault: True,
) -> dict[str, int]:  # fmt: skip
    """Lets every operation of `work` go wrong in every way. prepare: gives a fresh folder. verify: is given the folder, what
    went wrong, and what `work` raised. Returns how often each fault was met."""
    with mock.patch.object(os, "fsync", return_value=None):  # counted, but only a power cut would notice
        return _every_fault(prepare, work, verify, choose)


def _every_fault(prepare: Any, work: Any, verify: Any, choose: Any) -> dict[str, int]:
    folder = prepare()
    with disk(folder) as whole:
        work(folder)
    met = dict.fromkeys(FAULTS, 0)
    for at in range(1, len(whole.operations) + 1):
        for fault in FAULTS:
            if not choose(at, fault):
                continue
            folder, raised = prepare(), None
            with disk(folder, at, fault) as refusing:
                try:
                    work(folder)
                except (Exception, Death) as error:
                    raised = error
            if not refusing.hit:
                continue
            met[fault] += 1
            try:
                verify(folder, fault, raised)
            except BaseException as error:
                error.add_note(
                    f"{fault} at operation {at} of {len(whole.operations)}, {refusing.hit}; raised {raised!r}"
                )
                raise
    return met
