"""The errors users are meant to read: they name the offending value and the remedy, and print without a traceback."""

import difflib
from collections.abc import Sequence


class UsageError(ValueError):
    """Input that cannot be used as given. The commands print its message alone, without a traceback."""


class BusyError(UsageError):
    """A run directory that another process is writing to."""


class RunError(RuntimeError):
    """A run that cannot go on: it diverged, or its environment failed."""


def brief(value: object) -> str:
    """A value in a message of one line, however large it is."""
    return cut(" ".join(repr(value).split()), 80)


def cut(text: str, most: int) -> str:
    """So many letters of it."""
    return text if len(text) < most else f"{text[: most - 4]} …"


def words(error: BaseException) -> str:
    """An error of somebody else's code, in one line."""
    return cut(f"{type(error).__name__}: {error}".strip(": \n").splitlines()[0], 400)


def plain(text: str) -> str:
    """For a terminal: what a file or a name holds may not move the cursor, hide a line or half of it, or begin a new one."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def nearest(value: str, choices: Sequence[str]) -> str:
    """The end of a message about a name that is none of the choices."""
    close = difflib.get_close_matches(value, choices, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"choose one of {', '.join(choices)}"
