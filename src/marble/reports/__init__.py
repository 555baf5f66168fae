"""Tables, figures and a page, from stored predictions alone; nothing here opens a model or a bag."""

from marble.reports.page import write_report

__all__ = ["write_report"]
