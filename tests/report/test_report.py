"""The report: one page, whole, that needs nothing from elsewhere."""

import base64
import dataclasses
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, PackageLoader
from pages import LABELS, METRICS, NASTY, Page, curve, made_up, tagged_text
from PIL import Image
from sklearn.metrics import confusion_matrix

from bactrian.atomic_files import write_atomically
from bactrian.estimators.markov_random_field import MarkovRandomField
from bactrian.report import (
    ByLearnerSection,
    GallerySection,
    HeadingSection,
    LearnersSection,
    NoteSection,
    Report,
    TableSection,
    TextSection,
    field_report,
    render_report,
    report_of,
    write_report,
)
from bactrian.report.charts import Axis, Series, line_chart
from bactrian.report.page import FREE
from bactrian.runs.comparison import (
    Comparison,
    Confusion,
    Entry,
    Gallery,
    LabelTable,
    Metric,
    Picture,
    Sheet,
    TaggedText,
    Tagging,
    Training,
    reliability,
)


def text_of(page):
    return " ".join("".join(page.words).split())


def test_page_is_well_formed_and_self_contained():
    text = render_report(made_up())
    page = Page(text)
    assert text.lstrip().startswith("<!DOCTYPE html>")
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("h1") == 1
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert not [name for name in page.names if name.startswith("on")]
    for reference in page.references:
        assert reference.startswith("data:image/png;base64,") or reference[1:] in page.ids, reference
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text


def test_page_says_what_happened():
    words = text_of(Page(render_report(made_up())))
    for phrase in ("90.0%", "0.20", "converged", "stopped at the time limit", "baseline", "Calibration", "Confusions"):
        assert phrase in words


def test_nothing_from_the_data_becomes_markup():
    """Titles, names, labels, words and legends: every one of them comes out as it went in, and as text."""
    text = render_report(made_up())
    page = Page(text)
    assert text_of(page).count(NASTY) >= 15
    assert "<script" not in text
    outside_style = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search(r'[^=]"quotes"', outside_style)


def test_names_never_reach_the_style_sheet():
    style = re.search(r"<style>(.*?)</style>", render_report(made_up()), flags=re.DOTALL)[1]
    assert "good" in text_of(Page(render_report(made_up())))
    assert not re.search(r"alert|quotes|baseline|hasty", style)


def test_best_value_is_marked_once_and_no_number_is_none():
    text = render_report(made_up())
    assert re.findall(r'<td class="number metric best">(.*?)</td>', text) == ["90.0%", "0.20"]
    assert "nan" not in re.sub(r"data:image/png;base64,[^\"]*", "", text)


def test_a_run_alone_is_compared_with_nobody():
    entry = Entry(
        "only", "", {"accuracy": 0.9}, types={"LOC": {"precision": 0.5, "recall": 0.25, "f1": 1 / 3, "support": 1200}}
    )
    text = render_report(Comparison("Run", "", METRICS, (entry,)))
    page = Page(text)
    assert "side by side" not in text
    assert "★ best" not in text_of(page)
    assert "best" not in page.classes
    assert re.findall(r'<td class="number">([^<]*)</td>', text) == ["50.0%", "25.0%", "33.3%", "1,200"]


def test_charts_have_six_lines_and_a_key_beside_them():
    rng = np.random.default_rng(0)
    entries = tuple(
        Entry(f"learner {k}", "", {"accuracy": 0.1 * k}, reliability=reliability(rng.dirichlet([1, 1], 9), np.zeros(9)))
        for k in range(9)
    )
    text = render_report(Comparison("Many", "", METRICS, entries))
    assert text.count("<polyline points") - text.count('viewBox="0 0 30 10"') == 6
    assert "not shown: learner 2, learner 1, learner 0" in text_of(Page(text))
    made = render_report(made_up())
    assert made.count('<ul class="keys"') == 2


def test_bins_of_calibration_have_counts():
    alone = Entry("only", "", {}, reliability=reliability(np.array([[0.9, 0.1]] * 1500), np.zeros(1500, dtype=int)))
    text = render_report(Comparison("One", "", METRICS, (alone,)))
    assert text.count("<rect") == 1
    assert ">1,500</text>" in text


