"""docs/reliability.md says what the files of the last long runs say."""

import json
import runpy
from pathlib import Path

from faults.soak import PARTS

ROOT = Path(__file__).parents[1]


def test_the_counts_on_the_page_are_those_of_the_files() -> None:
    writer = runpy.run_path(str(ROOT / "tools" / "reliability.py"))
    text = (ROOT / "docs" / "reliability.md").read_text()
    assert writer["page"](text) == text
    assert list(writer["PARTS_OF_SOAK"]) == list(PARTS)


def test_nothing_failed_and_nothing_is_known_to_be_vulnerable() -> None:
    fuzz, audit = (
        json.loads((ROOT / "docs" / "results" / "reliability" / f"{name}.json").read_text())
        for name in ("fuzz", "dependencies")
    )
    assert fuzz["failures"] == 0
    assert audit["vulnerabilities"]["known"] == []
