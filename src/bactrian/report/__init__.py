"""Reports: a run, a comparison of learners, or a fitted field, as one self-contained HTML page."""

from bactrian.report.content import (
    ByLearnerSection,
    GallerySection,
    HeadingSection,
    LearnersSection,
    NoteSection,
    Report,
    TableSection,
    TextSection,
    field_report,
    margins_report,
    report_of,
)
from bactrian.report.page import render_report, write_report

__all__ = [
    "ByLearnerSection",
    "GallerySection",
    "HeadingSection",
    "LearnersSection",
    "NoteSection",
    "Report",
    "TableSection",
    "TextSection",
    "field_report",
    "margins_report",
    "render_report",
    "report_of",
    "write_report",
]