def test_texts_open_at_the_best_learner():
    found = re.findall(r'id="text-\d+-(\d)"( checked)?> (\w+)', render_report(made_up()))
    assert [name for _, checked, name in found if checked] == ["good"]
    assert found[-1][2] == "hasty"


def test_names_of_features_have_a_key():
    comparison = dataclasses.replace(made_up(), feature_key={"word=": "the word itself"})
    assert "the word itself" in text_of(Page(render_report(comparison)))


def test_charts_and_pictures_are_there():
    page = Page(render_report(made_up()))
    assert page.tags.count("figure") == 2 * 3 + 1 + 1 + 2 * 2  # charts, and a gallery of one row
    assert page.tags.count("img") == 2 * 2
    assert page.tags.count("polyline") > 6
    assert page.tags.count("path") == 2 * 2 * 3  # two skip edges in two texts, as truth and two learners see them


def test_a_learner_has_one_number_throughout():
    """One switch hides its row, its lines, its heat maps and its column of pictures."""
    page = Page(render_report(made_up()))
    assert [name for name in page.ids if name.startswith("show-")] == ["show-0", "show-1", "show-2"]
    # row, 6 + 1 charts, 2 keys, bars, ECE, panel of types, of tables, of confusions, of weights, 2 sheets: a picture
    assert page.classes.count("learner-1") == 1 + 7 + 2 + 1 + 1 + 4 + 2
    assert page.classes.count("learner-0") == 1


def test_a_bare_comparison_is_a_page_too():
    page = Page(render_report(Comparison("Bare", "", METRICS, (Entry("only", "", {}),))))
    assert "figure" not in page.tags
    assert "section-1" in page.ids
    assert not [name for name in page.ids if name.startswith("show-")]


def test_an_empty_report_is_a_page_too():
    assert Page(render_report(Report("Nothing", ()))).tags.count("h1") == 1


def test_several_comparisons_share_a_page():
    report = report_of(made_up(), replace(made_up(1), title="Other"), title="Both")
    headings = [section.title for section in report.sections if isinstance(section, HeadingSection)]
    assert headings == [f"Title {NASTY}", "Other"]
    page = Page(render_report(report))
    assert len(page.ids) == len(set(page.ids))
    assert len([name for name in page.ids if name.startswith("show-")]) == 3
    with pytest.raises(ValueError, match="at least one"):
        report_of()


def test_networks_of_many_edges_show_the_strongest():
    n = 154
    X = np.random.default_rng(0).integers(0, 2, (30, n))
    X[:, 1] = X[:, 0]
    field = MarkovRandomField([(v, v + 1) for v in range(n - 1)], prior_variance=1.0, cardinalities=2).fit(X)
    report = field_report(field, "Chain", intervals=False)
    network = report.sections[0]
    assert network.note == "The 150 strongest of 153 edges."
    assert len(network.lines) == 150
    assert {"0", "1"} <= {name for name, *_ in network.nodes}
    assert max(network.lines, key=lambda line: line[2])[-1].startswith("0, 1: ")
    assert network.note in text_of(Page(render_report(report)))


def test_same_comparison_gives_the_same_page():
    assert render_report(made_up()) == render_report(made_up())


def test_tables_and_notes():
    rows = (("piecewise", 83.05, "85.2"), ("lbp", float("nan"), "–"))
    sections = (TableSection("Table", ("learner", "F1", "paper"), rows, note=NASTY), NoteSection("Note", (NASTY, "b")))
    text = render_report(Report("Page", sections))
    assert "<td class=number>83.05</td>" in text
    heads = '<th scope="col">learner</th><th scope="col" class=number>F1</th><th scope="col" class=number>paper</th>'
    assert heads in text
    assert "<td class=number>–</td>" in text
    assert text_of(Page(text)).count(NASTY) == 2
    rows = (("piecewise", "6.4e-01"), ("lbp", "82.6 (2.6)"), ("exact", "0.001, 0.01"), ("cccp", "time limit"))
    text = render_report(Report("Page", (TableSection("Table", ("learner", "value"), rows),)))
    assert "<td class=number>6.4e-01</td>" in text
    assert "<td class=number>82.6 (2.6)</td>" in text
    assert "<td>0.001, 0.01</td>" in text
    assert "<td>time limit</td>" in text
    with pytest.raises(ValueError, match=r"rows\[1\] must have one cell per column: expected 2, found 1"):
        TableSection("x", ("a", "b"), (("a", 1.0), ("b",)))


