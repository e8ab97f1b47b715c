"""Reports: a run, or a comparison of learners, as one self-contained HTML page."""

from bactrian.files import write_atomically
from bactrian.report.content import (
    CalibrationSection,
    ConfusionSection,
    CurveSection,
    EdgeTableSection,
    GallerySection,
    HeadingSection,
    LearnersSection,
    NoteSection,
    Report,
    TableSection,
    TextSection,
    WeightSection,
    report_of,
    sections_of,
)
from bactrian.report.page import render_report, write_report

__all__ = [
    "CalibrationSection",
    "ConfusionSection",
    "CurveSection",
    "EdgeTableSection",
    "GallerySection",
    "HeadingSection",
    "LearnersSection",
    "NoteSection",
    "Report",
    "TableSection",
    "TextSection",
    "WeightSection",
    "render_report",
    "report_of",
    "sections_of",
    "write_atomically",
    "write_report",
]
