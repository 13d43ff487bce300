"""One self-contained HTML page from any results folder."""

from ube.report.page import write_page

__all__ = ["write_page"]
