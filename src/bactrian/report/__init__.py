"""Reports: a run, or a comparison of learners, as one self-contained HTML page."""

from bactrian.report.content import (
    ByLearnerSection,
    GallerySection,
    HeadingSection,
    LearnersSection,
    NoteSection,
    Report,
    TableSection,
    TextSection,
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
    "render_report",
    "report_of",
    "write_report",
]
