"""Contenders in processes of their own, timed in turn. Only the standard library: the peers' interpreter runs it too.

    worker  builds what its SPEC (JSON, argv[1]) asks for, trains one chunk to warm up, prints {"first_seconds": …}
    parent  writes a number of seconds
    worker  trains whole chunks for at least so long, prints {"steps": …, "seconds": …, "cpu_seconds": …}
    …       until the parent closes the pipe

A worker that waits costs nothing, so all contenders of a group stay alive and a slow spell of the machine hits all alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
Build = Callable[[Spec], Callable[[], int]]


def serve(build: Build) -> None:
    """`build(spec)` returns a function that trains one chunk and says how many steps that was."""
    start = time.perf_counter()
    advance = build(json.loads(sys.argv[1]))
    steps = advance()
    _say({"first_seconds": time.perf_counter() - start, "first_steps": steps})
    for line in sys.stdin:
        steps, start, cpu = 0, time.perf_counter(), time.process_time()
        while (seconds := time.perf_counter() - start) < float(line) or not steps:
            steps += advance()
        _say({"steps": steps, "seconds": seconds, "cpu_seconds": time.process_time() - cpu})


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


@dataclass(frozen=True)
class Contender:
    module: str
    spec: Spec
    python: str = sys.executable


def race(contenders: Mapping[str, Contender], seconds: float, repeats: int) -> dict[str, dict[str, Any]]:
    """Steps a second of each, (repeats,), the best of them, and the seconds before the first warm chunk."""
    running: dict[str, subprocess.Popen[str]] = {}
    answers: dict[str, list[dict[str, Any]]] = {}
    try:
        for name, contender in contenders.items():
            command = [contender.python, "-m", contender.module, json.dumps(contender.spec)]
            running[name] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(contender.spec.get("threads", 1)),
            )
            answers[name] = [_answer(name, running[name])]
        for _ in range(repeats):
            for name, process in running.items():
                assert process.stdin
                process.stdin.write(f"{seconds}\n")
                process.stdin.flush()
                answers[name].append(_answer(name, process))
    finally:
        for process in running.values():
            process.terminate()
            process.communicate()
    return {name: _summary(contenders[name], first, rest) for name, (first, *rest) in answers.items()}


def _answer(name: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{name} stopped with code {process.wait()}: its message is above")
    return json.loads(line)


def _summary(contender: Contender, first: dict[str, Any], rest: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [answer["steps"] / answer["seconds"] for answer in rest]
    best = max(rates)
    return {
        "best": best,
        "steps_per_second": rates,
        # Below 1 where other processes took the core: then rates are too low, and not to be trusted.
        "core_share": min(answer["cpu_seconds"] / answer["seconds"] for answer in rest),
        "start_seconds": first["first_seconds"] - first["first_steps"] / best,
        "spec": contender.spec,
        "runs": rest,
    }


def _environment(threads: int) -> dict[str, str]:
    """One thread for XLA, if so many are asked for; benchmarks/__init__.py sees to the others."""
    if threads > 1:
        return os.environ | {"JAX_PLATFORMS": "cpu"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
