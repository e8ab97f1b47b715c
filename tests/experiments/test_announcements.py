"""Made-up announcements: what they mark, what the splits share, and that remembering is of no use."""

import re
from dataclasses import fields

import numpy as np
import pytest

from bactrian.experiments.announcements import layouts, words
from bactrian.experiments.announcements.generator import FIELDS, MARKED, make_announcements
from bactrian.experiments.announcements.task import METRICS, AnnouncementsSettings, run_announcements
from bactrian.text.tagged import parse_seminar, read_tagged

N = 300


@pytest.fixture(scope="module")
def splits():
    return {split: make_announcements(N, seed=1, split=split) for split in ("train", "test")}


def values(announcements, field):
    return [a.text[start:stop] for a in announcements for kind, start, stop in a.spans if kind == field]


def test_same_seed_gives_the_same_announcements_and_a_longer_list_begins_with_the_shorter(splits):
    assert make_announcements(N, seed=1) == splits["train"]
    assert make_announcements(5, seed=1, split="test") == splits["test"][:5]
    assert make_announcements(5, seed=2) != splits["train"][:5]
    assert make_announcements(0) == []


def test_no_two_are_alike(splits):
    assert len({a.text for split in splits.values() for a in split}) == 2 * N


@pytest.mark.parametrize("split", ["train", "test"])
def test_tags_can_be_read_back(splits, split):
    for a in splits[split]:
        text, spans = read_tagged(a.tagged, FIELDS)
        assert (text, tuple(spans)) == (a.text, a.spans)
        assert not re.search(r"[\[\]{}]", a.text), "a slot was left open"


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_announcement_says_who_and_when_and_most_say_where(splits, split):
    for a in splits[split]:
        assert {"stime", "speaker"} <= {field for field, _, _ in a.spans}
    share = {field: sum(any(kind == field for kind, _, _ in a.spans) for a in splits[split]) / N for field in FIELDS}
    assert share["location"] > 0.95
    assert 0.2 < share["etime"] < 0.8


@pytest.mark.parametrize("split", ["train", "test"])
def test_marked_texts_have_the_shape_of_their_field(splits, split):
    time = re.compile(r"\d{1,2}:\d\d( ?[ap]\.?m\.?)?", re.IGNORECASE)
    for field in ("stime", "etime"):
        assert all(time.fullmatch(value) for value in values(splits[split], field))
    vocabulary = {"train": words.TRAINING, "test": words.TESTING}[split]
    first_words = {building.split()[0] for building in vocabulary.buildings}
    assert all(any(word in value for word in first_words) for value in values(splits[split], "location"))
    names = {name.lower() for name in vocabulary.first_names + vocabulary.surnames}
    assert all(names & set(value.lower().split()) for value in values(splits[split], "speaker"))


@pytest.mark.parametrize("kind", [field.name for field in fields(words.Vocabulary)])
def test_vocabularies_are_disjoint(kind):
    train, test = getattr(words.TRAINING, kind), getattr(words.TESTING, kind)
    assert len(set(train)) == len(train)
    assert len(set(test)) == len(test)
    assert not {word.lower() for word in train} & {word.lower() for word in test}


def test_no_name_of_one_split_is_any_name_of_the_other():
    def names(vocabulary):
        buildings = {building.split()[0] for building in vocabulary.buildings}
        return {*vocabulary.first_names, *vocabulary.surnames, *buildings}

    assert not names(words.TRAINING) & names(words.TESTING)


@pytest.mark.parametrize("kind", ["headers", "bodies", "prose", "endings"])
def test_layouts_are_disjoint(kind):
    train, test = ({part for part in getattr(split, kind) if part} for split in (layouts.TRAINING, layouts.TESTING))
    assert len(train) >= 4
    assert len(test) >= 4
    assert not train & test


