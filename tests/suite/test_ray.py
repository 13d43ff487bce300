"""Suites on a real Ray cluster of several nodes on this machine."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ube.suite import Suite, run_suite, status
from ube.suite.cells import parsed
from ube.suite.work import DONE, folder_of

CELLS = """
[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn"]
seeds = 2
steps = 100_000
evaluation_episodes = 2
set = { hidden = [4], batch_size = 4, warmup = 8, "env.size" = 3 }

[[cells]]
envs = ["Nope-v0"]
agents = ["dqn"]
steps = 10
"""
ray: Any = pytest.importorskip("ray", reason="Ray is not installed: make test-cluster")


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "node_ip_address": "127.0.0.1", "include_dashboard": False},
    )
    yield cluster
    cluster.shutdown()


def suite() -> Suite:
    return parsed("sea", CELLS, "sea.toml")


def command(tmp_path: Path, address: str) -> "subprocess.Popen[str]":
    (tmp_path / "sea.toml").write_text(CELLS)
    words = ["suite", "run", str(tmp_path / "sea.toml"), "--out", str(tmp_path), "--executor", "ray"]
    words += ["--address", address, "--checkpoint-minutes", "1e-9"]
    program = [sys.executable, "-c", "import sys; from ube.cli import main; main(sys.argv[1:])", *words]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_lost_node_costs_no_cell_and_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    size = {"num_cpus": 1, "memory": 4_000_000_000, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}
    nodes = [cluster.add_node(**size) for _ in range(2)]
    whole, folder = suite(), tmp_path / "sea"
    process = command(tmp_path, cluster.address)
    while not all(one.step > 0 for one in status(whole, folder)[:2]):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    lost_at = [one.step for one in status(whole, folder)[:2]]
    cluster.remove_node(nodes[0], allow_graceful=False)
    assert max(lost_at) < 100_000
    _, said = process.communicate(timeout=400)
    assert process.returncode == 1
    assert said.strip().splitlines()[-1] == "ube: 1 of 3 cells failed; the same command tries them again"
    assert "no environment 'Nope-v0'" in said
    run_suite(whole, tmp_path / "here")  # one thread each, as on the cluster
    for cell in whole.cells[:2]:
        assert said.count(f"ube: {cell.id} is done") == 1
        there, here = (json.loads((folder_of(place, cell) / DONE).read_text()) for place in (folder, tmp_path / "here"))
        assert (there["training"], there["evaluations"]) == (here["training"], here["evaluations"])
