"""A suite with two executors and many who look, small; `make soak` has thousands of cells."""

from pathlib import Path

import pytest

from faults.load import loaded


@pytest.mark.slow
def test_each_cell_is_run_once_by_whoever_comes_first(tmp_path: Path) -> None:
    found = loaded(tmp_path, 12, lookers=4)
    assert (found["begun"], found["rows"] > 12, found["looks"] > 4) == (12, True, True)