def test_every_marked_slot_is_used():
    used = set()
    for split in (layouts.TRAINING, layouts.TESTING):
        for kind in ("headers", "bodies", "prose", "endings", "ranges"):
            used |= set(re.findall(r"\[(\w+)\]", "".join(getattr(split, kind))))
    assert set(MARKED) <= used


def test_remembering_finds_no_speaker_and_no_place(splits):
    for field in ("speaker", "location"):
        assert not set(values(splits["train"], field)) & set(values(splits["test"], field))


def test_words_alone_do_not_give_the_speaker_away(splits):
    """Names that are not the speaker's stand in the same announcements, and look the same."""
    for split, vocabulary in (("train", words.TRAINING), ("test", words.TESTING)):
        inside = outside = 0
        for a in splits[split]:
            marked = {k for kind, start, stop in a.spans if kind == "speaker" for k in range(start, stop)}
            for match in re.finditer(r"\w+", a.text):
                if match[0] in vocabulary.surnames:
                    inside, outside = inside + (match.start() in marked), outside + (match.start() not in marked)
        assert outside > 0.5 * inside


@pytest.mark.parametrize(
    ("arguments", "error", "found"),
    [
        ({"n": -1}, ValueError, "n must be at least 0"),
        ({"n": 1.5}, TypeError, "n must be an integer"),
        ({"n": 1, "split": "dev"}, ValueError, "'dev'"),
        ({"n": 1, "seed": -3}, ValueError, "seed"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, found):
    with pytest.raises(error, match=found):
        make_announcements(**arguments)


# ------------------------------------------------------------------------------------------ the task


@pytest.fixture(scope="module")
def comparison():
    return run_announcements(AnnouncementsSettings(learners=("camel0",), n_train=40, n_test=20, n_shown=3))


def test_the_task_compares_a_chain_with_skip_chains(comparison):
    assert [entry.name for entry in comparison.entries] == ["chain", "camel0"]
    assert comparison.converged
    for entry in comparison.entries:
        assert set(entry.metrics) == {metric.key for metric in METRICS}
        assert entry.training.iterations.seconds.size > 1
        assert len(entry.weights) == 15
    assert [len(entry.tables) for entry in comparison.entries] == [1, 2]


def test_what_is_learned_carries_over_to_other_names_and_layouts(comparison):
    """Remembering scores nothing on speakers and places; a model of context does far better."""
    for entry in comparison.entries:
        assert entry.metrics["f1"] > 0.5
        assert entry.metrics["speaker"] > 0.4


def test_texts_of_the_report_are_the_test_announcements(comparison):
    made = make_announcements(3, seed=0, split="test")
    assert len(comparison.texts) == 3
    for text, announcement in zip(comparison.texts, made, strict=True):
        shown = "".join(token + gap for token, gap in zip(text.tokens, text.gaps, strict=True))
        assert shown == announcement.text
        assert set(text.predictions) == {"chain", "camel0"}
        assert sum(label.startswith("B-") for label in text.truth) == len(announcement.spans)
        for a, b in text.skips:
            assert text.tokens[a] == text.tokens[b]
            assert text.tokens[a][0].isupper()
        np.testing.assert_allclose(text.predictions["chain"].marginals.sum(axis=1), 1.0, atol=1e-6)


def test_confusions_count_every_token(comparison):
    n_tokens = {int(entry.confusion.counts.sum()) for entry in comparison.entries}
    documents = [parse_seminar(a.tagged) for a in make_announcements(20, seed=0, split="test")]
    assert n_tokens == {sum(len(document) for document in documents)}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"learners": ("dromedary",)}, "unknown learner 'dromedary'"),
        ({"learners": ("cccp", "cccp")}, "must be different"),
        ({"n_train": 0}, "n_train"),
        ({"n_test": 0}, "n_test"),
        ({"seed": -1}, "seed"),
        ({"n_shown": -1}, "n_shown must be at least 0, found -1"),
    ],
)
def test_bad_settings_are_refused(change, found):
    with pytest.raises(ValueError, match=found):
        AnnouncementsSettings(**change)
