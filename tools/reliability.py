"""python tools/reliability.py: writes the counts in docs/results/reliability between the marks of docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
RESULTS = PAGE.parent / "results" / "reliability"


PARTS_OF_SOAK = ("kills", "writes", "damage", "numbers", "load")


def soak() -> str:
    rows = ["| part | tried | what | failures |", "|---|---|---|---|"]
    for name in PARTS_OF_SOAK:
        if not (RESULTS / f"{name}.json").exists():
            rows.append(f"| `{name}` | – | not yet run | – |")
            continue
        found = _read(name)
        said = f"{found['what']} ([{name}.json](results/reliability/{name}.json))"
        rows.append(f"| `{name}` | {found['tries']:,} | {said} | 0 |")  # with a failure there is no file
    return "\n".join(rows)


def fuzz() -> str:
    found = _read("fuzz")
    lines = [
        f"Last run: {found['tries']:,} tries in {found['seconds'] / 60:.0f} minutes, seed {found['seed']}, "
        f"{found['failures']} failures. *Read* are those that were still good enough; all others were refused.",
        "", "| reader | tries | read | slowest try |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, counts in found["readers"].items():
        lines.append(f"| {name} | {counts['tries']:,} | {counts['read']:,} | {counts['slowest_seconds']:.1f} s |")
    return "\n".join([*lines, "", "([fuzz.json](results/reliability/fuzz.json))"])


def dependencies() -> str:
    found = _read("dependencies")
    lines = ["| what | packages it adds | under the GPL or AGPL |", "|---|---|---|"]
    for part, packages in found["licences"].items():
        strict = found["strict"][part]
        number = "not looked at" if packages is None else len(packages)
        lines.append(f"| {part} | {number} | {'–' if strict is None else ', '.join(strict) or 'none'} |")
    looked_at = sum(len(of) for of in found["licences"].values() if of)
    known = found["vulnerabilities"] or {"looked_up": 0, "not_looked_up": looked_at, "known": []}
    total = known["looked_up"] + known["not_looked_up"]
    said = "; ".join(known["known"]) or ("none is known of those" if known["looked_up"] else "this is no audit")
    lines += ["", f"**Known vulnerabilities.** `pip-audit` looked up {known['looked_up']} of {total} packages: {said}."]
    if known["not_looked_up"]:
        lines.append(
            f"{known['not_looked_up']} could not be looked up where this was run, so nothing is known of them, "
            "good or bad: run `make lock PIP_AUDIT=pip-audit` with a network that reaches PyPI."
        )
    return "\n".join([*lines, "", "([dependencies.json](results/reliability/dependencies.json))"])


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def page(text: str) -> str:
    for section in (soak, fuzz, dependencies):
        before, after = f"<!-- {section.__name__} -->\n", "<!-- end -->"
        head, rest = text.split(before)
        text = head + before + section() + "\n" + after + rest.split(after, 1)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
