"""Documents, and files of columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.text import Document, column_lines, joined_text, read_columns, write_columns


def read(tmp_path, content, *args, **options):
    path = tmp_path / "file.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_columns(path, *args, **options))


def test_documents_sentences_and_columns(tmp_path):
    first, second = read(
        tmp_path,
        "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n\n"
        "-DOCSTART- -X- O O\n\nBRUSSELS NNP I-NP I-LOC\n\n",
    )
    assert first.words == ("EU", "rejects", "Peter")
    assert first.pos == ("NNP", "VBZ", "NNP")
    assert first.columns["chunk"] == ("I-NP", "I-VP", "I-NP")
    assert first.tags == ("I-ORG", "O", "I-PER")
    assert first.sentence_starts.tolist() == [0, 2]
    assert first.header == ("-DOCSTART-", "-X-", "O", "O")
    assert (first.name, second.name) == ("file.txt#1", "file.txt#2")
    assert second.words == ("BRUSSELS",)
    assert [sentence.tags for sentence in first.sentences()] == [("I-ORG", "O"), ("I-PER",)]


@pytest.mark.parametrize(
    "content",
    [
        "Zürich B-LOC\nist O\n\nDa O\n",
        "Zürich B-LOC\nist O\n\nDa O",  # no line break at the end
        "\ufeffZürich B-LOC\r\nist O\r\n\r\nDa O\r\n",
        "\n\n Zürich\tB-LOC \nist   O\n \t \n\n\nDa\t\tO\n\n\n",
    ],
)
def test_layout_does_not_matter(tmp_path, content):
    (document,) = read(tmp_path, content)
    assert document.words == ("Zürich", "ist", "Da")
    assert document.tags == ("B-LOC", "O", "O")
    assert document.sentence_starts.tolist() == [0, 2]
    assert document.header is None


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ("a", {}),
        ("a O", {}),
        ("a N O", {"pos": ("N",)}),
        ("a N C O", {"pos": ("N",), "chunk": ("C",)}),
        ("a 2 3 4 O", {"column_2": ("2",), "column_3": ("3",), "column_4": ("4",)}),
    ],
)
def test_any_number_of_columns(tmp_path, row, columns):
    (document,) = read(tmp_path, row)
    assert document.words == ("a",)
    assert document.columns == columns
    assert document.tags == (None if row == "a" else ("O",))


def test_columns_may_be_named_and_separated(tmp_path):
    (document,) = read(tmp_path, "B-LOC\tNew York\tx\n", ["tag", "word", "id"], separator="\t")
    assert (document.words, document.tags, document.columns) == (("New York",), ("B-LOC",), {"id": ("x",)})
    (document,) = read(tmp_path, "Z\xfcrich O\n".encode("latin-1"), encoding="latin-1")
    assert document.words == ("Zürich",)
    (document,) = read(tmp_path, "10\u00a0000 O\n")  # a space, but not one between columns
    assert document.words == ("10\u00a0000",)


def test_empty_files_and_documents(tmp_path):
    assert read(tmp_path, "") == [] == read(tmp_path, "\n \n")
    empty, full = read(tmp_path, "-DOCSTART-\n\n-DOCSTART-\n\na O\n")
    assert (len(empty), len(full)) == (0, 1)
    assert list(empty.sentences()) == []


def test_bad_files_are_named_with_the_line(tmp_path):
    with pytest.raises(ValueError, match=r"file.txt, line 4: expected 2 columns \(word, tag\), found 3"):
        read(tmp_path, "a O\n\nb O\nc N O\n")
    with pytest.raises(ValueError, match=r"file.txt, line 1: expected 3 columns \(word, tag, x\), found 2"):
        read(tmp_path, "a O\n", ["word", "tag", "x"])
    with pytest.raises(ValueError, match=r"file.txt, line 2: not utf-8"):
        read(tmp_path, b"a O\nb\xff O\n")
    with pytest.raises(ValueError, match="one of them 'word'"):
        read_columns("nowhere", ["token", "tag"])
    with pytest.raises(ValueError, match="different names"):
        read_columns("nowhere", ["word", "word"])


def test_documents_come_one_by_one(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("a O\n-DOCSTART-\nb O\n-DOCSTART-\ntoo many columns\n")
    documents = read_columns(path)
    assert next(documents).words == ("a",)
    assert next(documents).words == ("b",)
    with pytest.raises(ValueError, match="line 5"):
        next(documents)


cell = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=4)


@st.composite
def documents(draw):
    found = []
    for number in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        n = sum(lengths)
        columns = [draw(st.lists(cell, min_size=n, max_size=n)) for _ in range(3)]
        starts = np.cumsum([0, *lengths])[:-1]
        header = ("-DOCSTART-",) if number else None
        found.append(Document(columns[0], {"pos": columns[1]}, columns[2], starts, header=header))
    return found


@given(documents())
def test_what_is_written_is_read(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("columns") / "file.txt"
    write_columns(path, iter(made))
    again = list(read_columns(path))
    assert len(again) == len(made)
    for one, other in zip(made, again, strict=True):
        assert (one.words, one.pos, one.tags) == (other.words, other.pos, other.tags)
        assert one.sentence_starts.tolist() == other.sentence_starts.tolist()


def test_documents_without_header_are_set_apart(tmp_path):
    write_columns(tmp_path / "x", [Document(["a"]), Document(["b"], tags=["O"])], ["word"])
    assert (tmp_path / "x").read_text() == "a\n\n-DOCSTART-\n\nb\n\n"
    assert list(column_lines(Document(["b"], {"pos": ["N"]}, ["O"]), start=True)) == [
        "-DOCSTART- -X- O",
        "",
        "b N O",
        "",
    ]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    for bad in ("New York", "", "a\nb", "a\tb"):
        with pytest.raises(ValueError, match="word of token 1 of document 'doc' cannot be written"):
            write_columns(path, [Document(["fine"]), Document(["a", bad], name="doc")])
    with pytest.raises(ValueError, match=r"has no column 'pos'; it has \['word'\]"):
        write_columns(path, [Document(["a"])], ["word", "pos"])
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]
    write_columns(path, [Document(["New York"], tags=["O"])], separator="\t")
    assert path.read_text() == "New York\tO\n\n"
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_columns(tmp_path / "none" / "file.txt", [])


def test_documents_are_checked():
    with pytest.raises(ValueError, match="tags must hold one string per token: expected 2, found"):
        Document(["a", "b"], tags=["O"])
    with pytest.raises(ValueError, match="pos must hold one string per token"):
        Document(["a", "b"], {"pos": []})
    with pytest.raises(ValueError, match="words must hold"):
        Document("ab")
    with pytest.raises(ValueError, match="sentence_starts must start at the first token"):
        Document(["a", "b"], sentence_starts=[1])
    with pytest.raises(ValueError, match="line_starts must rise"):
        Document(["a", "b"], line_starts=[0, 0])
    with pytest.raises(TypeError, match="must be integers"):
        Document(["a", "b"], sentence_starts=[0.0])
    with pytest.raises(ValueError, match="belong together"):
        Document(["a"], text="a")
    with pytest.raises(ValueError, match="follow one another"):
        Document(["a", "b"], text="ab", starts=[0, 0], stops=[1, 2])
    with pytest.raises(ValueError, match="one offset for each of the 2 tokens"):
        Document(["a", "b"], text="ab", starts=[0], stops=[1])
    for action in (lambda d: d.entities(), lambda d: d.in_scheme("BIO", "IO")):
        with pytest.raises(ValueError, match="the document has no tags"):
            action(Document(["a"]))
    with pytest.raises(ValueError, match="read-only"):
        Document(["a"]).sentence_starts[0] = 1


def test_text_is_made_for_documents_without():
    document = joined_text(Document(["Zürich", "ist", "da"], sentence_starts=[0, 2]))
    assert document.text == "Zürich ist\nda"
    assert [document.text[a:b] for a, b in zip(document.starts, document.stops, strict=True)] == list(document.words)
    assert joined_text(document) is document
    assert joined_text(Document([])).text == ""


def test_spans_of_characters_become_tags():
    document = joined_text(Document(["Ada", "Lovelace", "in", "Rome"]))
    assert document.with_spans([("LOC", 16, 20), ("PER", 0, 12)]).tags == ("B-PER", "I-PER", "O", "B-LOC")
    assert document.with_spans([("PER", 2, 5)], "IO").tags == ("I-PER", "I-PER", "O", "O")  # parts of two tokens
    assert document.with_spans([("A", 0, 2), ("B", 2, 8), ("C", 3, 4)]).tags == ("B-A", "B-B", "O", "O")
    with pytest.raises(ValueError, match="lies outside the text"):
        document.with_spans([("PER", 0, 21)])
    with pytest.raises(ValueError, match="no text"):
        Document(["a"]).with_spans([])


@pytest.mark.parametrize(
    ("part", "n_documents", "n_sentences", "n_tokens"),
    [("train", 946, 14_041, 203_621), ("testa", 216, 3_250, 51_362), ("testb", 231, 3_453, 46_435)],
)
def test_real_files_come_back_byte_for_byte(real_data, tmp_path, part, n_documents, n_sentences, n_tokens):
    path = real_data / "conll2003" / f"eng.{part}"
    found = list(read_columns(path))
    assert len(found) == n_documents
    assert sum(len(document.sentence_starts) for document in found) == n_sentences
    assert sum(map(len, found)) == n_tokens
    write_columns(tmp_path / part, found)
    assert (tmp_path / part).read_bytes() == path.read_bytes()


def test_comments_are_not_tokens_but_a_hash_sign_is(tmp_path):
    content = "# a comment\n# text = Rome fell\nRome B-LOC\nfell O\n# O\n\n# sent_id = 2\n#hash\n# O\n1 O\n"
    (document,) = read(tmp_path, content)
    assert document.words == ("Rome", "fell", "#", "#", "1")
    assert document.sentence_starts.tolist() == [0, 3]
    first, second = read(tmp_path, "# newdoc id = a\nRome B-LOC\n\n# newdoc\nRome B-LOC\n")
    assert (first.words, second.words) == (("Rome",), ("Rome",))


@pytest.mark.parametrize(("documents", "n"), [("marked", [4]), ("blank-lines", [3, 1]), ("sentences", [2, 1, 1])])
def test_documents_by_a_rule(tmp_path, documents, n):
    assert [len(d) for d in read(tmp_path, "a O\nb O\n\nc O\n\n\nd O\n", documents=documents)] == n


def test_an_unknown_rule_for_documents_is_refused(tmp_path):
    with pytest.raises(ValueError, match="documents must be one of marked, blank-lines, sentences, found 'pages'"):
        read(tmp_path, "a O\n", documents="pages")


@pytest.mark.parametrize("tag", ["O", "B-ORG", "I-ORG", "S-ORG"])
def test_a_file_may_begin_with_a_hash_tag(tag, tmp_path):
    path = tmp_path / "tweets.txt"
    path.write_text(f"# from a crawl\n#AFC {tag}\nwon O\n")
    (document,) = read_columns(path)
    assert document.words == ("#AFC", "won")
    assert document.tags == (tag, "O")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037"])
def test_encodings_that_hide_the_ends_of_lines_are_refused(encoding, tmp_path):
    with pytest.raises(
        ValueError, match=f"is read line by line, which {encoding} does not allow; convert the file to utf-8"
    ):
        read(tmp_path, "Rome B-LOC\nfell O\n".encode(encoding), encoding=encoding)


def test_lines_that_end_with_carriage_returns_alone_are_refused(tmp_path):
    with pytest.raises(ValueError, match="line 1: a carriage return inside; end lines with a line feed"):
        read(tmp_path, b"-DOCSTART- O\r\rRome B-LOC\rfell O\r")
