"""Tokens and their places."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.text import read_columns, tokenize

PATTERNS = ["plain", "news"]
MODES = ["prose", "lines", "paragraphs", "document"]
rough = st.text(st.sampled_from("aB9é\u0301ß字-.:'’\n\r\t ,!?\"$n’ts_<>\u00a0\u2028😀\ufe0f"), max_size=40)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=rough | st.text(max_size=30))
def test_every_character_that_is_no_space_is_in_one_token(pattern, text):
    document = tokenize(text, pattern)
    covered = [0] * len(text)
    for word, start, stop in zip(document.words, document.starts, document.stops, strict=True):
        assert text[start:stop] == word
        for place in range(start, stop):
            covered[place] += 1
    assert covered == [0 if re.fullmatch(r"\s", character) else 1 for character in text]


@given(text=rough)
def test_lines_start_where_a_line_break_lies_between_two_tokens(text):
    document = tokenize(text)
    lines = [line for line in re.split(r"[\n\r]", text) if line.strip()]
    assert len(document.line_starts) == len(lines)
    for t, line in zip(document.line_starts, lines, strict=True):
        assert line.strip().startswith(document.words[t])
    assert tokenize(text, sentences="lines").sentence_starts.tolist() == document.line_starts.tolist()
    for mode in MODES:
        starts = tokenize(text, sentences=mode).sentence_starts.tolist()
        assert starts[:1] == ([0] if document.words else [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4:00-5:30 p.m.", "4:00 - 5:30 p.m ."),
        ("at 3pm in DH2315,", "at 3 pm in DH 2315 ,"),
        ("Shaw's don't", "Shaw 's don't"),
        ("-----\n===", "----- ==="),
        ("29-Nov-94", "29 - Nov - 94"),
        ("Zu\u0308rich हिन्दी 東京", "Zu\u0308rich हिन्दी 東京"),
        ("user+@cs.cmu.edu", "user + @ cs.cmu.edu"),
    ],
)
def test_plain_tokens(text, words):
    assert " ".join(tokenize(text).words) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. isn't in the EU-wide plan.", "The U.S. is n't in the EU-wide plan ."),
        ("Mr. J. Smith's 3.5-percent share (1996-08-22)", "Mr. J. Smith 's 3.5-percent share ( 1996-08-22 )"),
        ('He said: "We\'ll go, won’t we?"', 'He said : " We \'ll go , wo n’t we ? "'),
        ("O'Brien paid C$ 1,000.50 for the 2nd", "O'Brien paid C$ 1,000.50 for the 2nd"),
        ("CAN'T DON’T", "CA N'T DO N’T"),
    ],
)
def test_news_tokens(text, words):
    assert " ".join(tokenize(text, "news").words) == words


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One here. Two there? Three!", 3),
        ("Dr. J. Smith met Prof. Doe. They spoke.", 2),
        ('"Go." He went.', 2),
        ("It cost 3.5 percent. of it", 1),
        ("A title\n\nand text", 2),
        ("A title\r\n \r\nand text", 2),
        ("one line\nand the next", 1),
        ("", 0),
    ],
)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_prose_is_split_into_sentences(pattern, text, sentences):
    assert len(tokenize(text, pattern).sentence_starts) == sentences


def test_sentences_by_layout():
    text = "a b\nc\n\n \nd"
    starts = {mode: tokenize(text, sentences=mode).sentence_starts.tolist() for mode in MODES}
    assert starts == {"prose": [0, 3], "lines": [0, 2, 3], "paragraphs": [0, 3], "document": [0]}


def test_own_patterns_and_bad_input():
    assert tokenize("a-b c", re.compile(r"\S+|(?=x)")).words == ("a-b", "c")
    assert tokenize("id: a b", skip=4).starts.tolist() == [4, 6]
    with pytest.raises(
        ValueError,
        match="pattern must be one of plain, news, characters, whitespace or a regular expression, found 'x'",
    ):
        tokenize("a", "x")
    with pytest.raises(ValueError, match="sentences must be one of"):
        tokenize("a", sentences="x")
    with pytest.raises(TypeError, match="text must be a string"):
        tokenize(b"a")


def test_long_text_takes_linear_time():
    for text in ("a" * 200_000, "-" * 200_000, "a." * 100_000, "n't" * 60_000, "1-" * 100_000, "'" * 100_000):
        for pattern in PATTERNS:
            assert "".join(tokenize(text, pattern).words) == text


def test_news_tokens_are_mostly_those_of_the_real_corpus(real_data):
    same = total = 0
    for document in read_columns(real_data / "conll2003" / "eng.testa"):
        for sentence in document.sentences():
            same += tokenize(" ".join(sentence.words), "news").words == sentence.words
            total += 1
    assert same / total > 0.92


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("characters", ("阿", "达", "在", "罗", "马", "。")),
        ("whitespace", ("阿达", "在罗马。")),
        (r"\w+|[^\w\s]", ("阿达", "在罗马", "。")),
    ],
)
def test_patterns_for_other_languages(pattern, words):
    assert tokenize("阿达 在罗马。", pattern).words == words


def test_what_is_no_pattern_is_refused():
    with pytest.raises(ValueError, match="pattern must be one of plain, news, characters, whitespace or a regular"):
        tokenize("a", "spacy")
    with pytest.raises(ValueError, match=r"pattern '\(\[' is not a regular expression"):
        tokenize("a", "([")
