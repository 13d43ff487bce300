"""Collects every results.json below a folder into one index.html that needs nothing else and asks for nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from ube._version import __version__
from ube.errors import UsageError
from ube.figures.results import write_atomically


def write_page(folder: Path) -> Path:
    """Writes folder/index.html and returns its path."""
    files = sorted(folder.glob("*/results.json")) or sorted(folder.glob("results.json"))
    if not files:
        raise UsageError(f"{folder}: no results.json in it or one level below; run `ube reproduce` first")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ube.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    experiments = [_read(path) for path in files]
    page = environment.get_template("page.html.j2").render(experiments=experiments, version=__version__)
    write_atomically(folder / "index.html", page)
    return folder / "index.html"


def number(value: Any) -> str:
    """A number as people read it: four digits, dash for none."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        figures = [path.parent / f"{name}.svg" for name in results["figures"]]
        results["pictures"] = [base64.b64encode(f.read_bytes()).decode() for f in figures if f.is_file()]
        for key in ("name", "title", "note", "command", "versions", "seconds", "summary", "seeds"):
            results[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a results file of ube ({type(error).__name__}: {error})") from error
    return results
