"""What the benchmarks share: timing, peak memory, a description of the machine, and the results file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ube.files import to_json, versions, write_atomically

Times = dict[str, np.ndarray]


def interleaved(functions: Mapping[str, Callable[[], object]], repeats: int) -> Times:
    """Seconds of each call, (repeats,) per name; all functions in turn, so that a slow spell hits all of them alike."""
    for function in functions.values():
        function()  # compile, fault pages in
    seconds = {name: np.empty(repeats) for name in functions}
    for i in range(repeats):
        for name, function in functions.items():
            seconds[name][i] = timed(function)[0]
    return seconds


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the function returned."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def best(function: Callable[[], object], repeats: int = 7) -> float:
    return float(interleaved({"it": function}, repeats)["it"].min())


def resident_bytes(*, peak: bool = False) -> int:
    """Memory of this process, now or at its peak.

    From /proc and not from getrusage: its ru_maxrss starts at the peak of the process that started this one.
    """
    field = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def in_new_process(module: str, *arguments: str) -> dict[str, Any]:
    """Runs `python -m module arguments`, which prints JSON: for peaks of memory that nothing else has a part in."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def machine() -> dict[str, Any]:
    fields = dict(
        (part.strip() for part in line.split(":", 1))
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if ":" in line
    )
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "cache": fields.get("cache size", ""),
        "system": platform.platform(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load": os.getloadavg(),
    }


def arguments(description: str | None, name: str, **switches: Any) -> argparse.Namespace:
    """--out, and further switches: hidden unless they bring a help text, as those of runs that a benchmark starts itself."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks") / f"{name}.json", help="results file")
    for switch, settings in switches.items():
        parser.add_argument(f"--{switch}", **{"help": argparse.SUPPRESS} | settings)
    return parser.parse_args()


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Prints: words to the left, numbers to the right."""
    cells = [head] + [tuple(_shown(cell) for cell in row) for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        words = row[0].ljust(widths[0])
        print("  ".join([words, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]))
    print()


def _shown(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def demand(what: str, value: float, limit: float, *, least: bool = False) -> dict[str, Any]:
    """One demand with its verdict, printed and kept."""
    met = bool(value >= limit if least else value <= limit)
    print(f"{'met    ' if met else 'NOT MET'}  {what}: {value:,.4g}, demanded {'≥' if least else '≤'} {limit:,.4g}")
    return {"what": what, "value": value, "limit": limit, "at_least": least, "met": met}


def write(out: Path, name: str, load_before: tuple[float, ...], results: dict[str, Any]) -> None:
    asked = [
        "PYTHON" if before == "--peers" else word for before, word in zip(sys.argv, sys.argv[1:], strict=False)
    ]  # where an interpreter lies is of no use elsewhere
    record = {
        "name": name,
        "command": shlex.join(["python", "-m", f"benchmarks.{name}", *asked]),
        "versions": versions(),
        "machine": machine() | {"load_before": load_before},
        **results,
    }
    write_atomically(out, to_json(record))
    before, after = load_before[0], record["machine"]["load"][0]
    print(f"\nload {before:.2f} before, {after:.2f} after (includes this run) on {os.cpu_count()} cores; wrote {out}")
