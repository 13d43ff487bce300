"""What the package brings: the lock agrees with the constraints, and nothing in the base install is under the GPL."""

import re
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def _tool(name: str) -> Any:
    spec = util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


audit = _tool("audit")
LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")


def lock() -> dict[str, str]:
    lines = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")
    ]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches)
    return {match[1]: match[2] for match in matches if match}


def test_the_lock_pins_what_the_constraints_pin_and_names_no_index() -> None:
    constraints = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pinned = {audit.canonical(name): version for name, version in constraints.items()}
    locked = lock()
    assert {name: version for name, version in locked.items() if pinned.get(name) != version} == {}
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|--index|--find-links|--extra|/simple", text)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11) or sys.platform != "linux", reason="the lock is for 3.11 on Linux")
def test_the_lock_holds_all_that_is_required() -> None:
    locked = lock()
    for part, requirements in audit.extras().items():
        names = audit.closure(requirements)
        if names is not None and part != "sb3":
            assert [name for name in names if name not in locked] == [], part


def test_no_gpl_in_the_base_install() -> None:
    found = audit.licences()
    assert len(found["base"]) > 40
    assert [name for name, text in found["base"].items() if audit.is_strict(text) or text == "not said"] == []
    assert audit.is_strict(found["atari"]["ale-py"])  # which is why it is an extra


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("GPL-2.0-only", True), ("GNU General Public License v3 (GPLv3)", True), ("AGPL-3.0-or-later", True), ("MIT", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False), ("LGPL-2.1", False), ("MIT OR GPL-2.0", False),
    ],
)  # fmt: skip
def test_which_licences_are_strict(text: str, strict: bool) -> None:
    assert audit.is_strict(text) is strict


def test_a_package_that_is_not_installed_is_not_called_good() -> None:
    assert audit.closure(["surely-not-installed>=1"]) is None
