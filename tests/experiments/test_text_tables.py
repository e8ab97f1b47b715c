"""The commands of Tables 1 and 2 on small files of the same layout; the real ones take minutes and are for people."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bactrian.experiments.announcements.generator import make_announcements
from bactrian.experiments.paper_table import PaperTable, percent
from bactrian.experiments.table1 import table as table1
from bactrian.experiments.table2 import table as table2
from bactrian.experiments.tagging import Corpus, Row, peak_memory, train_and_score
from bactrian.graphs.scores import StructuredScores
from bactrian.text.tagged import parse_seminar

NAMES = {"B-PER": ["Ada", "Bo", "Cleo"], "B-LOC": ["Rome", "Ulm", "Oslo"]}


def write_conll(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in table1.FILES.values():
        lines = []
        for _ in range(12):
            lines += ["-DOCSTART- -X- -X- O", ""]
            for _ in range(3):
                kind = rng.choice(list(NAMES))
                word = rng.choice(NAMES[kind])
                lines += ["In IN I-PP O", f"{word} NNP I-NP I-{kind[2:]}", "they PRP I-NP O", ". . O O", ""]
        (folder / name).write_text("\n".join(lines) + "\n")


def test_table1_on_a_small_corpus(tmp_path: Path) -> None:
    write_conll(tmp_path)
    said: list[str] = []
    table = table1.run(tmp_path, progress=said.append, rows=("exact chain", "piecewise", "CAMEL(0)"))
    assert [row[0] for row in table.rows] == ["piecewise", "CAMEL(0)", "exact chain"]
    best = dict(zip(table.columns[:9], table.rows[2][:9], strict=True))
    assert best["micro F1"] == "100.0"  # a word tells its label
    assert int(best["evaluations"]) >= int(best["iterations"]) > 0
    assert table.rows[0][7] == "83.7"  # the paper's, beside ours
    assert all(row[-1] == "converged" for row in table.rows)
    assert any("chosen on testa" in note for note in table.notes)
    assert any(line.startswith("CAMEL(0): training on 12 documents") for line in said)
    assert not any("STOPPED" in note for note in table.notes)
    with pytest.raises(ValueError, match=r"rows must be among piecewise; .*; found 'LPB'"):
        table1.run(tmp_path, rows=("LPB",))
    hasty = table1.run(tmp_path, rows=("piecewise",), seconds=1e-9)
    assert hasty.rows[0][-1] == "time limit"
    assert hasty.notes[0].startswith("STOPPED by --seconds")
    assert hasty.notes[0].endswith(": piecewise")


def test_table1_reads_the_subfolder_and_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "conll2003").mkdir()
    with pytest.raises(FileNotFoundError, match=r"expected eng\.train, eng\.testa, eng\.testb"):
        table1.folder_of(tmp_path)
    write_conll(tmp_path / "conll2003")
    assert table1.folder_of(tmp_path) == tmp_path / "conll2003"


def test_table2_on_generated_announcements(tmp_path: Path) -> None:
    for number, announcement in enumerate(make_announcements(24, seed=1)):
        (tmp_path / f"{number}.txt").write_text(announcement.tagged)
    settings = replace(table2.SETTINGS, tolerance=1e-2)
    table = table2.run(tmp_path, rows=("exact chain",), settings=settings)
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert len(cells["outer"].split(", ")) == table2.N_FOLDS
    assert int(cells["evaluations"]) >= int(cells["iterations"]) > 0
    one = table2.run(tmp_path, rows=("exact chain",), settings=settings, splits=1)
    assert "1 of 4 folds" in one.title
    assert len(one.rows[0][1].split(", ")) == 1
    with pytest.raises(ValueError, match="splits must lie between 1 and 4, found 5"):
        table2.run(tmp_path, splits=5)
    mean, deviation = cells["micro F1"].rstrip(")").split(" (")
    assert 20.0 < float(mean) <= 100.0
    assert float(deviation) >= 0.0
    assert set(table2.FIELDS) <= set(table.columns)
    with pytest.raises(FileNotFoundError, match=r"expected the files 0\.txt"):
        table2.folder_of(tmp_path / "nowhere")


def test_rows_as_long_as_columns() -> None:
    with pytest.raises(ValueError, match=r"rows\[1\] must have 2 cells, found 1"):
        PaperTable("t", ("a", "b"), (("1", "2"), ("1",)))


def test_peak_memory_sees_what_was_taken() -> None:
    with peak_memory() as memory:
        taken = np.ones(30_000_000)
        taken += 1.0
    assert np.isnan(memory.peak) or 200.0 < memory.peak < 600.0


@pytest.mark.parametrize("row", table2.ROWS, ids=lambda row: row.name)
def test_a_fold_leaves_nothing_behind(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[StructuredScores]] = []
    begin = StructuredScores.__init__

    def remembered(self: StructuredScores, *given: object, **named: object) -> None:
        begin(self, *given, **named)
        made.append(weakref.ref(self))

    monkeypatch.setattr(StructuredScores, "__init__", remembered)
    settings = replace(table2.SETTINGS, tolerance=1e-1)
    documents = [parse_seminar(announcement.tagged) for announcement in make_announcements(4, seed=0)]
    corpus = Corpus.of(documents, settings, "BIO")
    gc.disable()  # it may not run for hours where large arrays are few objects
    try:
        train_and_score(row, settings, corpus[[0, 1, 2]], corpus[[3]])
        assert made
        assert [one() for one in made] == [None] * len(made)
    finally:
        gc.enable()


def test_percent() -> None:
    assert percent(0.8768) == "87.7"
