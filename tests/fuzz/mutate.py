"""Hostile files made from good ones: values of a tree replaced, dropped or repeated, then bytes changed."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


TEXTS = (
    "", "x", "..", "../../../etc/passwd", "/etc/passwd", "a\0b", "\x1b[2J", "\ud800", "[/bold]", "</script><script>",
    "é" * 300,
    "9" * 4_400, "NaN", "-1", "1e999", "os:system", "gym/os:system", "atari/*", "DeepSea-v0", "Catch-v0", "dqn",
    "ube-deep",
    "boot", "%s%n", "{0}", "true", "auto", "\u2028", "x" * 5_000, "CON", "~", "a\nb", "own", "greedy", "inf",
    "$\\frac{$",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 100, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 0.0, -0.0, 0.5, 1e-320,
    1e16, 1e300,
    -1e308, math.nan, math.inf, -math.inf, 99_999, 255, 256, 65_536,
)  # fmt: skip
CONTAINERS: tuple[Any, ...] = (
    [], {}, [[]], [{}], {"": 0}, [1, "a", None], {"a": {"b": [1]}}, nested(40), nested(90), [None] * 3, [0.5] * 20,
    {"x": math.nan},
)  # fmt: skip
TOKENS = (
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"=", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"NaN",
    b"-Infinity", b"1e999",
    b"9" * 5_000, b"[" * 3_000, b'{"a":' * 1_500, b"\\ud800", b"'''", b'"""', b"#", b"1979-05-27T07:32:00Z",
    b"a.a.a.a.a", b"null",
    b"\x00\x00\x00\x00\x00\x00\x00\x80", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"PK\x05\x06", b"PK\x01\x02",
    b"\x93NUMPY\x01\x00",
    b"(4000000000000,)", b"|O", b"cos\nsystem\n", b"\x80\x04", b"../", b"true", b"[[cells]]\n", b"-1", b"'",
    b'"x",' * 200,
)  # fmt: skip


def hostile(rng: Random) -> Any:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.75:
        return rng.choice(TEXTS)
    return rng.choice(CONTAINERS) if kind < 0.9 else rng.choice((None, True, False))


def edited(value: Any, rng: Random) -> Any:
    """A copy with one thing changed, anywhere in the tree."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key, kind = rng.choice(list(value)), rng.random()
        if kind < 0.06:
            return {name: item for name, item in value.items() if name != key}
        if kind < 0.12:
            return {**value, str(rng.choice(TEXTS)): hostile(rng)}
        return {**value, key: edited(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place, kind = rng.randrange(len(value)), rng.random()
        if kind < 0.08:
            return value[:place] + value[place + 1 :]
        if kind < 0.16:
            return [*value, value[place]]
        return [*value[:place], edited(value[place], rng), *value[place + 1 :]]
    return hostile(rng)


def edited_often(value: Any, rng: Random) -> Any:
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        value = edited(value, rng)
    return value


def changed_bytes(content: bytes, rng: Random) -> bytes:
    """A few bytes flipped, left out, repeated or put in; or nothing."""
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        place, kind = rng.randrange(len(content) + 1), rng.randrange(6)
        length = rng.choice((1, 1, 2, 8, 64, 1_000))
        if kind == 0 and content:
            place = min(place, len(content) - 1)
            content = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        elif kind == 1:
            content = content[:place] + content[place + length :]
        elif kind == 2:
            content = content[:place] + content[place : place + length] + content[place:]
        elif kind == 3:
            content = content[:place]
        else:
            content = content[:place] + rng.choice(TOKENS) + content[place:]
    return content


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def as_toml(tree: Any) -> bytes:
    """With [[cells]] as TOML has it, and everything else in line."""
    if not isinstance(tree, dict):
        return _inline(tree).encode("utf-8", "surrogatepass")
    lines = [f"{_key(name)} = {_inline(value)}" for name, value in tree.items() if name != "cells"]
    blocks = tree.get("cells")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return "\n".join([*lines, f"cells = {_inline(blocks)}"]).encode("utf-8", "surrogatepass")
    for block in blocks:
        lines += ["[[cells]]", *(f"{_key(name)} = {_inline(value)}" for name, value in block.items())]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "")


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_inline(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return str(value)
    return '""' if value is None else json.dumps(value, ensure_ascii=False)
