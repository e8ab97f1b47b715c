"""Walks of new users, each in a fresh clone with nothing compiled, at a terminal: a tagger, a picture, a table, a
network, and a layer of PyTorch.

Every line that a person sees is looked at: none is part of a traceback, figures are those that counting by hand gives,
and wherever a program works for more than five seconds in silence, a line before has said why.
"""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bactrian.experiments.announcements.generator import make_announcements
from bactrian.text import SEMINAR_FIELDS, read_columns, read_tagged, tokenize, write_columns

ROOT = Path(__file__).resolve().parents[2]
#: What explains a pause; a minute of it is announced.
EXPLAINED = re.compile(r"compiling for this machine, which takes up to a minute")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")]


@dataclass
class Seen:
    """What a person saw: lines, and pauses with the lines before each."""

    lines: list[str]
    pauses: list[tuple[float, str]]
    code: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def said(self) -> list[str]:
        """The lines, without that which explains a pause: a busy machine has more of them."""
        return [line for line in self.lines if not EXPLAINED.search(line)]


class Walk:
    """A terminal in a folder of its own, with the library of a fresh clone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.compiled, self.counted = folder / "home", folder / "compiled", 0
        self.folder.mkdir()
        clone = folder / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "CI"))},
            "PYTHONPATH": str(clone / "src"),
            "NUMBA_CACHE_DIR": str(self.compiled),
            "TERM": "xterm",
            "COLUMNS": "100",
        }

    def bactrian(self, *arguments: object) -> Seen:
        return self.python("-c", "from bactrian.cli import main; main()", *map(str, arguments))

    def python(self, *arguments: str) -> Seen:
        outside, inside = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=inside,
            stderr=inside,
            stdin=inside,
        )
        os.close(inside)
        content, pauses, last = "", [], work_of(process.pid)
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            ready = select.select([outside], [], [], 0.2)[0]
            worked = work_of(process.pid)
            if ready:
                try:
                    part = os.read(outside, 1 << 16)
                except OSError:  # Linux says so at the end
                    break
                if worked - last > 5.0:
                    pauses.append((worked - last, "\n".join(shown(content))))
                last = worked
                content += part.decode("utf-8", "replace")
            elif process.poll() is not None:
                break
        os.close(outside)
        seen = Seen(shown(content), pauses, process.wait(timeout=60))
        self.counted += len(seen.lines)
        assert "Traceback" not in seen.text, seen.text
        for seconds, before in seen.pauses:
            assert EXPLAINED.search(before), f"{seconds:.0f} s of work without a word after {before!r}"
        assert sum(seconds for seconds, _ in seen.pauses) < 90.0
        return seen


def work_of(pid: int) -> float:
    """Seconds that a process has computed: a busy machine does not count."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shown(content: str) -> list[str]:
    """Lines as they stand on the screen: what a progress bar has painted over is gone."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", content)
    lines = [line.rpartition("\r")[2] for line in plain.replace("\r\n", "\n").split("\n")]
    return [line.rstrip() for line in lines if line.strip()]


def test_a_tagger_from_files_of_ones_own(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    for split, number in (("train", 30), ("test", 10)):
        texts = [read_tagged(one.tagged, SEMINAR_FIELDS) for one in make_announcements(number, split=split)]
        documents = [tokenize(text, "news").with_spans(marked) for text, marked in texts]
        plain = [one.replace(text=None, starts=None, stops=None) for one in documents]
        write_columns(walk.folder / f"{split}.conll", plain)
    (walk.folder / "letter.txt").write_text(texts[0][0], encoding="utf-8")

    trained = walk.bactrian("train", "train.conll", "--dev", "test.conll", "--tolerance", "1e-2", "-o", "run")
    assert trained.code == 0, trained.text
    assert (walk.folder / "run" / "report.html").is_file()
    assert re.search(r"^written +run$", trained.text, re.MULTILINE)

    written = walk.bactrian("predict", "run", "test.conll", "-o", "tagged.conll")
    assert (written.code, written.said) == (0, [])
    found = [
        tag for document in read_columns(walk.folder / "tagged.conll", ["word", "true", "tag"]) for tag in document.tags
    ]
    true = [tag for document in read_columns(walk.folder / "test.conll") for tag in document.tags]
    right = 100 * np.mean([a == b for a, b in zip(found, true, strict=True)])
    said = rf"token accuracy {right:.2f} % \({len(true):,} tokens\)"
    scored = walk.bactrian("evaluate", "run", "test.conll")
    assert scored.code == 0
    assert re.search(said, scored.text)
    assert re.search(said, trained.text)

    tagged = walk.bactrian("predict", "run", "letter.txt")
    record = json.loads("".join(tagged.said))
    assert record["text"] == (walk.folder / "letter.txt").read_text(encoding="utf-8")
    for entity in record["entities"]:
        assert record["text"][entity["start"] : entity["stop"]] == entity["text"]

    wrong = walk.bactrian("evaluate", "run", "letter.txt")
    assert (wrong.code, len(wrong.said)) == (2, 1)
    reported = walk.bactrian("report", "run")
    assert reported.said == ["Report: run/report.html"]
    assert walk.counted < 80


def test_a_picture(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    (walk.folder / "picture.py").write_text(
        """
