"""Counts in docs/reliability.md are those of the files that it names."""

import json
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reliability.md").read_text()


def test_the_fuzzers_counts_are_those_of_its_last_run() -> None:
    found = json.loads((DOCS / "results" / "reliability" / "fuzz.json").read_text())
    assert found["failures"] == 0
    assert f"{found['tries']:,} tries" in PAGE
    for name, counts in found["readers"].items():
        assert f"| {name} | {counts['tries']:,} | {counts['read']:,} |" in PAGE


def test_the_audit_is_told_as_it_was() -> None:
    found = json.loads((DOCS / "results" / "reliability" / "dependencies.json").read_text())
    for part, packages in found["licences"].items():
        strict = found["strict"][part]
        number = "not looked at" if packages is None else len(packages)
        assert f"| {part} | {number} | {'–' if strict is None else ', '.join(strict) or 'none'} |" in PAGE
    known = found["vulnerabilities"]
    assert f"looked up {known['looked_up']} of {known['looked_up'] + known['not_looked_up']} packages" in PAGE
    assert known["known"] == []
