"""Reports: a comparison of learners as one self-contained HTML page."""

from bactrian.report.files import write_atomically
from bactrian.report.page import render_report, write_report

__all__ = ["render_report", "write_atomically", "write_report"]
