"""Tables, figures and a page, from predictions alone; nothing here opens a model or a test label."""

from marble.reports.page import write_report

__all__ = ["write_report"]
