"""The report of a run, out of its folder alone: report.json, report.html with its pictures, and text for a terminal."""

from headrace.launch.report.build import build_report, write_report
from headrace.launch.report.text import format_report

__all__ = ["build_report", "format_report", "write_report"]
