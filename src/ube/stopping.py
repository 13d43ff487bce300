"""What stops a process from outside: Ctrl-C, and SIGTERM, which clusters send some seconds before they kill."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""Of a process that was stopped by each, as shells say it."""
SOON = 0.01
"""Seconds after which a signal is sent again that came where nothing can be raised."""


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


def stopped(number: int, frame: Any = None) -> None:
    """Raises what a signal stands for; also a handler of it."""
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises, as Ctrl-C does."""
    with _handled({signal.SIGTERM: stopped}), _sent_again():
        yield


@contextmanager
def _sent_again() -> Iterator[None]:
    """Python drops what is raised in a finaliser or a callback of a weak reference, of which imports run thousands: a signal
    that came there is sent once more."""
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            before(dropped)
            return
        number = signal.SIGTERM if isinstance(dropped.exc_value, Terminated) else signal.SIGINT
        later = threading.Timer(SOON, signal.pthread_kill, (threading.main_thread().ident, number))
        later.daemon = True
        later.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def gently(say: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """The first Ctrl-C, and any SIGTERM, only ask to stop; the second Ctrl-C stops at once. Gives which was first, or 0.

    A cluster may send SIGTERM to all processes, and the parent of this one then asks as Ctrl-C does: that is no second time.
    """
    asked: list[int] = []
    own = os.getpid()

    def ask(number: int, frame: Any) -> None:
        if os.getpid() != own:  # forked since, as those of vector environments: whoever did that ends them
            return
        if number == signal.SIGINT and number in asked:
            stopped(number)
        asked.append(number)
        if len(asked) == 1:
            say("stopping soon, with all that was learned kept; Ctrl-C again to stop at once")

    with _handled({signal.SIGINT: ask, signal.SIGTERM: ask}):
        yield lambda: asked[0] if asked else 0


@contextmanager
def _handled(handlers: dict[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    """Only the main thread may decide that. SIGTERM stays with those who have a use of their own for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, stopped):
        handlers = {number: handler for number, handler in handlers.items() if number != signal.SIGTERM}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
