"""The examples of the tutorial on text for Hugging Face's datasets and spaCy, where these are installed."""

import re
from pathlib import Path

import pytest

import bactrian as bt
from bactrian.text import EntityFeatures

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "sequences.md"
SENTENCES = [["Ada", "Lee", "sat"], ["We", "met", "Bo"], ["Ada", "met", "Bo"]]
TAGS = [["B-PER", "I-PER", "O"], ["O", "O", "B-PER"], ["B-PER", "O", "B-PER"]]


def examples():
    """The two programs, and the names that they take from the page."""
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(programs) == 2
    return programs, {"bt": bt, "extractor": EntityFeatures(pos=False)}


def test_rows_of_a_data_set():
    datasets = pytest.importorskip("datasets")
    programs, names = examples()
    exec(compile(programs[0], "sequences.md", "exec"), names)
    labels = ["O", "B-PER", "I-PER"]
    tags = datasets.Sequence(datasets.ClassLabel(names=labels))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    numbers = [[labels.index(tag) for tag in of] for of in TAGS]
    X, y = names["labelled"](datasets.Dataset.from_dict({"tokens": SENTENCES, "ner_tags": numbers}, features=features))
    assert y == TAGS
    assert bt.LinearChainCRF(prior_variance=10.0).fit(X, y).predict(X) == TAGS


def test_a_component_of_a_pipeline(tmp_path):
    pytest.importorskip("spacy")
    programs, names = examples()
    for program in programs:
        exec(compile(program, "sequences.md", "exec"), names)
    X = [names["extractor"].extract(names["Document"](words)) for words in SENTENCES]
    bt.LinearChainCRF(prior_variance=10.0).fit(X, TAGS).save(tmp_path / "chain")
    doc = names["pipeline"](tmp_path / "chain")("Ada Lee sat")
    assert [(entity.text, entity.label_) for entity in doc.ents] == [("Ada Lee", "PER")]