def test_a_chart_without_a_point_is_left_out():
    exact = dataclasses.replace(curve(7, np.random.default_rng(0)), violation=np.full(7, 1e-16))
    training = Training("converged", True, 1.5, 1, 1e-16, 0.0, exact, exact)
    text = render_report(Report("Page", (ByLearnerSection("curves", {"exact": training}),)))
    assert text.count('aria-label="Moment gap') == 2
    assert "Consistency violation" not in text


def test_what_is_no_report_is_refused(tmp_path):
    with pytest.raises(TypeError, match="report must be a Report or a Comparison, found str"):
        write_report("page.html", tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------- texts


def lines_on_page(text):
    """Lines of the first passage of a page, tips left out."""
    passage = text[text.index('class="passage') :]
    passage = passage[: passage.index("</article>")]
    lines = re.findall(r'<div class="line">(.*?)</div>', passage)
    return [re.sub(r"<[^>]+>", "", re.sub(r'<span class="tip">.*?</span>', "", line)) for line in lines]


def test_texts_keep_their_lines():
    text = render_report(Report("x", (TextSection((tagged_text(),)),)))
    assert lines_on_page(text) == ["Talk: Ada Lovelace", "at 4:30.", "", "  Lovelace speaks."]


def test_tips_tell_the_marginals_and_the_truth():
    words = text_of(Page(render_report(Report("x", (TextSection((tagged_text(wrong=(3,)),)),)))))
    assert "B-speaker 94%, O 2%, I-speaker 2%, B-stime 2% (right)" in words
    assert "O 94%, B-speaker 2%, I-speaker 2%, B-stime 2%; true label: I-speaker" in words
    assert "O; true label: B-stime" in words  # a learner without marginals


def test_the_keyboard_stops_where_there_is_something_to_say():
    stops = re.findall(r"<mark class=\"([^\"]*)\" tabindex=0>(.*?)<", render_report(made_up()))
    assert stops
    for styles, _ in stops:
        assert {"first", "wrong", "doubt"} & set(styles.split())


def test_texts_with_errors_are_counted():
    texts = (tagged_text("a", wrong=(3,)), tagged_text("b"))
    text = render_report(Report("x", (TextSection(texts),)))
    assert re.findall(r"<small>(\d of \d) with errors", text) == ["1 of 2", "2 of 2"]
    assert "right-1-1" in text


@settings(max_examples=40)
@given(
    st.lists(st.text(min_size=1, max_size=6).filter(lambda t: "\n" not in t), min_size=1, max_size=40),
    st.integers(0, 2**32 - 1),
)
def test_arcs_end_at_their_words(tokens, seed):
    """Every arc ends in the middle of a token, in columns and lines found by laying out the words anew."""
    rng = np.random.default_rng(seed)
    n = len(tokens)
    gaps = [(" ", "", "\n", "   ")[k] for k in rng.integers(4, size=n)]
    tokens = [re.sub(r"\W", "x", token, flags=re.ASCII) for token in tokens]
    skips = tuple((int(a), int(b)) for a, b in rng.integers(n, size=(5, 2)))
    text = TaggedText("t", tuple(tokens), ("O",) * n, {}, ("O",), tuple(gaps), skips)
    page = render_report(Report("x", (TextSection((text,)),)))
    middles, line, column = [], 0, 0
    for token, gap in zip(tokens, gaps, strict=True):
        if column and column + len(token) > 100:
            line, column = line + 1, 0
        middles.append((column + len(token) / 2, line))
        column += len(token) + (0 if gap == "\n" else len(gap))
        if gap == "\n":
            line, column = line + 1, 0
    bow = r"C\S+ \S+ \S+ \S+ "
    lane = r"V[\d.]+H[\d.]+V[\d.]+H"
    ends = re.findall(rf'<path d="M([\d.]+) ([\d.]+)(?:{bow}|{lane})([\d.]+)[ V]([\d.]+)">', page)
    assert len(ends) == 5
    for pair, (x1, y1, x2, y2) in zip(skips, ends, strict=True):
        a, b = sorted(pair)
        assert float(y1) % 1.0 == pytest.approx(FREE)  # above the words
        assert (float(x1), int(float(y1))) == (pytest.approx(middles[a][0]), middles[a][1])
        assert (float(x2), int(float(y2))) == (pytest.approx(middles[b][0]), middles[b][1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"truth": ("O",)}, "truth must have one label per token: expected 10, found 1"),
        ({"gaps": ("",)}, "gaps"),
        ({"skips": ((0, 10),)}, r"skips\[0\] must join tokens 0 to 9, found \(0, 10\)"),
        ({"predictions": {"a": Tagging(("O",))}}, r"predictions\['a'\]"),
        ({"predictions": {"a": Tagging(("O",) * 10, np.zeros((10, 2)))}}, r"shape \(10, 4\), found \(10, 2\)"),
    ],
)
def test_texts_that_do_not_fit_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(tagged_text(), **change)


