"""A summary as people read it: one table per metric and case, agents down, sizes across. For terminal, Markdown and page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SummaryTable:
    title: str
    corner: str
    """What stands in the first column."""
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [[self.corner, *self.columns], ["---"] * (1 + len(self.columns)), *self.rows]
        safe = [[cell.replace("|", "\\|") for cell in cells] for cells in lines]
        return f"**{self.title}**\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in safe) + "\n"


_ACROSS = ("statistic", "env", "game", "size", "depth", "length")
_MOST_ACROSS = 12


def summary_tables(rows: list[dict[str, Any]]) -> list[SummaryTable]:
    """Rows of a results file, arranged."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        case = str(row["setting"].get("case", row["setting"].get("belief", "")))
        groups.setdefault((row["metric"], case), []).append(row)
    tables = []
    for (metric, case), group in groups.items():
        size = next((k for k in _ACROSS if len({r["setting"].get(k) for r in group}) > 1), None)
        sizes = list(dict.fromkeys(r["setting"].get(size) for r in group)) if size else [None]
        cells = {(r["agent"], r["setting"].get(size) if size else None): cell(r) for r in group}
        name = metric.replace("_", " ")
        title = f"{name}, {case}" if case else name
        agents = list(dict.fromkeys(r["agent"] for r in group))
        words = [s if isinstance(s, str) else f"{size} {s}" if size else name for s in sizes]
        if len(sizes) > _MOST_ACROSS:
            rows_down = [[word, *(cells.get((a, s), "") for a in agents)] for s, word in zip(sizes, words, strict=True)]
            tables.append(SummaryTable(title, str(size), agents, rows_down))
        else:
            rows_down = [[a, *(cells.get((a, s), "") for s in sizes)] for a in agents]
            tables.append(SummaryTable(title, "agent", words, rows_down))
    return tables


def cell(row: dict[str, Any]) -> str:
    """Value and interval; a time that was never reached is 'never', unless nobody tried."""
    if row["value"] is None:
        return "not run" if row["setting"].get("not_run") else "never"
    shown = _percent if row["metric"] in ("percent_of_human", "score_percent") else number
    value, low, high = (shown(row[key]) for key in ("value", "low", "high"))
    return value if row["low"] is None and row["high"] is None else f"{value} ({low} to {high})"


def _percent(value: Any) -> str:
    """As the paper prints its tables; counts of games stand in the first as well."""
    return number(value) if value is None or isinstance(value, int) else f"{value:,.2f}"


def number(value: Any) -> str:
    """Three digits, whole above 1,000; … for none."""
    if value is None:
        return "…"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
