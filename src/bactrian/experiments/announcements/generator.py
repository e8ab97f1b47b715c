"""Made-up announcements of seminars, with the times, places and speakers in them known.

They look like the seminar announcements that Freitag (1998) collected, but every word is generated: names, buildings
and subjects from :mod:`~bactrian.experiments.announcements.words`, layouts from
:mod:`~bactrian.experiments.announcements.layouts`. The split to test on shares no name, building or layout with the one
to learn from, so that remembering words is of no use; and each announcement also names other people, places and times,
so that shapes of words alone are not enough. A speaker is named more than once, not always where the context gives it
away: what skip edges are for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from bactrian.errors import check_choice, check_number
from bactrian.experiments.announcements import layouts, words
from bactrian.text.tagged import TextSpan, write_tagged

FIELDS = ("stime", "etime", "location", "speaker")
SPLITS = ("train", "test")

#: Slots that are to be found, and the field each belongs to.
MARKED = {
    "speaker": "speaker",
    "SPEAKER": "speaker",
    "surname": "speaker",
    "bare": "speaker",
    "location": "location",
    "place": "location",
    "stime": "stime",
    "etime": "etime",
}
_SLOT = re.compile(r"\[(\w+)\]")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_MONTHS = ("January", "February", "March", "April", "May", "September", "October", "November", "December")


@dataclass(frozen=True)
class Announcement:
    """An e-mail, and the (field, start, stop) of what it announces, in characters and in order."""

    text: str
    spans: tuple[TextSpan, ...]

    @property
    def tagged(self) -> str:
        """The text with inline tags: ``<speaker>Ada Lovelace</speaker>``."""
        return write_tagged(self.text, self.spans)


def make_announcements(n: int, *, seed: int = 0, split: str = "train") -> list[Announcement]:
    """Make ``n`` announcements; the same arguments give the same ones.

    Parameters
    ----------
    n
        How many; the first ones do not depend on it.
    seed
        Seed of all choices.
    split
        ``"train"`` or ``"test"``, which share no name, building, subject or layout.

    Examples
    --------
    >>> first = make_announcements(1, seed=3)[0]
    >>> sorted({field for field, start, stop in first.spans})
    ['etime', 'location', 'speaker', 'stime']
    """
    check_number("n", n, least=0, whole=True)
    check_number("seed", seed, least=0, whole=True)
    check_choice("split", split, SPLITS)
    # One generator for each, so that a longer list begins with the shorter one.
    return [_make(np.random.default_rng((int(seed), SPLITS.index(split), number)), split) for number in range(int(n))]


def _make(rng: np.random.Generator, split: str) -> Announcement:
    if split == "train":
        vocabulary, layout = words.TRAINING, layouts.TRAINING
    else:
        vocabulary, layout = words.TESTING, layouts.TESTING
    n_sentences = int(rng.integers(2, 5))
    prose = [layout.prose[k] for k in rng.permutation(len(layout.prose))[:n_sentences]]
    template = "".join(
        [
            _one(rng, layout.headers),
            _one(rng, layout.bodies),
            _broken_into_lines(prose) + "\n\n",
            _one(rng, layout.endings),
        ]
    )
    has_end = rng.random() < 0.6
    template = template.replace("[range]", _one(rng, layout.ranges) if has_end else "[stime]")
    return _filled(template, _Slots(rng, vocabulary, layout))


def _one(rng: np.random.Generator, choices: tuple[str, ...]) -> str:
    return choices[int(rng.integers(len(choices)))]


def _broken_into_lines(sentences: list[str], width: int = 72) -> str:
    """Sentences set in lines; slots count as they stand, so that lines vary as those of people do."""
    lines = [""]
    for word in " ".join(sentences).split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _filled(template: str, slots: _Slots) -> Announcement:
    pieces: list[str] = []
    spans: list[TextSpan] = []
    length = end = 0
    for slot in _SLOT.finditer(template):
        before, value = template[end : slot.start()], slots[slot[1]]
        length += len(before)
        if slot[1] in MARKED:
            spans.append((MARKED[slot[1]], length, length + len(value)))
        pieces += [before, value]
        length, end = length + len(value), slot.end()
    return Announcement("".join([*pieces, template[end:]]), tuple(spans))


class _Slots:
    """What fills the slots of one announcement: the same wherever it stands twice, save ``things``."""

    def __init__(self, rng: np.random.Generator, vocabulary: words.Vocabulary, layout: layouts.Layouts) -> None:
        self._rng, self._vocabulary = rng, vocabulary
        self._values = {**self._people(), **self._when(layout), **self._where(layout), **self._what()}

    def __getitem__(self, slot: str) -> str:
        return _one(self._rng, self._vocabulary.things) if slot == "things" else self._values[slot]

    def _people(self) -> dict[str, str]:
        rng, vocabulary = self._rng, self._vocabulary
        first = [vocabulary.first_names[k] for k in rng.permutation(len(vocabulary.first_names))[:5]]
        last = [vocabulary.surnames[k] for k in rng.permutation(len(vocabulary.surnames))[:5]]
        middle = f" {chr(65 + int(rng.integers(26)))}." if rng.random() < 0.25 else ""
        title = _one(rng, ("Dr.", "Prof.", "Professor"))
        name = f"{first[0]}{middle} {last[0]}"
        return {
            "speaker": f"{title} {name}" if rng.random() < 0.3 else name,
            "SPEAKER": name.upper() if rng.random() < 0.5 else name,
            "surname": f"{title} {last[0]}",
            "bare": last[0] if rng.random() < 0.7 else first[0],
            **{slot: f"{first[k]} {last[k]}" for k, slot in enumerate(("host", "poster", "other", "other2"), start=1)},
        }

    def _when(self, layout: layouts.Layouts) -> dict[str, str]:
        rng = self._rng
        form = _one(rng, layout.times)
        hour, minute, day = int(rng.integers(1, 6)), _one(rng, ("00", "30", "15", "00")), int(rng.integers(1, 29))
        month, weekday, year = _one(rng, _MONTHS), int(rng.integers(5)), int(rng.integers(90, 100))

        def at(hours: int, minutes: str) -> str:
            return form.format(hour=hours, minute=minutes)

        later = f"{hour + 1}:{minute}" if rng.random() < 0.2 else at(hour + 1, minute)
        other = at(hour, "20") if rng.random() < 0.3 else at(int(rng.integers(6, 9)), _one(rng, ("00", "30", "45")))
        return {
            "stime": at(hour, minute),
            "etime": later,
            "othertime": other,
            "clock": f"{int(rng.integers(8, 20)):02d}:{int(rng.integers(60)):02d}",
            "day": _DAYS[weekday],
            "nextday": _DAYS[(weekday + 1) % 5],
            "date": f"{month} {day}" if rng.random() < 0.5 else f"{month} {day}, 19{year}",
            "shortdate": f"{day}-{month[:3]}-{year}",
            "postdate": f"{max(day - int(rng.integers(1, 6)), 1)}-{month[:3]}-{year}",
        }

    def _where(self, layout: layouts.Layouts) -> dict[str, str]:
        rng, vocabulary = self._rng, self._vocabulary
        here, there = rng.permutation(len(vocabulary.buildings))[:2]

        def write(form: str, building: str, room: str) -> str:
            return form.format(building=building, short=building.split()[0], room=room)

        room = f"{int(rng.integers(1, 9))}{int(rng.integers(100)):02d}" + ("A" if rng.random() < 0.1 else "")
        other_room = f"{int(rng.integers(1, 9))}{int(rng.integers(100)):02d}"
        building = vocabulary.buildings[here]
        return {
            "location": write(_one(rng, layout.places), building, room),
            "place": write(_one(rng, layout.places), building, room),
            "otherplace": write(_one(rng, layout.places), vocabulary.buildings[there], other_room),
        }

    def _what(self) -> dict[str, str]:
        rng, vocabulary = self._rng, self._vocabulary
        first, second = rng.permutation(len(vocabulary.subjects))[:2]
        subject, group = vocabulary.subjects[first], _one(rng, vocabulary.groups)
        schools = [vocabulary.schools[k] for k in rng.permutation(len(vocabulary.schools))[:2]]
        capitals = " ".join(
            word if word in ("of", "the", "for", "on") else word.capitalize() for word in subject.split()
        )
        return {
            "subject": subject,
            "Subject": capitals[0].upper() + capitals[1:],
            "subject2": vocabulary.subjects[second],
            "group": group,
            "GROUP": group.upper(),
            "school": schools[0],
            "school2": schools[1],
            "machine": _one(rng, vocabulary.hosts),
            "path": f"{_one(rng, vocabulary.hosts).split('.')[-2]}.org.{group.split()[0].lower()}",
            "phone": f"{int(rng.integers(200, 1000))}-{int(rng.integers(10000)):04d}",
        }
