"""Runs what is left of a suite, on this machine or as tasks of a Ray cluster: each cell once, whatever happens to others."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ube.errors import UsageError
from ube.files import versions
from ube.machine import free_memory, gigabytes
from ube.suite.cells import Suite
from ube.suite.pool import GRACE, Deaths, Failure, Pool, Task, answer, few_threads
from ube.suite.work import CellTask, done, failed, folder_of, forget_checkpoints, versions_of

RETRIES = 3
"""How often a cell goes on from its checkpoint after its process or node died, if there is no newer one by then."""
Said = Callable[[str], None]


class Outcome(NamedTuple):
    """How a suite went."""

    finished: int
    """Cells that are done, now or before."""
    failures: dict[str, str]
    """id of a cell -> why."""
    left: tuple[str, ...] = ()
    """Cells that another process was at."""


def threads_each(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


def run_suite(
    suite: Suite, folder: Path, *, workers: int | None = None, checkpoint_minutes: float = 10.0,
    said: Said = lambda text: None,
) -> Outcome:  # fmt: skip
    """On this machine. Cells that are done are left alone; Ctrl-C stops with a checkpoint of those that run."""
    workers = workers or os.cpu_count() or 1
    if workers < 1:
        raise UsageError(f"workers={workers}: at least 1")
    with Pool(workers, threads=threads_each(workers), memory=free_memory(), retries=RETRIES, kept=_kept) as pool:
        return _settled(suite, folder, pool.finish(_left(suite, folder, checkpoint_minutes)), said)


def _kept(task: Task) -> str:
    """Its last checkpoint."""
    assert isinstance(task, CellTask)
    return max((path.name for path in (task.folder / "run" / "checkpoints").glob("*-*")), default="")


def run_on_ray(
    suite: Suite, folder: Path, *, address: str | None = None, checkpoint_minutes: float = 10.0,
    said: Said = lambda text: None,
) -> Outcome:  # fmt: skip
    """On an existing cluster, whose nodes all see `folder` under the same path. A cell whose node is lost goes on from its
    checkpoint on another one."""
    ray = _connected(address)
    try:
        return _settled(suite, folder, _on_ray(ray, _left(suite, folder.absolute(), checkpoint_minutes)), said)
    finally:
        ray.shutdown()


def _left(suite: Suite, folder: Path, checkpoint_minutes: float) -> list[CellTask]:
    """Patient, since a process whose parent was killed takes GRACE to stop."""
    left, made_by = [], []
    for cell in suite.cells:
        task = CellTask(cell, folder, checkpoint_minutes, patience=GRACE + 5.0)
        made_by.append(versions_of(task.folder))
        if _is_done(task.folder):
            forget_checkpoints(task.folder)  # of a process that was killed before it could
        else:
            left.append(task)
    if left:
        _check_versions(made_by, folder)
    return left


def _check_versions(made_by: list[list[dict[str, str]]], folder: Path) -> None:
    """`collect` refuses cells of different versions: better said before days of training than after."""
    now = versions()
    others = []
    for of_cell in made_by:  # of what is installed here: the nodes of a cluster may have more
        changed = {name: old for one in of_cell for name, old in one.items() if now.get(name, old) != old}
        others += [changed] if changed else []
    if others:
        old, new = (", ".join(f"{name} {of[name]}" for name in others[0]) for of in (others[0], now))
        raise UsageError(
            f"{folder} holds {len(others)} cells of other versions, such as {old}, and here is {new}: they are never mixed; "
            "install those again, or choose another place (--out)"
        )


def _is_done(folder: Path) -> bool:
    """A damaged done.json is for its cell to fail with."""
    try:
        return done(folder) is not None
    except UsageError:
        return False


def _settled(suite: Suite, folder: Path, outcomes: Iterable[tuple[Task, Any]], said: Said) -> Outcome:
    """Says how each cell went, and keeps why it failed beside it."""
    failures: dict[str, str] = {}
    left: list[str] = []
    for task, outcome in outcomes:
        assert isinstance(task, CellTask)
        if outcome is None:
            left.append(task.name)
            said(f"{task.name} is being run by another process: left to it")
        elif isinstance(outcome, Failure):
            failures[task.name] = outcome.message
            failed(task.folder, outcome.message)
            said(f"{task.name} failed: {(outcome.message.strip().splitlines() or [''])[-1]}")
        else:
            said(f"{task.name} is done")
    return Outcome(sum(_is_done(folder_of(folder, cell)) for cell in suite.cells), failures, tuple(left))


# -------------------------------------------------------------------- ray


_ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def _connected(address: str | None) -> Any:
    if address is not None:
        _reached(address)
        if address.startswith("127."):
            os.environ.setdefault(_ON_LOOPBACK, "0")  # Ray would look for it on the outer address of this machine
    try:
        import ray
    except ImportError:
        raise UsageError("--executor ray needs Ray: pip install 'ube-rl[cluster]'") from None
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        raise UsageError(f"no Ray cluster on this machine: {_REMEDY}") from None
    return ray


_HTTP2, _HTTP2_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"\x04"
"""How gRPC greets, with empty settings, and the kind of the frame with which it is answered."""
_REMEDY = (
    "`ray start --head --node-ip-address=127.0.0.1 --include-dashboard=false` starts one that only this machine can reach, "
    "and --address HOST:PORT says where another is"
)


def _reached(address: str) -> None:
    """Ray itself would try for minutes, also where something else listens, such as its dashboard."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--address {address}: write HOST:PORT")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            encrypted = os.environ.get("RAY_USE_TLS", "0") != "0"
            peer.sendall(b"" if encrypted else _HTTP2)
            answered = _HTTP2_SETTINGS if encrypted else peer.recv(9)[3:4]
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster at {address} ({error}): {_REMEDY}") from None
    if answered != _HTTP2_SETTINGS:
        raise UsageError(
            f"what answers at {address} is no Ray cluster: give the port of `ray start --head`, often 6379"
        )


