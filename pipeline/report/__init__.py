"""Report: what `validate` found, for machines (`report.json`) and for people (`report.html`)."""

from __future__ import annotations

from pipeline.report.page import page, report_json, write_report

__all__ = ["page", "report_json", "write_report"]
