"""Suites of runs: plan -> execute -> status -> collect."""

from ube.suite.cells import Cell, Suite, read_suite, shipped
from ube.suite.collect import Collected, collect, write_csv
from ube.suite.execute import Outcome, run_on_ray, run_suite
from ube.suite.status import CellStatus, status

__all__ = [
    "Cell", "CellStatus", "Collected", "Outcome", "Suite", "collect", "read_suite", "run_on_ray", "run_suite", "shipped",
    "status", "write_csv",
]  # fmt: skip