def _on_ray(ray: Any, tasks: list[CellTask]) -> Iterator[tuple[Task, Any]]:
    """Tasks and their outcomes as they get ready. After Ctrl-C, those that run get time for a checkpoint."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for task in tasks:
        _check_fits(task, nodes)
    waiting, deaths = {_asked(ray, task): task for task in tasks}, Deaths(RETRIES, _kept)
    try:
        while waiting:
            (reference, *_), _ = ray.wait(list(waiting), num_returns=1)
            task, outcome = waiting.pop(reference), _answered(ray, reference)
            if isinstance(outcome, Failure) and outcome.kind == "died" and deaths.again(task):
                waiting[_asked(ray, task)] = task
            else:
                yield task, outcome
    except KeyboardInterrupt:
        for reference in waiting:
            ray.cancel(reference)
        ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)
        raise


def _check_fits(task: CellTask, nodes: list[dict[str, float]]) -> None:
    """Ray would wait forever for a node that is large enough."""
    need = {"CPU": task.cell.cpus, "GPU": task.cell.gpus, "memory": task.memory}
    if any(all(node.get(name, 0.0) >= amount for name, amount in need.items()) for node in nodes):
        return
    largest = max(nodes, key=lambda node: [node.get(name, 0.0) for name in ("GPU", "memory", "CPU")], default={})
    raise UsageError(
        f"{task.name} needs {_resources(need)} on one node, and the largest of the cluster has {_resources(largest)}: "
        "change cpus, gpus, memory_gb or replay_size of its block, or add such a node"
    )


def _resources(amounts: dict[str, float]) -> str:
    cpus, gpus, memory = (amounts.get(name, 0.0) for name in ("CPU", "GPU", "memory"))
    return f"{cpus:g} CPU, {gpus:g} GPU, {gigabytes(memory)} of memory"


def _asked(ray: Any, task: CellTask) -> Any:
    """Ray itself would begin a task again whose node is lost, but count no checkpoint as progress."""
    options = {
        "num_cpus": task.cell.cpus, "num_gpus": task.cell.gpus, "memory": task.memory, "max_retries": 0,
        "name": task.name, "runtime_env": {"env_vars": few_threads(task.cell.cpus)},
    }  # fmt: skip
    patient = CellTask(task.cell, task.suite_folder, task.checkpoint_minutes, patience=120.0)
    return ray.remote(answer).options(**options).remote(patient)


def _answered(ray: Any, reference: Any) -> Any:
    try:
        kind, content = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Failure("died", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
    return content if kind == "done" else Failure(kind, content)
