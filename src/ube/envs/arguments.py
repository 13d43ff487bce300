"""Checks of environment arguments, with errors that name the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from ube.errors import UsageError


def whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"{name}={value!r}: it must be a whole number, {least} or more")
    return int(value)


def number(name: str, value: Any, least: float = -math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < least:
        bound = "" if least == -math.inf else f", {least:g} or more"
        raise UsageError(f"{name}={value!r}: it must be a finite number{bound}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: it must be True or False")
    return value


def known_names(env_id: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"{env_id} has no argument {name!r}; it takes {', '.join(known) or 'none'}")
