"""Label schemes, spans and scores, with seqeval and scikit-learn as judges."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support as entity_judge
from seqeval.scheme import IOB1, IOB2, IOBES, Entities
from sklearn.metrics import precision_recall_fscore_support as token_judge

from bactrian.text import convert, entity_scores, guess_scheme, read_columns, spans, tags_of, token_scores

SCHEMES = ["IOB1", "BIO", "BIOES", "IO"]
STRICT = {"IOB1": IOB1, "BIO": IOB2, "BIOES": IOBES}

any_tag = st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))])
any_tags = st.lists(any_tag, max_size=12)
bio_tags = st.lists(st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-X-Y", "I-X-Y"]), max_size=12)


def judged_spans(tags):
    return [(kind, start, last + 1) for kind, start, last in get_entities(tags)]


@st.composite
def entities(draw):
    """Entities and the number of tokens, some of them touching."""
    found, end = [], draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 5))):
        stop = end + draw(st.integers(1, 3))
        found.append((draw(st.sampled_from(["PER", "LOC"])), end, stop))
        end = stop + draw(st.integers(0, 1))
    return found, end + draw(st.integers(0, 2))


@given(any_tags)
def test_spans_of_any_sequence_are_conllevals(tags):
    assert spans(tags) == judged_spans(tags)


@pytest.mark.parametrize("scheme", STRICT)
@given(case=entities())
def test_written_tags_are_well_formed_for_a_strict_judge(scheme, case):
    found, length = case
    tags = tags_of(found, length, scheme)
    judged = Entities([tags], STRICT[scheme]).entities[0]
    assert [(entity.tag, entity.start, entity.end) for entity in judged] == found
    assert spans(tags, scheme) == found


@pytest.mark.parametrize("source", ["IOB1", "BIO", "BIOES"])
@pytest.mark.parametrize("target", ["IOB1", "BIO", "BIOES"])
@given(case=entities())
def test_there_and_back_changes_nothing(source, target, case):
    tags = tags_of(*case, source)
    there = convert(tags, source, target)
    assert spans(there, target) == case[0]
    assert convert(there, target, source) == tags


@given(entities())
def test_io_loses_only_the_border_between_touching_entities_of_one_type(case):
    found, length = case
    tags = convert(tags_of(found, length), "BIO", "IO")
    assert tags == [tag.replace("B-", "I-") for tag in tags_of(found, length)]
    touching = [a for a, b in itertools.pairwise(found) if a[0] == b[0] and a[2] == b[1]]
    if touching:
        with pytest.raises(ValueError, match=f"IO cannot separate .* touch at position {touching[0][2]}"):
            convert(tags_of(found, length), "BIO", "IO", strict=True)
    else:
        assert convert(tags_of(found, length), "BIO", "IO", strict=True) == tags
        assert spans(tags, "IO") == found


@pytest.mark.parametrize("target", SCHEMES)
@given(sentences=st.lists(st.lists(any_tag, min_size=1, max_size=5), max_size=4))
def test_a_document_is_converted_sentence_by_sentence(target, sentences):
    starts = np.cumsum([0, *map(len, sentences)])[:-1]
    whole = convert([tag for tags in sentences for tag in tags], None, target, sentence_starts=starts)
    assert whole == [tag for tags in sentences for tag in convert(tags, None, target)]


def test_touching_entities_across_sentences_start_with_i_in_iob1():
    assert convert(["B-PER", "B-PER"], "BIO", "IOB1") == ["I-PER", "B-PER"]
    assert convert(["B-PER", "B-PER"], "BIO", "IOB1", sentence_starts=[0, 1]) == ["I-PER", "I-PER"]
    assert convert(["I-PER", "I-PER"], "IO", "IO", sentence_starts=[0, 1], strict=True) == ["I-PER", "I-PER"]


@pytest.mark.parametrize(
    ("tags", "scheme", "message"),
    [
        (["O", "S-PER"], "BIO", r"tags\[1\] = 'S-PER' is not a tag of BIO: expected O or B-TYPE, I-TYPE"),
        (["B-PER"], "IO", r"tags\[0\] = 'B-PER' is not a tag of IO"),
        (["PER"], None, r"tags\[0\] = 'PER' is not an entity tag"),
        (["B-"], "BIO", "'B-' is not"),
        (["I-PER", None], "BIO", r"tags\[1\] = None"),
        (["BI-PER"], "BIO", "'BI-PER' is not"),
        (["O"], "BOI", "scheme must be one of IOB1, BIO, BIOES, BILOU, BMES, IO, found 'BOI'"),
    ],
)
def test_foreign_tags_are_refused(tags, scheme, message):
    with pytest.raises(ValueError, match=message):
        spans(tags, scheme)


def test_other_bad_input_is_refused():
    with pytest.raises(TypeError, match="tags must be a sequence"):
        spans("O")
    with pytest.raises(ValueError, match="target must be one of"):
        convert([], "BIO", "bio")
    with pytest.raises(ValueError, match=r"sentence_starts\[1\] = 2 is outside 0 to 1"):
        spans(["O", "O"], sentence_starts=[0, 2])
    with pytest.raises(ValueError, match=r"entities\[1\] = \('LOC', 1, 3\) overlaps"):
        tags_of([("PER", 0, 2), ("LOC", 1, 3)], 4)
    with pytest.raises(ValueError, match="is not an entity in 2 tokens"):
        tags_of([("PER", 1, 3)], 2)
    assert spans([]) == [] == convert([], "BIO", "IO")


def test_schemes_are_guessed_from_labels():
    assert guess_scheme(["O", "I-A"]) == "IO"
    assert guess_scheme(["O", "B-A"]) == "BIO"
    assert guess_scheme(["S-A", "I-A"]) == "BIOES"
    for labels in ([], ["O"], [0, 1], ["B"], ["X-A", "O"]):
        assert guess_scheme(labels) is None


# --- scores ---


@st.composite
def pairs(draw, tags=any_tag):
    lengths = draw(st.lists(st.integers(0, 10), min_size=1, max_size=4))
    return [[draw(st.lists(tags, min_size=n, max_size=n)) for n in lengths] for _ in range(2)]


@given(pairs())
def test_entity_scores_are_seqevals(case):
    true, predicted = case
    ours = entity_scores(true, predicted)
    kinds = sorted({kind for tags in true + predicted for kind, *_ in judged_spans(tags)})
    assert list(ours.types) == kinds
    if not kinds:
        assert (ours.micro_f1, ours.macro_f1) == (0.0, 0.0)
        return
    micro = entity_judge(true, predicted, average="micro", zero_division=0)
    macro = entity_judge(true, predicted, average="macro", zero_division=0)
    each = entity_judge(true, predicted, average=None, zero_division=0)
    np.testing.assert_allclose((ours.micro.precision, ours.micro.recall, ours.micro_f1, ours.micro.support), micro)
    np.testing.assert_allclose((ours.macro_precision, ours.macro_recall, ours.macro_f1), macro[:3])
    figures = [(s.precision, s.recall, s.f1, s.support) for s in ours.types.values()]
    np.testing.assert_allclose(np.array(figures).T, each)


@pytest.mark.parametrize("prefixes", [False, True])
@given(case=pairs())
def test_token_scores_are_scikit_learns(prefixes, case):
    true, predicted = ([tag if prefixes else tag[2:] or "O" for tags in side for tag in tags] for side in case)
    ours = token_scores(*case, prefixes=prefixes)
    labels = sorted({*true, *predicted} - {"O"})
    assert list(ours.types) == labels
    if labels:
        micro = token_judge(true, predicted, labels=labels, average="micro", zero_division=0)
        macro = token_judge(true, predicted, labels=labels, average="macro", zero_division=0)
        np.testing.assert_allclose((ours.micro.precision, ours.micro.recall, ours.micro_f1), micro[:3])
        np.testing.assert_allclose((ours.macro_precision, ours.macro_recall, ours.macro_f1), macro[:3])


def test_entities_do_not_cross_sentences_in_scores():
    true, predicted = [["B-PER", "B-PER"]], [["B-PER", "I-PER"]]
    assert entity_scores(true, predicted).micro_f1 == 0.0
    assert entity_scores(true, predicted, sentence_starts=[[0, 1]]).micro_f1 == 1.0


def test_scores_go_to_json():
    scores = entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]], scheme="BIO")
    assert scores.as_dict() == {
        "micro": {"precision": 1.0, "recall": 0.5, "f1": 2 / 3, "support": 2},
        "macro": {"precision": 0.5, "recall": 0.5, "f1": 0.5},
        "types": {
            "LOC": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
            "PER": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 1},
        },
    }


@pytest.mark.parametrize("scores", [entity_scores, token_scores])
def test_scores_refuse_what_does_not_match(scores):
    with pytest.raises(ValueError, match="predicted must have one sequence per sequence of true: expected 1, found 0"):
        scores([["O"]], [])
    with pytest.raises(ValueError, match=r"predicted\[1\] must have one tag per tag of true\[1\]: expected 1, found 2"):
        scores([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(TypeError, match=r"true\[0\] must be a sequence of tags, found 'O'"):
        scores(["O"], ["O"])
    with pytest.raises(TypeError, match="true must be a list of sequences"):
        scores("O", ["O"])
    with pytest.raises(ValueError, match=r"predicted\[0\]\[1\] = 'noun'"):
        scores([["O", "O"]], [["O", "noun"]])


def test_scores_refuse_wrong_schemes_and_sentences():
    with pytest.raises(ValueError, match=r"predicted\[0\]\[0\] = 'S-PER' is not a tag of BIO"):
        entity_scores([["B-PER"]], [["S-PER"]], scheme="BIO")
    with pytest.raises(ValueError, match="sentence_starts must have one entry per sequence: expected 1, found 2"):
        entity_scores([["O"]], [["O"]], sentence_starts=[[0], [0]])


# --- real data ---


@pytest.mark.parametrize(
    ("part", "n_entities"),
    [("train", {"LOC": 7140, "PER": 6600, "ORG": 6321, "MISC": 3438}), ("testa", 5942), ("testb", 5648)],
)
def test_real_tags_survive_conversion(real_data, part, n_entities):
    documents = list(read_columns(real_data / "conll2003" / f"eng.{part}"))
    found = [kind for document in documents for kind, *_ in document.entities("IOB1")]
    if isinstance(n_entities, dict):
        assert {kind: found.count(kind) for kind in sorted(set(found))} == dict(sorted(n_entities.items()))
    else:
        assert len(found) == n_entities
    # Two entities of train start with B although they touch none; conversion mends them.
    mended = [document.in_scheme("IOB1", "IOB1") for document in documents]
    assert sum(
        a != b for old, new in zip(documents, mended, strict=True) for a, b in zip(old.tags, new.tags, strict=True)
    ) == (2 if part == "train" else 0)
    for scheme in ("BIO", "BIOES"):
        for document in mended:
            there = document.in_scheme("IOB1", scheme)
            assert there.entities(scheme) == document.entities("IOB1")
            assert there.in_scheme(scheme, "IOB1").tags == document.tags


def test_schemes_of_other_letters_are_bioes():
    tags = ["B-PER", "I-PER", "E-PER", "O", "S-LOC", "S-LOC"]
    for scheme, letters in (("BILOU", {"E": "L", "S": "U"}), ("BMES", {"I": "M"})):
        other = [letters.get(tag[0], tag[0]) + tag[1:] for tag in tags]
        assert convert(tags, "BIOES", scheme) == other
        assert convert(other, scheme, "BIOES") == tags
        assert guess_scheme(other) == scheme
    with pytest.raises(ValueError, match="is not a tag of BILOU"):
        spans(["E-PER"], "BILOU")
