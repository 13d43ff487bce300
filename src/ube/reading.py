"""Files that a stranger may have made: read inside their folder only, within bounds, and refused by name with a remedy.

Nothing that is read here runs code. What a caller does not expect (another type, a missing key) is for the caller to name.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from ube.errors import UsageError

LARGEST = 64 * 2**20
"""Bytes of a file of text; those of the paper's full scale are near one million."""
LARGEST_ROWS = 8 * 2**30
"""Bytes of a file of rows: a hundred million episodes."""
LARGEST_TOML, LONGEST_LINE = 2**18, 10_000
"""tomllib takes time that grows with the square of a line."""
DEEPEST = 60
"""Lists and tables in one another. Python's own limit is near 1000, and less is left where the content is shown."""


def read_bytes(path: Path, *, remedy: str, inside: Path | None = None, most: int = LARGEST) -> bytes:
    """The content of a plain file; where there is none, FileNotFoundError is the caller's.

    inside: the folder that the file belongs to. A link that leads out of it is refused, and so is a name such as ../other.
    remedy: what to do with a file that cannot be read, as the end of the message.
    """
    try:
        if inside is not None and not is_inside(path, inside):
            refuse(path, f"it leads out of {inside}, to {os.path.realpath(path)}", remedy)
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not be waited for
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                refuse(path, "it is not a plain file", remedy)
            content = file.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:  # the file itself may be whole
        refuse(path, error.strerror or str(error), "mend the disk, its permissions or the name")
    except UsageError:
        raise
    except ValueError as error:  # a name with a zero byte
        refuse(path, str(error), remedy)
    if len(content) > most:
        refuse(path, f"it is larger than {most:,} bytes", remedy)
    return content


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder after all links were followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def refuse(path: Path, why: str, remedy: str) -> NoReturn:
    raise UsageError(f"{path} cannot be read ({why}): {remedy}") from None


def check_links(folder: Path, names: tuple[str, ...] = ("",)) -> None:
    """Before anything is written there: refuses a folder in which links lead out of it, or which holds pipes or devices.

    names: folders below it to be looked through as well, with all that is in them.
    """
    for top in (folder / name for name in names):
        places = top.iterdir() if top == folder else top.rglob("*")
        for path in [top, *places] if os.path.lexists(top) else []:
            if path != folder and not is_inside(path, folder):
                raise UsageError(
                    f"{path} leads out of {folder}, to {os.path.realpath(path)}: nothing is read or written there; put a "
                    "copy in its place, or choose another folder"
                )
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise UsageError(f"{path} is no plain file: remove it, or choose another folder")


# -------------------------------------------------------------------- JSON


def read_json(path: Path, *, remedy: str, inside: Path | None = None) -> Any:
    """The content of a JSON file, in numbers of 64 bits that are finite, each key of an object once."""
    content = read_bytes(path, remedy=remedy, inside=inside)
    try:
        return parse_json(content)
    except ValueError as error:
        refuse(path, str(error), remedy)


def read_table(path: Path, *, remedy: str, inside: Path | None = None) -> dict[str, Any]:
    """A JSON file that holds an object."""
    content = read_json(path, remedy=remedy, inside=inside)
    if not isinstance(content, dict):
        refuse(path, f"it holds {_named(content)}, not an object", remedy)
    return content


def parse_json(content: bytes | str) -> Any:
    """Raises ValueError, saying what is wrong."""
    text = _text(content)
    try:
        found = _STRICT.decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > DEEPEST:
        _check_depth(found)
    if _SURROGATE.search(text):
        json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be written again
    return found


def parse_rows(content: bytes) -> list[dict[str, Any]]:
    """Of JSON lines, up to the last whole one; NaN and infinity may be in them. Raises ValueError."""
    lines = _text(content[: content.rfind(b"\n") + 1]).split("\n")[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = _ROW.decode(line)
        except RecursionError:
            raise ValueError(f"line {number}: {_TOO_DEEP}") from None
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: {_named(row)}, not an object")
        rows.append(row)
    return rows


def _text(content: bytes | str) -> str:
    return content if isinstance(content, str) else content.decode("utf-8")


_TOO_DEEP = f"more than {DEEPEST} lists or tables in one another"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _check_depth(value: Any) -> None:
    level, depth = [value] if isinstance(value, (dict, list)) else [], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [child for children in inner for child in children if isinstance(child, (dict, list))]


def _named(value: Any) -> str:
    kinds = {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "nothing")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return found


def _integer(text: str) -> int:
    if len(text) > 18 and (len(text) > 20 or not -(2**63) <= int(text) < 2**64):
        raise ValueError(f"the whole number {text[:24]} does not fit 64 bits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:24]} is not finite")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number here")


_STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant)
_ROW = json.JSONDecoder(object_pairs_hook=_object)


# -------------------------------------------------------------------- TOML


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError, saying what is wrong."""
    if any(len(line) > LONGEST_LINE for line in text.splitlines()):
        raise ValueError(f"a line of more than {LONGEST_LINE:,} characters: break it")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(found)
    return found