def test_a_text_without_tokens_is_no_trouble():
    empty = TaggedText("Empty", (), (), {"good": Tagging((), np.zeros((0, 4)))}, LABELS)
    Page(render_report(Report("x", (TextSection((empty,)),))))


# ------------------------------------------------------------------------------- pictures and numbers


def test_wide_pictures_are_large_and_keep_their_size():
    picture = Picture(np.zeros((20, 300, 3), dtype=np.uint8), "wide")
    assert picture.size == (300, 20)
    gallery = Gallery("G", ("a",), ("r",), (Sheet("s", "", ((picture,),)),))
    text = render_report(Report("x", (GallerySection(gallery),)))
    assert 'width="300" height="20"' in text
    assert "pictures large" in text
    content = base64.b64decode(re.search(r"data:image/png;base64,([^\"]*)", text)[1])
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), picture.pixels)
    with pytest.raises(ValueError, match=r"uint8 of shape \(height, width\)"):
        Picture(np.zeros((20, 300)), "no")
    with pytest.raises(ValueError, match="row 0 must have one picture per column: expected 2"):
        Gallery("G", ("a", "b"), ("r",), (Sheet("s", "", ((picture,),)),))
    with pytest.raises(ValueError, match="one row per row label: expected 2, found 1"):
        Gallery("G", ("a",), ("r", "q"), (Sheet("s", "", ((picture,),)),))


@pytest.mark.parametrize(("rows", "side", "classes"), [
    (1, 48, "pictures large flow"), (1, 65, "pictures large flow smooth"), (2, 48, "pictures"),
    (2, 65, "pictures large smooth"),
])  # fmt: skip
def test_one_row_of_pictures_is_large(rows, side, classes):
    row = (Picture(np.zeros((side, side), dtype=np.uint8), "square"),)
    gallery = Gallery("G", ("a",), ("r",) * rows, (Sheet("s", "", (row,) * rows),))
    text = render_report(Report("x", (GallerySection(gallery),)))
    assert f'class="{classes}"' in text


def test_a_ring_marks_where_a_phase_begins():
    """Drawn last, so that nothing hides it; the point keeps its words."""
    series = Series("s", 0, np.arange(7.0), np.arange(7.0), phase=np.array([0, 0, 0, 1, 1, 2, 2]))
    chart = line_chart([series], title="t", x_label="x", y_label="y")
    markers = chart["lines"][0][2]
    assert [note for _, note, begins in markers if begins] == ["s: 3 at 3, phase 2 begins", "s: 5 at 5, phase 3 begins"]
    assert [begins for _, _, begins in markers] == [False] * 5 + [True] * 2
    assert CHART(chart).count('class="phase"') == 2


