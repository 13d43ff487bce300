"""One self-contained HTML page, or the tables as Markdown, from any results folder."""

from ube.report.page import write_markdown, write_page

__all__ = ["write_markdown", "write_page"]
