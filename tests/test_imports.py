"""The tabular half, and the pieces for other agents, import without the heavy packages, which load on first use."""

import subprocess
import sys

import pytest

HEAVY = ("jax", "gymnasium", "numba", "matplotlib")


def loaded_after(code):
    """Which heavy packages a fresh interpreter has loaded after this code."""
    program = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("module", ["ube", "ube.tabular", "ube.linear", "ube.acting", "ube.backups"])
def test_import_is_light(module):
    assert loaded_after(f"import {module}") == []


def test_the_check_sees_what_is_loaded():
    assert loaded_after("import ube.tabular, ube.tabular.kernels") == ["numba"]
