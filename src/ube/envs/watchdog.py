"""A limit to how long a call may take, for code that may wait forever."""

from __future__ import annotations

import signal
import threading
from typing import Any

from ube.errors import UsageError


class Hangs(BaseException):
    """Raised in the middle of a call that takes too long. Not an Exception, which the call itself might catch."""


class Watchdog:
    """By a timer of the system, which reaches Python code and calls that wait; C code that works without end cannot be
    interrupted. Only the main thread hears it."""

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        if seconds is not None and threading.current_thread() is not threading.main_thread():
            raise UsageError(f"step_timeout={seconds}: only in the main thread; leave it out in others")

    def start(self) -> None:
        if self.seconds is not None:
            self.before = signal.signal(signal.SIGALRM, _hangs)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def stop(self) -> None:
        if self.seconds is None:
            return
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Hangs:  # at the last moment: the call came back
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


def _hangs(number: int, frame: Any) -> None:
    raise Hangs
