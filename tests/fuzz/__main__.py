"""python -m fuzz --tries N --out FILE.json: every reader tried with hostile files; the counts are kept after each part, and
the same command goes on where it was. Exits with 1 where a reader raised anything but the package's own errors."""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import ube
from fuzz.readers import READERS
from fuzz.trying import made, tried
from ube.files import to_json, versions, write_atomically
from ube.reading import read_table

PART = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--tries", type=int, default=1_000_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", choices=list(READERS), help="only this one, with all tries")
    parser.add_argument("--show", type=int, help="with --reader: print what this try reads, and try it")
    parser.add_argument("--out", type=Path, default=Path("docs/results/reliability/fuzz.json"))
    asked = parser.parse_args()
    if asked.show is not None:
        reader = READERS[asked.reader]
        print(made(reader, asked.seed, asked.show))
        print(*tried(reader, asked.seed, range(asked.show, asked.show + 1)).failures)
        return
    readers = [READERS[asked.reader]] if asked.reader else list(READERS.values())
    whole = sum(reader.share for reader in readers)
    kept = {"command": shlex.join(["python", "-m", "fuzz", *sys.argv[1:]])} | _kept(asked.out, asked.seed)
    for reader in readers:
        wanted = round(asked.tries * reader.share / whole)
        mine = kept["readers"].setdefault(reader.name, {"tries": 0, "read": 0, "slowest_seconds": 0.0, "failures": []})
        while mine["tries"] < wanted and len(mine["failures"]) < 10:
            began = time.perf_counter()
            found = tried(reader, asked.seed, range(mine["tries"], min(wanted, mine["tries"] + PART)))
            mine["tries"] += found.tries
            mine["read"] += found.read
            mine["slowest_seconds"] = max(mine["slowest_seconds"], found.slowest)
            mine["failures"] += [failure._asdict() for failure in found.failures]
            kept["seconds"] += time.perf_counter() - began
            _keep(asked.out, kept)
        print(
            f"{reader.name:26} {mine['tries']:>9,} tries, {mine['read']:,} read, {len(mine['failures'])} failures",
            flush=True,
        )
    _keep(asked.out, kept)
    if kept["failures"]:
        sys.exit(f"{kept['failures']} tries failed: {asked.out} says how")


def _kept(path: Path, seed: int) -> dict[str, Any]:
    """What was counted before, if it was with this seed, these versions and this code."""
    new: dict[str, Any] = {
        "seed": seed, "versions": versions(), "code": _code(), "seconds": 0.0, "tries": 0, "failures": 0, "readers": {},
    }  # fmt: skip
    try:
        before = read_table(path, remedy="remove it")
    except FileNotFoundError:
        return new
    return before if all(before.get(name) == new[name] for name in ("seed", "versions", "code")) else new


def _code() -> str:
    """Digest of the package and of this fuzzer: tries of other code do not count."""
    homes = (Path(ube.__file__).parent, Path(__file__).parent)
    files = [file for home in homes for file in sorted(home.rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _keep(path: Path, kept: dict[str, Any]) -> None:
    for name, of in (("tries", "tries"), ("read", "read")):
        kept[name] = sum(reader[of] for reader in kept["readers"].values())
    kept["failures"] = sum(len(reader["failures"]) for reader in kept["readers"].values())
    write_atomically(path, to_json(kept))


if __name__ == "__main__":
    main()