import numpy as np
import bactrian as bt
from bactrian.vision import plot_labels

rng = np.random.default_rng(0)
truth = np.zeros((30, 40), dtype=int)
truth[5:20, 8:30] = 1
noisy = [truth + rng.normal(0, 0.7, truth.shape) for _ in range(2)]
crf = bt.GridCRF(edge_features="contrast").fit(noisy[:1], [truth])
print("learning", crf.solution_.status)
labels = crf.predict(noisy[1:])[0]
print("right", round(crf.score(noisy[1:], [truth]), 4))
plot_labels(labels, noisy[1], truth=truth, marginals=crf.predict_marginals(noisy[1:])[0]).savefig("picture.png")
np.save("labels.npy", labels)
crf.save("picture.bactrian")
""",
        encoding="utf-8",
    )
    first = walk.python("picture.py")
    assert first.code == 0, first.text
    truth = np.zeros((30, 40), dtype=int)
    truth[5:20, 8:30] = 1
    right = np.mean(np.load(walk.folder / "labels.npy") == truth)
    assert first.said == ["learning converged", f"right {round(float(right), 4)}"]
    assert right > 0.95
    assert (walk.folder / "picture.png").stat().st_size > 5_000
    kept = {path.name for path in walk.compiled.rglob("*.nbc")}
    again = walk.python("picture.py")
    assert again.said == first.said
    assert again.pauses == []
    assert kept == {path.name for path in walk.compiled.rglob("*.nbc")} != set()  # nothing is compiled a second time


def test_a_table(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    rng = np.random.default_rng(0)
    smoker = rng.random(800) < 0.3
    lung = rng.random(800) < np.where(smoker, 0.4, 0.05)
    sport = rng.random(800) < np.where(lung, 0.2, 0.6)
    rows = [
        (("no", "yes")[a], ("well", "ill")[b], ("never", "often")[c])
        for a, b, c in np.stack([smoker, lung, sport], axis=1).astype(int)
    ]
    with open(walk.folder / "survey.csv", "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("smoker", "lung", "sport"), *rows])

    fitted = walk.bactrian("fit", "survey.csv", "-o", "field")
    assert fitted.code == 0, fitted.text
    assert fitted.said == ["exact: converged", "800 rows of 3 columns, 0 cells missing"]

    asked = walk.bactrian("query", "field", "P(lung | smoker=yes)")
    assert asked.said[0] == "lung,probability"
    found = dict(line.split(",") for line in asked.said[1:])
    assert float(found["ill"]) == pytest.approx(np.mean(lung[smoker]), abs=0.02)  # pairs are matched, but for the prior
    assert float(found["ill"]) + float(found["well"]) == pytest.approx(1.0, abs=2e-6)

    wrong = walk.bactrian("query", "field", "P(lung | age=old)")
    assert (wrong.code, len(wrong.lines)) == (2, 1)
    assert "age" in wrong.text
    assert walk.counted < 15

    asked = walk.bactrian("query", "field", "P(lung=ill | smoker in {yes, no}, sport=never)")
    both = np.mean(lung[~sport])
    assert float(asked.lines[-1]) == pytest.approx(both, abs=0.02)
    (walk.folder / "fill.py").write_text(
        """
