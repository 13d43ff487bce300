"""A hook of MkDocs: lists, tables and code may follow text without an empty line between, as they may elsewhere."""

import re
from typing import Any

ITEM = re.compile(r"- |\d+\. ")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    lines: list[str] = []
    inside = closed = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        fence = line.startswith("```")
        begins = (
            (fence and not inside)
            or (ITEM.match(line) and not (ITEM.match(before) or before.startswith("  ")))
            or (line.startswith("|") and not before.startswith("|"))
        )
        if before and line and (closed or (begins and not inside)):
            lines.append("")
        lines.append(line)
        closed = fence and inside
        inside ^= fence
    return "\n".join(lines)
