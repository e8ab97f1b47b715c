"""Made-up reports, and a reader of pages, for the tests of reports."""

from html.parser import HTMLParser

import numpy as np

from bactrian.runs.comparison import (
    Comparison,
    Confusion,
    Curve,
    Entry,
    Gallery,
    LabelTable,
    Metric,
    NamedWeight,
    Picture,
    Sheet,
    TaggedText,
    Tagging,
    Training,
    reliability,
)
from bactrian.text import Score

VOID = {"meta", "link", "img", "input", "br", "hr"}
METRICS = (Metric("accuracy", "accuracy", ".1%", True, "share right"), Metric("loss", "log loss", ".2f", False))
NASTY = "<script>alert('x')</script> & \"quotes\""
LABELS = ("O", "B-speaker", "I-speaker", "B-stime")


class Page(HTMLParser):
    """Checks that tags nest, and remembers what there is."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.references, self.words, self.classes = [], [], [], [], [], []
        self.names = set()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert len(values) == len(attributes), f"an attribute of {tag} twice"
        self.tags.append(tag)
        self.names |= set(values)
        self.ids += [values["id"]] if "id" in values else []
        self.classes += (values.get("class") or "").split()
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
    return Curve(
        np.arange(n), np.sort(rng.random(n)), rng.normal(size=n), rng.random(n), rng.random(n), np.arange(n) // 2
    )


def tagged_text(title="Text", wrong=(), nasty=False):
    """Three lines; tokens at the positions ``wrong`` lose their label with the learner ``good``."""
    tokens = ["Talk", ":", "Ada", "Lovelace", "at", "4:30", ".", "Lovelace", "speaks", "."]
    truth = ["O", "O", "B-speaker", "I-speaker", "O", "B-stime", "O", "B-speaker", "O", "O"]
    gaps = ["", " ", " ", "\n", " ", "", "\n\n  ", " ", "", ""]
    if nasty:
        tokens[2], gaps[2] = NASTY, " "
    found = ["O" if t in wrong else label for t, label in enumerate(truth)]
    marginals = np.full((len(tokens), len(LABELS)), 0.02)
    for t, label in enumerate(found):
        marginals[t, LABELS.index(label)] = 0.94
    predictions = {"good": Tagging(tuple(found), marginals), "hasty": Tagging(("O",) * len(tokens))}
    return TaggedText(title, tuple(tokens), tuple(truth), predictions, LABELS, tuple(gaps), ((3, 7), (2, 3)))


def made_up(seed=0):
    """A comparison with something of everything, much of it nasty."""
    rng = np.random.default_rng(seed)
    calibration = reliability(rng.dirichlet([1.0, 1.0, 1.0], size=50), rng.integers(3, size=50))
    training = Training("converged", True, 1.5, 3, 1e-5, 0.0, curve(7, rng), curve(3, rng))
    stopped = Training("stopped at the time limit", False, 0.5, 1, 0.4, 2.0, curve(0, rng), curve(1, rng))
    table = LabelTable("along rows", rng.normal(size=(3, 3)), ("a", NASTY, "c"), ("a", "b", NASTY))
    pictures = tuple(Picture(rng.integers(256, size=(4, 5, 3), dtype=np.uint8), f"picture {k}") for k in range(2))
    confusion = Confusion(("a", NASTY), np.array([[8, 2], [0, 0]]))
    weights = (NamedWeight(f"word={NASTY}", NASTY, 2.5), NamedWeight("bias", "a", -1.25))
    types = {name: Score(9, 8, 7).as_dict() for name in ("all together", NASTY)}
    sheets = (Sheet("sheet", "legend", (pictures,)), Sheet(NASTY, NASTY, (pictures[::-1],)))
    return Comparison(
        title=f"Title {NASTY}",
        summary=NASTY,
        metrics=METRICS,
        entries=(
            Entry("baseline", "", {"accuracy": 0.5}),
            Entry(
                "good",
                NASTY,
                {"accuracy": 0.9, "loss": 0.2},
                training,
                calibration,
                (table,),
                confusion,
                weights,
                types,
            ),
            Entry("hasty", "stops", {"accuracy": 0.8, "loss": float("nan")}, stopped, calibration),
        ),
        facts={"noise": NASTY},
        galleries=(Gallery("Pictures", ("one", "good"), ("row",), sheets, {NASTY: (1, 2, 3)}),),
        texts=(tagged_text("First", wrong=(3, 5)), tagged_text(f"Second {NASTY}", nasty=True)),
    )
