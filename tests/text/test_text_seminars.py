"""Text with inline tags, seminar announcements, folds, and predictions put back into text."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.experiments.table2.table import folds
from bactrian.text import (
    SEMINAR_FIELDS,
    Document,
    Entity,
    find_entities,
    joined_text,
    json_line,
    parse_seminar,
    prediction_lines,
    read_columns,
    read_seminars,
    read_tagged,
    tagged_text,
    tokenize,
    write_lines,
    write_tagged,
)

EMAIL = """<0.1.2.95@andrew.cmu.edu.0>
Time:     <stime>4:00</stime> - <etime>5:30</etime>

<paragraph><sentence><speaker>Dr. Ada
Lovelace</speaker> speaks in <location>PH 223D</sentence></location>.
Reply to <ada@cs>.
"""


def test_an_email_is_read():
    document = parse_seminar(EMAIL, name="x")
    marked = [(kind, " ".join(document.words[start:stop])) for kind, start, stop in document.entities("BIO")]
    assert marked == [
        ("stime", "4:00"),
        ("etime", "5:30"),
        ("speaker", "Dr . Ada Lovelace"),
        ("location", "PH 223 D"),
    ]
    assert document.text == re.sub("</?(sentence|paragraph|stime|etime|speaker|location)>", "", EMAIL)
    assert document.words[:2] == ("Time", ":")  # not the number of the message
    assert "<" in document.words  # but other brackets are text
    assert document.sentence_starts.tolist() == [0]
    assert [document.words[t] for t in document.line_starts] == ["Time", "Dr", "Lovelace", "Reply"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <stime>4", "<stime> is never closed"),
        ("a\n4</stime>", "line 2: unexpected </stime>"),
        ("<stime>4 <etime>5</etime></stime>", "line 1: unexpected <etime> inside <stime>"),
        ("<stime>4</etime>", "line 1: unexpected </etime> inside <stime>"),
        ("<stime><stime>4</stime>", "line 1: unexpected <stime> inside <stime>"),
    ],
)
def test_tags_that_do_not_match_are_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_tagged(text, SEMINAR_FIELDS)
    (tmp_path / "7.txt").write_text(text)
    with pytest.raises(ValueError, match=f"7.txt: .*{message}"):
        list(read_seminars(tmp_path))


@st.composite
def marked_text(draw):
    text = draw(st.text("ab <>/é\n", max_size=30))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    return text, [(draw(st.sampled_from(["when", "where"])), start, stop) for start, stop in pairs if start < stop]


@given(marked_text())
def test_tags_come_back(case):
    text, marked = case
    assert read_tagged(write_tagged(text, reversed(marked)), ["when", "where"]) == (text, marked)


def test_tags_are_checked():
    with pytest.raises(ValueError, match="must lie between 2, the end of the one before"):
        write_tagged("abc", [("x", 0, 2), ("y", 1, 3)])
    with pytest.raises(ValueError, match="must lie between 0"):
        write_tagged("abc", [("x", 2, 4)])
    with pytest.raises(ValueError, match="fields must be names of tags"):
        read_tagged("abc", [])
    assert read_tagged("<a.b>x</a.b><aXb>", "a.b") == ("x<aXb>", [("a.b", 0, 1)])


def test_files_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("10", "9", "b", "a", "100"):
        (tmp_path / f"{name}.txt").write_text("x")
    assert [document.name for document in read_seminars(tmp_path)] == [
        f"{name}.txt" for name in ("9", "10", "100", "a", "b")
    ]
    with pytest.raises(ValueError, match=r"holds no \.txt files"):
        read_seminars(tmp_path / "none")


def test_windows_line_ends_keep_their_offsets(tmp_path):
    (tmp_path / "1.txt").write_bytes(b"<1@x>\r\nat <stime>4\r\npm</stime>\r\n")
    (document,) = read_seminars(tmp_path)
    assert document.text == "<1@x>\r\nat 4\r\npm\r\n"
    assert document.tags == ("O", "B-stime", "I-stime")
    assert document.line_starts.tolist() == [0, 2]


# --- folds ---


@given(st.lists(st.sampled_from("abcdefghij"), min_size=4, max_size=30), st.integers(2, 4), st.integers(0, 5))
def test_folds_part_the_documents_and_keep_duplicates_together(words, n_folds, seed):
    documents = [Document([word]) for word in words]
    if len(set(words)) < n_folds:
        with pytest.raises(ValueError, match="n_folds must be an integer from 2 to the number of different documents"):
            folds(documents, n_folds, seed=seed)
        return
    parts = folds(documents, n_folds, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(words)))
    where = [{words[position] for position in part} for part in parts]
    assert sum(map(len, where)) == len(set(words))
    assert all(map(len, where))
    if len(set(words)) == len(words):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    again = folds(documents, n_folds, seed=seed)
    assert [part.tolist() for part in again] == [part.tolist() for part in parts]


def test_folds_depend_on_the_seed():
    documents = [Document([str(number)]) for number in range(40)]
    assert folds(documents, 4, seed=0)[0].tolist() != folds(documents, 4, seed=1)[0].tolist()


# --- output ---


def test_entities_have_places_and_probabilities():
    document = tokenize("Ada\n Lovelace in Zürich.")
    tags = ["B-PER", "I-PER", "O", "I-LOC", "O"]
    first, second = find_entities(document, tags, probabilities=[0.5, 0.25, 1, 0.75, 1])
    assert first == Entity("PER", 0, 13, "Ada\n Lovelace", 0.25)
    assert second == Entity("LOC", 17, 23, "Zürich", 0.75)
    assert tagged_text(document, [first, second]) == "<PER>Ada\n Lovelace</PER> in <LOC>Zürich</LOC>."
    record = json.loads(json_line(document.replace(name="x"), [second]))
    assert record == {
        "name": "x",
        "text": document.text,
        "entities": [{"type": "LOC", "start": 17, "stop": 23, "text": "Zürich", "probability": 0.75}],
    }
    assert find_entities(document.replace(tags=["O"] * 5)) == []


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), min_size=1, max_size=8), st.data())
def test_predictions_go_into_the_text_and_come_back(tags, data):
    border = data.draw(st.integers(1, len(tags)))
    document = Document(
        [f"w{t}" for t in range(len(tags))], sentence_starts=[0, border] if border < len(tags) else None
    )
    entities = find_entities(document, tags)
    plain, marked = read_tagged(tagged_text(document, entities), ["A", "B"])
    assert joined_text(document).text == plain
    assert marked == [(entity.type, entity.start, entity.stop) for entity in entities]
    assert all(plain[entity.start : entity.stop] == entity.text for entity in entities)
    back = joined_text(document).with_spans(marked).replace(sentence_starts=document.sentence_starts)
    assert back.entities("BIO") == document.replace(tags=tags).entities()


def test_a_line_of_json_is_one_line():
    document = tokenize("a\u2028b\nc")
    assert len(json_line(document, []).splitlines()) == 1


def test_predictions_are_written_as_columns(tmp_path):
    document = tokenize("In Zürich. Da!")
    lines = list(prediction_lines(document, ["O", "B-LOC", "O", "O", "O"], probabilities=[1, 0.5, 1, 1, 1]))
    assert lines[:4] == ["In 0 2 1.0000 O", "Zürich 3 9 0.5000 B-LOC", ". 9 10 1.0000 O", ""]
    write_lines(tmp_path / "x", lines)
    (again,) = read_columns(tmp_path / "x", ["word", "start", "stop", "probability", "tag"])
    assert again.words == document.words
    assert again.columns["start"] == ("0", "3", "9", "11", "13")
    scored = prediction_lines(Document(["a"], {"pos": ["N"]}, ["O"]), ["B-X"], start=True)
    assert list(scored) == ["-DOCSTART- -X- -X- O", "", "a N O B-X", ""]


def test_output_is_checked():
    document = Document(["a", "b"])
    with pytest.raises(ValueError, match="tags must be given"):
        find_entities(document)
    with pytest.raises(ValueError, match="one entry per token: expected 2, found 1"):
        find_entities(document, ["O"])
    with pytest.raises(ValueError, match=r"probabilities must have shape \(2,\), found \(1,\)"):
        find_entities(document, ["O", "O"], probabilities=[1])
    with pytest.raises(ValueError, match="is not a tag of IO"):
        find_entities(document, ["O", "B-X"], scheme="IO")


# --- real data ---


@pytest.fixture(scope="module")
def seminars(real_data):
    return list(read_seminars(real_data / "seminars"))


def test_real_announcements_mark_what_they_should(seminars, real_data):
    assert [document.name for document in seminars] == [f"{number}.txt" for number in range(485)]
    found = Counter(kind for document in seminars for kind, *_ in document.entities("BIO"))
    assert found == {"stime": 982, "etime": 431, "location": 642, "speaker": 756}
    # All but five, which end inside a word or in a blank, are exactly a number of tokens.
    exact = 0
    for document in seminars:
        raw = (real_data / "seminars" / document.name).read_bytes().decode()
        text, marked = read_tagged(raw, SEMINAR_FIELDS, drop=["sentence", "paragraph"])
        assert text == document.text
        assert not re.search("</?(sentence|paragraph|stime|etime|speaker|location)>", text)
        entities = {(entity.type, entity.start, entity.stop) for entity in find_entities(document)}
        exact += len(entities.intersection(marked))
    assert exact == 982 + 431 + 642 + 756 - 5


def test_real_folds_keep_the_duplicate_together(seminars):
    for seed in range(5):
        parts = folds(seminars, 4, seed=seed)
        assert sorted(map(len, parts)) == [121, 121, 121, 122]
        assert any({0, 25} <= set(part.tolist()) for part in parts)