def test_phases_are_explained_where_there_are_any():
    assert "A ring marks" in render_report(made_up())
    good = made_up().entries[1]
    history = replace(good.training.history, phase=0 * good.training.history.phase)
    one = replace(made_up(), entries=(replace(good, training=replace(good.training, history=history)),))
    assert "A ring marks" not in render_report(one)


@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
def test_confusions_agree_with_scikit_learn(seed, n):
    rng = np.random.default_rng(seed)
    truth, predicted = (rng.choice(["a", "b", "c"], size=n) for _ in range(2))
    found = Confusion.of(truth, predicted, ["a", "b", "c"])
    expected = confusion_matrix(truth, predicted, labels=["a", "b", "c"]) if n else np.zeros((3, 3))
    np.testing.assert_array_equal(found.counts, expected)


def test_confusions_of_unknown_labels_are_refused():
    with pytest.raises(ValueError, match="position 1 has 'z'"):
        Confusion.of("az", "aa", ["a", "b"])
    with pytest.raises(ValueError, match="shape"):
        Confusion(("a", "b"), np.zeros((3, 3), dtype=np.int64))


def test_forbidden_pairs_and_many_labels_do_not_upset_heat_maps():
    values = np.zeros((20, 20))
    values[0, 0] = -np.inf
    names = tuple(f"label {k}" for k in range(20))
    text = render_report(
        Report("x", (ByLearnerSection("edge_tables", {"m": (LabelTable("t", values, names, names),)}),))
    )
    assert "matrix dense" in text
    assert "nan" not in text
    assert "score -inf" in text


def test_a_metric_that_nobody_has_finite_has_no_best():
    section = LearnersSection(METRICS, (Entry("a", "", {"accuracy": float("nan")}),))
    assert np.isnan(section.best(METRICS[0]))
    assert "best" not in Page(render_report(Report("x", (section,)))).classes


# --------------------------------------------------------------------------------------------- files


def test_report_is_replaced_atomically(tmp_path):
    path = tmp_path / "deep" / "report.html"
    assert write_report(made_up(), path) == path
    first = path.read_text(encoding="utf-8")
    write_report(report_of(made_up(1)), path)
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
        write_report(broken, tmp_path / "folder" / "page.html")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------- charts

CHART = Environment(loader=PackageLoader("bactrian.report"), autoescape=True).get_template("chart.html").module.chart

extremes = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=8)


@given(extremes, st.booleans(), st.booleans())
def test_charts_draw_inside_the_frame_whatever_the_values(values, log, whole):
    y = np.array(values)
    x = np.arange(y.size, dtype=float)
    places = line_chart(
        [Series("s", 0, x, y)], title="t", x_label="x", y_label="y", log_y=log, log_x=log, whole_x=whole and not log
    )
    chart = CHART(places)
    Page(str(chart))
    assert "nan" not in chart
    assert "inf" not in chart
    for x_place, y_place in re.findall(r'cx="([^"]+)" cy="([^"]+)"', chart):
        assert -1.0 <= float(x_place) <= 401.0
        assert -1.0 <= float(y_place) <= 301.0


def test_long_curves_are_thinned_but_keep_their_ends():
    x = np.arange(1.0, 5001.0)
    chart = CHART(line_chart([Series("s", 0, x, x)], title="t", x_label="x", y_label="y"))
    points = re.search(r'<polyline points="([^"]+)"', chart)[1].split()
    whole = CHART(line_chart([Series("s", 0, x[[0, -1]], x[[0, -1]])], title="t", x_label="x", y_label="y"))
    ends = re.search(r'<polyline points="([^"]+)"', whole)[1].split()
    assert len(points) == 400
    assert [points[0], points[-1]] == ends


@given(st.floats(1e-200, 1e200), st.floats(1e-200, 1e200), st.booleans())
def test_axes_have_a_few_round_ticks(a, b, log):
    axis = Axis.around(np.array([a, b]), 0.0, 100.0, log=log)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert ticks == sorted(ticks)
    places = axis.place(np.array(ticks))
    assert places.min() >= -1e-6
    assert places.max() <= 100.0 + 1e-6
