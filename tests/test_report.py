"""The report: one page, whole, that needs nothing from elsewhere."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.experiments.calibration import reliability
from bactrian.experiments.comparison import (
    Comparison,
    Curve,
    Entry,
    Gallery,
    LabelTable,
    Metric,
    Picture,
    Sheet,
    Training,
)
from bactrian.report import render_report, write_atomically, write_report
from bactrian.report.axes import Axis
from bactrian.report.charts import Series, line_chart

VOID = {"meta", "link", "img", "input", "br", "hr"}
METRICS = (Metric("accuracy", "accuracy", ".1%", True, "share right"), Metric("loss", "log loss", ".2f", False))
NASTY = "<script>alert('x')</script> & \"quotes\""


class Page(HTMLParser):
    """Checks that tags nest, and remembers what there is."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.references, self.words = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert len(values) == len(attributes), f"an attribute of {tag} twice"
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.references += [values[name] for name in ("href", "src", "srcset", "action", "data") if name in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def curve(n, rng):
    return Curve(np.arange(n), np.sort(rng.random(n)), rng.normal(size=n), rng.random(n), rng.random(n))


def made_up(seed=0):
    rng = np.random.default_rng(seed)
    calibration = reliability(rng.dirichlet([1.0, 1.0, 1.0], size=50), rng.integers(3, size=50))
    training = Training("converged", True, 1.5, 3, 1e-5, 0.0, curve(7, rng), curve(3, rng))
    stopped = Training("stopped at the time limit", False, 0.5, 1, 0.4, 2.0, curve(0, rng), curve(1, rng))
    table = LabelTable("along rows", rng.normal(size=(3, 3)), ("a", "b", "c"), ("a", "b", "c"))
    pictures = tuple(Picture(rng.integers(256, size=(4, 5, 3), dtype=np.uint8), f"picture {k}") for k in range(2))
    return Comparison(
        title=f"Title {NASTY}",
        summary=NASTY,
        metrics=METRICS,
        entries=(
            Entry("baseline", "", {"accuracy": 0.5}),
            Entry("good", NASTY, {"accuracy": 0.9, "loss": 0.2}, training, calibration, (table,)),
            Entry("hasty", "stops", {"accuracy": 0.8, "loss": 0.3}, stopped, calibration),
        ),
        facts={"noise": NASTY},
        galleries=(Gallery("Pictures", ("one", "two"), ("row",), (Sheet("sheet", "legend", (pictures,)),)),),
    )


def test_page_is_well_formed_and_self_contained():
    text = render_report(made_up())
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("h1") == 1
    assert "script" not in page.tags
    assert "link" not in page.tags
    for reference in page.references:
        assert reference.startswith("data:image/png;base64,") or reference[1:] in page.ids, reference
    assert not re.search(r"https?://|url\(|@import", text)


def test_page_says_what_happened():
    words = " ".join(Page(render_report(made_up())).words)
    for phrase in ("90.0%", "0.20", "converged", "stopped at the time limit", "baseline", "Calibration", "<script>"):
        assert phrase in words


def test_best_value_is_marked_once():
    text = render_report(made_up())
    assert re.findall(r'<td class="metric best">(.*?)</td>', text) == ["90.0%", "0.20"]


def test_charts_and_pictures_are_there():
    page = Page(render_report(made_up()))
    assert page.tags.count("figure") == 2 * 3 + 1 + 1
    assert page.tags.count("img") == 2
    assert page.tags.count("polyline") > 6


def test_a_bare_comparison_is_a_page_too():
    page = Page(render_report(Comparison("Bare", "", METRICS, (Entry("only", "", {}),))))
    assert "figure" not in page.tags
    assert "learners" in page.ids


def test_same_comparison_gives_the_same_page():
    assert render_report(made_up()) == render_report(made_up())


def test_report_is_replaced_atomically(tmp_path):
    path = tmp_path / "deep" / "report.html"
    assert write_report(path, made_up()) == path
    first = path.read_text(encoding="utf-8")
    write_report(path, made_up(1))
    assert path.read_text(encoding="utf-8") != first
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_atomically(path, "old")

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_failed_rendering_writes_nothing(tmp_path):
    broken = Comparison("x", "", (Metric("k", "k", "no format", True),), (Entry("a", "", {"k": 1.0}),))
    with pytest.raises(ValueError, match="format"):
        write_report(tmp_path / "folder" / "page.html", broken)
    assert not list(tmp_path.iterdir())


extremes = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=8)


@given(extremes, st.booleans(), st.booleans())
def test_charts_draw_inside_the_frame_whatever_the_values(values, log, whole):
    y = np.array(values)
    x = np.arange(y.size, dtype=float)
    chart = line_chart(
        [Series("s", 0, x, y)], title="t", x_label="x", y_label="y", log_y=log, log_x=log, whole_x=whole and not log
    )
    Page(str(chart))
    assert "nan" not in chart
    assert "inf" not in chart
    for x_place, y_place in re.findall(r'cx="([^"]+)" cy="([^"]+)"', chart):
        assert -1.0 <= float(x_place) <= 401.0
        assert -1.0 <= float(y_place) <= 301.0


@given(st.floats(1e-200, 1e200), st.floats(1e-200, 1e200), st.booleans())
def test_axes_have_a_few_round_ticks(a, b, log):
    axis = Axis.around(np.array([a, b]), 0.0, 100.0, log=log)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert ticks == sorted(ticks)
    places = axis.place(np.array(ticks))
    assert places.min() >= -1e-6
    assert places.max() <= 100.0 + 1e-6