import pandas as pd
import bactrian as bt

survey = pd.read_csv("survey.csv")
field = bt.MarkovRandomField.load("field/field.safetensors")
survey.loc[:99, "lung"] = None
print("score", round(float(field.score(survey[["sport", "lung", "smoker"]])), 3))
print("answers", sorted(field.conditional({"smoker": "yes"})))
print("ill", [int((table["lung"] == "ill").sum()) for table in field.impute(survey, 3)])
""",
        encoding="utf-8",
    )
    filled = walk.python("fill.py")
    assert filled.code == 0, filled.text
    score, answers, ill = filled.said
    assert -2.0 < float(score.removeprefix("score ")) < -1.0
    assert answers == "answers ['lung', 'sport']"
    assert all(abs(number - lung.sum()) < 40 for number in json.loads(ill.removeprefix("ill ")))


def test_a_network(tmp_path: Path) -> None:
    pytest.importorskip("networkx")
    walk = Walk(tmp_path)
    (walk.folder / "club.py").write_text(
        """
import networkx as nx
import bactrian as bt

club = nx.karate_club_graph()
graph = nx.Graph(club.edges)
graph.add_edge(3, 3)
sides = nx.get_node_attributes(club, "club")
known = {member: sides[member] for member in (0, 1, 2, 5, 7, 23, 29, 30, 32, 33)}
try:
    bt.GraphCRF().fit(graph, known)
except ValueError as error:
    print(error)
crf = bt.GraphCRF(fit_intercept=False).fit([graph], [known])
print("learning", crf.solution_.status)
found = dict(zip(graph, crf.predict([graph], known=[known])[0]))
print("right", sum(found[member] == side for member, side in sides.items() if member not in known))
print("known", crf.score([graph], [known]))
crf.save("club.bactrian")
again = bt.GraphCRF.load("club.bactrian")
print("same", (again.predict([graph], known=[known])[0] == list(found.values())).all())
""",
        encoding="utf-8",
    )
    seen = walk.python("club.py")
    assert seen.code == 0, seen.text
    assert "X is a single graph; pass a list of graphs and a list of labels: fit([X], [y])" in seen.text
    assert "ignored edges from a node to itself (1 in all" in seen.text
    said = dict(line.split(" ", 1) for line in seen.lines if re.match("(learning|right|known|same) ", line))
    assert said["learning"] == "converged"
    assert int(said["right"]) >= 20  # of 24
    assert said["same"] == "True"


def test_a_layer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    walk = Walk(tmp_path)
    (walk.folder / "layer.py").write_text(
        """
import torch
from bactrian.torch import CRF

generator = torch.manual_seed(0)
labels = (torch.arange(12) // 3 % 2).repeat(40, 1)
inputs = labels[..., None] + torch.randn(40, 12, 1, generator=generator)
network, crf = torch.nn.Linear(1, 2), CRF(2)
optimiser = torch.optim.Adam([*network.parameters(), *crf.parameters()], lr=0.1)
for step in range(60):
    optimiser.zero_grad()
    loss = crf.loss(network(inputs), labels)
    loss.backward()
    optimiser.step()
    if step in (0, 59):
        print("loss", round(loss.item(), 2))
found = crf.decode(network(inputs))
print("alone", round((network(inputs).argmax(2) == labels).float().mean().item(), 3))
print("together", round((found == labels).float().mean().item(), 3))
torch.save(crf.state_dict(), "crf.pt")
""",
        encoding="utf-8",
    )
    seen = walk.python("layer.py")
    assert seen.code == 0, seen.text
    said = [line.split() for line in seen.said]
    assert [name for name, _ in said] == ["loss", "loss", "alone", "together"]
    first, last, alone, together = (float(value) for _, value in said)
    assert last < first
    assert together > alone
    assert (walk.folder / "crf.pt").is_file()
