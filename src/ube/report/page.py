"""Every results.json below a folder in one index.html that needs nothing else and asks for nothing, or as Markdown."""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ube._version import __version__
from ube.errors import UsageError
from ube.figures.comparison import COMPARISON
from ube.figures.comparison import FILE as COMPARISON_FILE
from ube.files import to_json, write_atomically
from ube.reading import read_bytes, read_json
from ube.report.runs import read_runs, run_charts, to_draw
from ube.report.tables import number, summary_tables

MOST_FIGURES = 100


def write_page(folder: Path) -> Path:
    """Writes folder/index.html and returns its path."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    experiments, runs = read_results(folder), read_runs(folder)
    if not experiments and not runs:
        raise UsageError(
            f"{folder}: no results.json and no run in it or one level below; run `ube reproduce` or `ube train` first"
        )
    loader = PackageLoader("ube.report", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": number,
        "pretty": lambda content: json.dumps(content, indent=1, ensure_ascii=False),
    }
    charts = {str(i): e["charts"] for i, e in enumerate(experiments) if e["charts"]}
    data = {
        "charts": charts | ({"runs": run_charts(runs)} if runs else {}),
        "maps": {str(i): e["maps"] for i, e in enumerate(experiments) if e["maps"]},
    }
    data = json.loads(to_json(data))  # JavaScript knows no NaN
    page = environment.get_template("page.html.j2").render(
        experiments=experiments, runs=runs, data=data, version=__version__
    )
    write_atomically(folder / "index.html", page.encode("utf-8", "replace"))
    return folder / "index.html"


def write_markdown(folder: Path, file: Path) -> None:
    """The tables that `ube reproduce` prints, each with the command that made it, and links to the figures."""
    parts = [
        "# Results\n",
        f"Made by `ube report {folder.as_posix()} --markdown {file.as_posix()}` from the files it names.\n",
    ]
    found = read_results(folder)
    if not found:
        raise UsageError(f"{folder}: no results.json in it or one level below; run `ube reproduce` first")
    for results in found:
        source = Path(os.path.relpath(results["folder"], file.parent))
        seeds, versions = results["seeds"], ", ".join(f"{k} {v}" for k, v in results["versions"].items())
        parts += [f"## {results['title']}\n", results["note"] + "\n"]
        parts += [f"![{figure}]({(source / figure).as_posix()}.png)\n" for figure in results["figures"]]
        parts += [table.markdown() for table in results["tables"]]
        parts.append(
            f"`{results['command']}`, {seeds['count']} seeds from {seeds['first']}, "
            f"{results['seconds']} s in the last call, {versions}: "
            f"[{results['source']}]({(source / results['file']).as_posix()})\n"
        )
    write_atomically(file, "\n".join(parts))


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every results file of an experiment or a comparison in a folder or one level below, with its figures as base64, the
    tables worth printing, and what the page draws itself."""
    names = ("results.json", COMPARISON_FILE)
    return [_read(path, folder) for above in ("", "*/") for name in names for path in sorted(folder.glob(above + name))]


def _read(path: Path, folder: Path) -> dict[str, Any]:
    from ube.figures import EXPERIMENTS

    results: Any = None
    try:
        results = read_json(path, inside=folder, remedy="not a results file of ube; make it again, or remove it")
        drawn = path.name == COMPARISON_FILE  # by the page itself, with as much in it
        results["pictures"] = [] if drawn else _pictures(path.parent, results["figures"])
        texts = [results[key] for key in ("name", "title", "note", "command")] + [results["versions"]["ube"]]
        rows = [row[key] for row in results["summary"] for key in ("agent", "metric", "value", "low", "high")]
        places = [
            *results["versions"].items(),
            *results["settings"].items(),
            *(item for row in results["summary"] for item in row["setting"].items()),
        ]
        if not (all(isinstance(text, str) for text in texts) and results["seconds"] >= 0 and len(rows) + len(places)):
            raise TypeError("fields of the wrong kind")
        results["seeds"] = {key: int(results["seeds"][key]) for key in ("first", "count")}
        known = COMPARISON if drawn else EXPERIMENTS.get(results["name"])
        results["tables"] = summary_tables(known.headline(results) if known else results["summary"])
        results["charts"] = [to_draw(chart) for chart in known.charts(results)] if known else []
        results["maps"] = known.maps(results) if known else None
        results |= {
            "id": f"of-{path.parent.name}", "source": f"{path.parent.name}/{path.name}", "folder": path.parent,
            "file": path.name,
        }  # fmt: skip
    except UsageError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{path}: {_blame(results)} ({type(error).__name__}: {error})") from error
    return results


def _pictures(folder: Path, names: Any) -> list[str]:
    """As base64. They may be anybody's, so each is of this folder, and there are few."""
    if not isinstance(names, list) or len(names) > MOST_FIGURES or len(set(names)) < len(names):
        raise TypeError("figures are a list of a few names, each once")
    found = []
    for name in names:
        with suppress(FileNotFoundError):
            found.append(read_bytes(folder / f"{name}.svg", inside=folder, remedy="remove it"))
    return [base64.b64encode(content).decode() for content in found]


def _blame(results: Any) -> str:
    """What is wrong with a file that cannot be shown, and what to do."""
    try:
        version, name = results["versions"]["ube"], results["name"]
    except (LookupError, TypeError):
        return "not a results file of ube"
    again = "ube compare" if name == "comparison" else f"ube reproduce {name}"
    return f"made by ube {version}, this one ({__version__}) cannot read it; run `{again}` again, or remove it"
