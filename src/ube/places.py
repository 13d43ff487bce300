"""Code of a user's own: by its place, module:NAME, or as a class or function from Python.

Whoever calls `imported` runs that module, so its place may come from a command or a call, but never from a file.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

from ube.errors import UsageError, nearest, words

OBJECT = "object/"
"""Before the names of what only Python can give again."""


def imported(place: str, example: str) -> Any:
    """What module:NAME stands for; None if the module has nothing of that name."""
    module, _, name = place.partition(":")
    if not module or module.startswith("."):
        raise UsageError(f"{place}: write module:NAME, such as {example}")
    try:
        return getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{place}: the module {module!r} cannot be imported ({words(error)}); is it installed, in this folder (ube "
            "train, evaluate and compare), or on PYTHONPATH?"
        ) from error


def missing(place: str) -> UsageError:
    """For a module that was imported, and has nothing of that name."""
    module, _, name = place.partition(":")
    names = [key for key, value in vars(sys.modules[module]).items() if isinstance(value, type)]
    hint = nearest(name, names) if names else "give the name of a class or a function in it"
    return UsageError(f"{place}: {module} has no {name!r}: {hint}")


def place_of(source: Any) -> str:
    """module:NAME where it is found there again, or else OBJECT and a name."""
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", type(source).__name__)
    if module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is source:
        return f"{module}:{name}"
    return OBJECT + re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_")
