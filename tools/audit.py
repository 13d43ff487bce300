"""python tools/audit.py --out FILE.json [--pip-audit PATH]: licences of the base install and of what each extra adds, and
known vulnerabilities of requirements.lock as far as pip-audit can look them up."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
STRICT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)
"""Copyleft that reaches the program which imports it; the Lesser GPL does not."""


def closure(asked: list[str]) -> list[str] | None:
    """All packages that these requirements bring; None where one of them is not installed here, so that nobody can say."""
    found: dict[str, None] = {}
    left = [Requirement(one) for one in asked]
    while left:
        requirement = left.pop()
        name = canonical(requirement.name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return None
        extras = [*requirement.extras, ""]
        new = [Requirement(one) for one in needs] if name not in found or requirement.extras else []
        left += [one for one in new if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras)]
        found[name] = None
    return sorted(found)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: str) -> str:
    """In one line: the expression, the classifiers, or the beginning of what it says itself."""
    about = metadata.metadata(package)
    classifiers = [c.rsplit(" :: ", 1)[-1] for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    text = (
        about.get("License-Expression")
        or ", ".join(c for c in classifiers if c != "OSI Approved")
        or about.get("License")
        or ""
    )
    return text.strip().split("\n")[0][:80] or "not said"


def is_strict(text: str) -> bool:
    """GPL or AGPL, and not only the Lesser or an alternative to it."""
    return (
        any(STRICT.search(part) and "lesser" not in part.lower() for part in re.split(r"\bOR\b|,", text))
        and " OR " not in text
    )


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"base": project["dependencies"], **project["optional-dependencies"]}


def licences() -> dict[str, dict[str, str] | None]:
    """base and each extra -> package -> licence; an extra names what it adds to the base, None if it is not installed."""
    brought = {part: closure(requirements) for part, requirements in extras().items()}
    base = brought["base"] or []
    return {
        part: None if names is None else {name: licence(name) for name in names if part == "base" or name not in base}
        for part, names in brought.items()
    }


def vulnerabilities(program: str) -> dict[str, Any]:
    """What was looked up, what could not be, and what was found. A package that was not looked up is not known to be good."""
    words = [program, "--requirement", str(ROOT / "requirements.lock"), "--disable-pip", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return {
            "looked_up": 0,
            "not_looked_up": None,
            "known": [],
            "why": (done.stderr.strip().splitlines() or ["no answer"])[-1][:200],
        }
    seen = [one for one in packages if "skip_reason" not in one]
    known = [f"{one['name']} {one['version']}: {found['id']}" for one in seen for found in one["vulns"]]
    return {"looked_up": len(seen), "not_looked_up": len(packages) - len(seen), "known": known}


def _of(found: dict[str, dict[str, str] | None], chosen: Callable[[str], bool]) -> dict[str, list[str] | None]:
    return {
        part: None if of is None else [name for name, text in of.items() if chosen(text)] for part, of in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tools/audit.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pip-audit", help="where that program is, if it is installed")
    asked = parser.parse_args()
    found = licences()
    command = ["python", "tools/audit.py", "--out", str(asked.out)]
    command += ["--pip-audit", Path(asked.pip_audit).name] if asked.pip_audit else []
    content = {
        "command": shlex.join(command),
        "licences": found, "strict": _of(found, is_strict), "not_said": _of(found, lambda text: text == "not said"),
        "vulnerabilities": vulnerabilities(asked.pip_audit) if asked.pip_audit else None,
    }  # fmt: skip
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(content, indent=1) + "\n")
    print({part: of and len(of) for part, of in found.items()}, content["strict"], content["vulnerabilities"])


if __name__ == "__main__":
    main()
