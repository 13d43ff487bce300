"""python tools/lock.py: writes requirements.lock, every package of the base install and of each extra at the version of
constraints.txt, with the sha256 of its file for CPython 3.11 on Linux x86-64. No address of an index is in it.

Install from it with `pip install --require-hashes --no-deps -r requirements.lock`, then `pip install --no-deps .`
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXTRAS = ("cluster", "grids", "atari", "tensorboard", "wandb", "dev")
"""All but sb3: PyTorch has a file for each kind of machine, some of them gigabytes."""
HEAD = """\
# Made by tools/lock.py from constraints.txt, for CPython 3.11 on Linux x86-64: every package of the base install and of the
# extras {extras}, with the sha256 of its file.
# pip install --require-hashes --no-deps -r requirements.lock
"""


def resolved(extras: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """name -> (version, sha256), as pip would install them."""
    asked = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
        ]
        subprocess.run([*words, "--constraint", str(ROOT / "constraints.txt"), asked], check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    packages = {}
    for one in found:
        name = canonical(one["metadata"]["name"])
        if name != "ube-rl":
            packages[name] = (one["metadata"]["version"], one["download_info"]["archive_info"]["hashes"]["sha256"])
    return packages


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    base, everything = resolved(()), resolved(EXTRAS)
    lines = [HEAD.format(extras=", ".join(EXTRAS))]
    for title, packages in (("base", base), ("extras", {k: v for k, v in everything.items() if k not in base})):
        lines.append(f"# {title}")
        lines += [f"{name}=={version} --hash=sha256:{digest}" for name, (version, digest) in sorted(packages.items())]
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")
    print(f"requirements.lock: {len(base)} packages of the base install, {len(everything)} with the extras")


if __name__ == "__main__":
    main()
