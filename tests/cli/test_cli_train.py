"""``bactrian train``, ``predict``, ``evaluate`` and ``report`` as a user meets them."""

import io
import json
import sys

import numpy as np
import pytest

import bactrian as bt
from bactrian.cli import main
from bactrian.cli.run_options import DATA_OPTIONS, LEARNING_OPTIONS
from bactrian.experiments.announcements.generator import make_announcements
from bactrian.experiments.paper_table import PaperTable
from bactrian.graphs.graph import grid_edges
from bactrian.learners.learn import METHODS
from bactrian.runs.settings import RunSettings, with_defaults
from bactrian.text import (
    CONLL,
    SEMINAR_FIELDS,
    SEMINARS,
    find_entities,
    parse_seminar,
    read_columns,
    read_tagged,
    write_columns,
)

QUICK = ["--tolerance", "1e-2", "--no-report"]


def run(arguments, capsys):
    """Exit code, standard output and standard error of ``bactrian arguments``."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Announcements as columns (with a column pos) and with inline tags, and graphs in both layouts."""
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "test"):
        made = make_announcements(6, split=split)
        documents = [parse_seminar(announcement.tagged) for announcement in made]
        plain = [document.replace(text=None, starts=None, stops=None, line_starts=None) for document in documents]
        write_columns(folder / f"{split}.conll", plain)
        with_pos = [document.replace(columns={"pos": ["X"] * len(document)}) for document in plain]
        write_columns(folder / f"{split}-pos.conll", with_pos)
        (folder / split).mkdir()
        for number, announcement in enumerate(made):
            (folder / split / f"{number}.txt").write_text(announcement.tagged, encoding="utf-8")
    (folder / "raw.txt").write_text(read_tagged(made[0].tagged, SEMINAR_FIELDS)[0], encoding="utf-8")
    graphs = random_graphs(8)
    write_graph_lines(folder / "graphs.jsonl", graphs)
    write_graph_arrays(folder / "graphs.npz", graphs)
    return folder


def random_graphs(n):
    rng = np.random.default_rng(2)
    graphs = []
    for _ in range(n):
        labels = rng.integers(2, size=rng.integers(1, 5))
        edges = [[i, i + 1] for i in range(len(labels) - 1)]
        graphs.append((labels[:, None] + rng.normal(0, 0.3, (len(labels), 1)), edges, labels))
    return graphs


def write_graph_lines(path, graphs):
    records = [{"nodes": x.tolist(), "edges": edges, "labels": labels.tolist()} for x, edges, labels in graphs]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_graph_arrays(path, graphs):
    np.savez(
        path,
        node_features=np.concatenate([x for x, _, _ in graphs]),
        node_counts=[len(x) for x, _, _ in graphs],
        edges=np.array([edge for _, edges, _ in graphs for edge in edges]),
        edge_counts=[len(edges) for _, edges, _ in graphs],
        labels=np.concatenate([labels for _, _, labels in graphs]),
    )


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A run on columns, with scores and a report."""
    path = tmp_path_factory.mktemp("runs") / "ner"
    arguments = ["train", data / "train.conll", "--dev", data / "test.conll", "--tolerance", "1e-2", "-o", path]
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == 0
    return path


# --- train ---


def test_a_run_folder_holds_everything(trained, data):
    names = ["history.jsonl", "metrics.json", "model.safetensors", "report.html", "settings.json"]
    assert sorted(path.name for path in trained.iterdir()) == names
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["status"] == "CONVERGED"
    assert 0.0 < metrics["dev"]["entities"]["micro"]["f1"] <= 1.0
    history = [json.loads(line) for line in (trained / "history.jsonl").read_text().splitlines()]
    assert [entry["iteration"] for entry in history if entry["kind"] == "iteration"][-1] == metrics["iterations"]
    assert history[-1]["kind"] == "outer"
    settings = json.loads((trained / "settings.json").read_text())["settings"]
    assert settings["train"] == [str(data / "train.conll")]
    assert settings["features"]["pos"] is False
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "entity F1" in page
    assert "</html>" in page


def test_training_is_quiet_where_nobody_watches(data, tmp_path, capsys):
    code, out, err = run(["train", data / "train.conll", *QUICK, "-o", tmp_path / "run"], capsys)
    assert (code, err) == (0, "")
    assert "converged" in out


def test_settings_come_from_a_toml_file_and_options_win(data, tmp_path, capsys):
    config = tmp_path / "run.toml"
    config.write_text(
        f"""
train = "{data / "train.conll"}"
output = "from-toml"
model = "skip-chain"
scheme = "BIOES"
report = false
[features]
preset = "seminars"
ngrams = 3
[options]
tolerance = 1e-2
prior_variance = 3.0
method = {{ learner = "Camel", entropy = "clusters", start = "piecewise" }}
"""
    )
    code, out, _ = run(["train", "--config", config, "--prior-variance", "2"], capsys)
    assert code == 0
    assert "camel0" in out
    settings = json.loads((tmp_path / "from-toml" / "settings.json").read_text())["settings"]
    assert settings["options"]["prior_variance"] == 2.0
    assert (settings["features"]["ngrams"], settings["features"]["window"]) == (3, 9)
    code, out, _ = run(["predict", tmp_path / "from-toml", data / "test.conll"], capsys)
    assert code == 0
    assert {line.split()[-1][0] for line in out.splitlines() if line} <= set("OBIES")


def test_a_run_without_a_prior_in_the_scheme_of_another_name(data, tmp_path, capsys):
    arguments = ["--prior-variance", "inf", "--l1", "0.5", "--scheme", "BIO2", "-o", tmp_path / "run"]
    code, _, err = run(["train", data / "train.conll", *QUICK, *arguments], capsys)
    assert (code, err) == (0, "")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert settings["options"]["prior_variance"] is None
    assert settings["scheme"] == "BIO"
    model = bt.LinearChainCRF.load(tmp_path / "run" / "model.safetensors")
    assert model.prior_variance is None
    assert (model.weights_ == 0.0).any()


def test_stopping_short_is_exit_code_1_and_goes_on(data, tmp_path, capsys):
    path = tmp_path / "run"
    code, out, err = run(["train", data / "train.conll", *QUICK, "--max-iterations", "2", "-o", path], capsys)
    assert code == 1
    assert "iteration limit" in out
    assert f"--resume {path}" in err
    assert run(["predict", path, data / "raw.txt"], capsys)[0] == 0
    code, out, _ = run(["train", "--resume", path, "--max-iterations", "500"], capsys)
    assert code == 0
    assert run(["train", "--resume", path], capsys)[0] == 0  # nothing left to do


def test_edges_that_make_training_labels_worse_are_told(tmp_path, capsys):
    rng = np.random.default_rng(1)
    truth = np.zeros((14, 14), dtype=int)
    truth[3:10, 2:7], truth[2:6, 8:13] = 1, 2
    noisy = np.eye(3)[truth] + rng.normal(0, 1.0, (14, 14, 3))
    write_graph_lines(tmp_path / "picture.jsonl", [(noisy.reshape(-1, 3), grid_edges(14, 14).tolist(), truth.ravel())])
    given = ["train", tmp_path / "picture.jsonl", "--no-report", "-o", tmp_path / "run"]
    code, _, err = run([*given, "--method", "pseudolikelihood"], capsys)
    assert "scores of the nodes alone" in " ".join(err.split())
    assert code == 0
    code, _, err = run([*given[:-1], tmp_path / "other", "--method", "convex"], capsys)
    assert (code, err.count("alone")) == (0, 0)


@pytest.mark.parametrize("name", ["graphs.jsonl", "graphs.npz"])
def test_graphs(name, data, tmp_path, capsys):
    path = tmp_path / "run"
    code, out, err = run(["train", data / name, "--test", data / name, "-o", path], capsys)
    assert code == 0, err
    assert "node accuracy" in out
    assert "learner     convex," in out
    code, out, _ = run(["predict", path, data / name, "--probabilities"], capsys)
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len(records) == 8
    truth = np.concatenate([labels for _, _, labels in random_graphs(8)])
    guess = np.concatenate([record["labels"] for record in records])
    code, out, _ = run(["evaluate", path, data / name, "--json"], capsys)
    assert json.loads(out)["accuracy"] == np.mean(truth == guess) > 0.8
    assert all(0.5 <= p <= 1.0 for record in records for p in record["probabilities"])
    code, _, err = run(["predict", path, "-"], capsys)
    assert code == 2
    assert "not from standard input" in err


def test_empty_documents_single_words_and_other_alphabets(tmp_path, capsys):
    path, run_path = tmp_path / "é.conll", tmp_path / "ünï"
    path.write_text(
        "-DOCSTART- O\n\n-DOCSTART- O\n\nRömé B-LOC\n\n-DOCSTART- O\n\n日本 B-LOC\nis O\n", encoding="utf-8"
    )
    arguments = ["train", path, "--dev", path, "--min-frequency", "1", "-o", run_path]
    code, out, err = run(arguments, capsys)
    assert (code, err) == (0, "")
    assert "日本" in (run_path / "report.html").read_text(encoding="utf-8")
    out = run(["predict", run_path, path, "--to", "json"], capsys)[1]
    found = [[entity["text"] for entity in json.loads(line)["entities"]] for line in out.splitlines()]
    assert found == [[], ["Römé"], ["日本"]]
    (tmp_path / "empty.txt").write_text("")
    assert json.loads(run(["predict", run_path, tmp_path / "empty.txt"], capsys)[1])["entities"] == []


def test_labels_that_mark_no_entities(data, tmp_path, capsys):
    path = tmp_path / "words.txt"
    path.write_text("the D\ndog N\nbarks V\n\na D\ncat N\nsleeps V\n\nthe D\ncat N\nbarks V\n")
    code, out, _ = run(["train", path, "--dev", path, "--min-frequency", "1", *QUICK, "-o", tmp_path / "run"], capsys)
    assert code == 0
    assert "token accuracy 100.00 % (9 tokens)" in out
    (tmp_path / "new.txt").write_text("the dog sleeps")
    code, out, _ = run(["predict", tmp_path / "run", tmp_path / "new.txt"], capsys)
    assert [line.split()[-1] for line in out.splitlines() if line] == ["D", "N", "V"]
    code, _, err = run(["predict", tmp_path / "run", tmp_path / "new.txt", "--to", "tagged"], capsys)
    assert code == 2
    assert "mark no entities" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no file to learn from"),
        (["nothing.conll"], "no such file"),
        (["bad.conll"], "line 2: expected 2 columns (word, tag), found 3"),
        (["empty.conll"], "there are no tokens"),
        (["untagged.conll"], "has no tags; a line holds one column; blanks or tabs stand between columns"),
        (["train.conll", "--pos"], "there is no column 'pos'; train with --columns that name it, or with --no-pos"),
        (["train.conll", "--method", "dromedary"], "bactrian: --method must be one of piecewise"),
        (
            ["train.conll", "--model", "camel"],
            "bactrian: --model must be one of chain, skip-chain, graph, found 'camel'",
        ),
        (["train.conll", "--model", "graph"], "does not support data in the format 'columns'"),
        (["train.conll", "--scheme", "BOI"], "bactrian: --scheme must be one of"),
        (["train.conll", "--features", "humps"], "bactrian: --features must be one of conll, seminars"),
        (
            ["train.conll", "--prior-variance", "0"],
            "bactrian: --prior-variance must be positive, or None",
        ),
        (["train.conll", "--l1", "-1"], "bactrian: --l1 must not be negative, found -1"),
        (["train.conll", "--encoding", "utf-9"], "bactrian: --encoding is unknown: 'utf-9'"),
        (["latin.conll"], "line 1: not utf-8: "),
        (["latin.conll"], "(encoding=, or --encoding)"),
        (["train.conll", "--config", "method.toml"], "bactrian: options.method must be one of piecewise"),
        (["train.conll", "--format", "rows"], "bactrian: --format must be one of columns"),
        (["train.conll", "--dev", "bad.conll"], "line 2"),
        (["train.conll", "--patience", "3"], "bactrian: --patience needs held-out data: name a file as dev"),
        (["train.conll", "--config", "bad.toml"], "bad.toml"),
        (["train.conll", "--config", "odd.toml"], "settings has no entry 'humps'"),
        (["train.conll", "-o", "taken"], "exists already; choose another name\n"),
        (["train.conll", "--config", "none.toml"], "bactrian: none.toml: No such file"),
        (["unmarked.conll"], "every token has the label O"),
        (["letter.txt", "--format", "tagged", "--fields", "person"], "the tags person mark nothing"),
        (["--resume", "taken"], "is not a run folder"),
        (["--resume", "taken", "--method", "cccp"], "leave out --method"),
        (["bad.jsonl"], "line 1: nodes must be a rectangular array"),
        (["bad.npz"], "not a readable .npz file"),
        (["odd.jsonl"], "odd.jsonl, line 2: edges[0] = (0, 7)"),
        (["wide.npz"], "wide.npz, graph 1: edges[0] = (0, 9)"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.conll").write_bytes((data / "train.conll").read_bytes())
    (tmp_path / "bad.conll").write_text("a O\nb O O\n")
    (tmp_path / "empty.conll").write_text("\n\n")
    (tmp_path / "untagged.conll").write_text("word\nword\n")
    (tmp_path / "unmarked.conll").write_text("a O\nb O\n")
    (tmp_path / "letter.txt").write_text("<speaker>Ada</speaker> speaks.\n")
    (tmp_path / "bad.toml").write_text("model = ")
    (tmp_path / "odd.toml").write_text("humps = 2")
    (tmp_path / "bad.jsonl").write_text('{"nodes": [[1], [1, 2]], "edges": []}\n')
    (tmp_path / "odd.jsonl").write_text('\n{"nodes": [[1]], "edges": [[0, 7]], "labels": [1]}\n')
    np.savez(tmp_path / "wide.npz", node_features=[[1.0], [2.0]], edges=[[0, 9]], labels=[0, 1])
    (tmp_path / "latin.conll").write_bytes(b"caf\xe9 B-X\n")
    (tmp_path / "method.toml").write_text('options.method = "dromedary"')
    (tmp_path / "bad.npz").write_text("zip?")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("do not lose")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(["train", *arguments], capsys)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("bactrian: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


# --- predict and evaluate ---


def test_raw_text_with_offsets(trained, data, capsys):
    code, out, err = run(["predict", trained, data / "raw.txt", "--probabilities"], capsys)
    assert (code, err) == (0, "")
    record = json.loads(out)
    text = (data / "raw.txt").read_text(encoding="utf-8")
    assert record["name"] == "raw.txt"
    assert record["text"] == text
    assert record["entities"]
    for entity in record["entities"]:
        assert text[entity["start"] : entity["stop"]] == entity["text"]
        assert 0.0 < entity["probability"] <= 1.0


def test_inline_tags_and_columns_say_the_same(trained, data, capsys):
    found = json.loads(run(["predict", trained, data / "raw.txt"], capsys)[1])["entities"]
    tagged = run(["predict", trained, data / "raw.txt", "--to", "tagged"], capsys)[1]
    plain, marked = read_tagged(tagged.removesuffix("\n"), SEMINAR_FIELDS)
    assert marked == [(entity["type"], entity["start"], entity["stop"]) for entity in found]
    columns = run(["predict", trained, data / "raw.txt", "--to", "columns"], capsys)[1]
    rows = [line.split() for line in columns.splitlines() if line]
    assert all(plain[int(start) : int(stop)] == word for word, start, stop, _ in rows)
    assert sum(tag.startswith("B-") for *_, tag in rows) == len(found)


def test_columns_in_and_out_to_a_file(trained, data, tmp_path, capsys):
    output = tmp_path / "tagged.conll"
    code, out, _ = run(["predict", trained, data / "test.conll", "-o", output], capsys)
    assert (code, out) == (0, "")
    documents = list(read_columns(output, ["word", "true", "tag"]))
    truth = list(read_columns(data / "test.conll"))
    assert [d.words for d in documents] == [d.words for d in truth]
    hits = [a == b for d in documents for a, b in zip(d.columns["true"], d.tags, strict=True)]
    scores = json.loads(run(["evaluate", trained, data / "test.conll", "--json"], capsys)[1])
    assert scores["accuracy"] == np.mean(hits)


def test_lines_and_standard_input(trained, data, tmp_path, capsys, monkeypatch):
    lines = tmp_path / "lines.txt"
    lines.write_text("Time: 4:30 PM\n\nPlace: Wéan Hall\n", encoding="utf-8")
    code, out, _ = run(["predict", trained, lines, "--input", "lines"], capsys)
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["Time: 4:30 PM", "", "Place: Wéan Hall"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    piped = run(["predict", trained, "-", "--input", "lines"], capsys)[1]
    assert [json.loads(line)["entities"] for line in piped.splitlines()] == [
        json.loads(line)["entities"] for line in out.splitlines()
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    whole = json.loads(run(["predict", trained, "-"], capsys)[1])
    assert whole["text"] == lines.read_text(encoding="utf-8")


def test_a_model_with_parts_of_speech_refuses_raw_text(data, tmp_path, capsys):
    path = tmp_path / "run"
    assert run(["train", data / "train-pos.conll", "--pos", *QUICK, "-o", path], capsys)[0] == 0
    assert run(["evaluate", path, data / "test-pos.conll"], capsys)[0] == 0
    code, out, err = run(["predict", path, data / "raw.txt"], capsys)
    assert (code, out) == (2, "")
    assert "needs parts of speech" in err
    assert "train without --pos" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "RUN", "nothing.txt"], "no such file"),
        (["predict", "RUN", "bytes.txt"], "give its encoding (encoding=, or --encoding)"),
        (["predict", "RUN", "raw.txt", "--encoding", "utf-9"], "bactrian: --encoding is unknown: 'utf-9'"),
        (["predict", "RUN", "raw.txt", "--to", "smoke"], "--to must be one of"),
        (["predict", "RUN", "raw.txt", "--input", "smoke"], "--input must be one of"),
        (["predict", ".", "raw.txt"], "is not a run folder"),
        (["evaluate", "RUN", "raw.txt"], "raw.txt"),
        (["report", "RUN", "RUN"], "named twice"),
        (["report", "."], "is not a run folder"),
    ],
)
def test_bad_input_of_the_others(arguments, words, trained, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw.txt").write_text("one two\nthree\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    code, _, err = run([trained if argument == "RUN" else argument for argument in arguments], capsys)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_texts_in_another_encoding_than_those_of_training(trained, data, tmp_path, capsys):
    text = "Zo\u00eb met Ren\u00e9 in Rome .\n"
    (tmp_path / "utf-8.txt").write_bytes(text.encode())
    (tmp_path / "latin.txt").write_bytes(text.encode("latin-1"))
    expected = json.loads(run(["predict", trained, tmp_path / "utf-8.txt"], capsys)[1])
    found = json.loads(run(["predict", trained, tmp_path / "latin.txt", "--encoding", "latin-1"], capsys)[1])
    assert found["text"] == expected["text"] == text
    assert found["entities"] == expected["entities"]
    columns = tmp_path / "latin.conll"
    columns.write_bytes((data / "test.conll").read_bytes() + b"\nZo\xeb O\n")
    assert run(["evaluate", trained, columns, "--encoding", "latin-1"], capsys)[0] == 0
    assert run(["evaluate", trained, columns], capsys)[0] == 2


def test_graphs_that_do_not_fit_the_model_are_named_by_file_and_line(data, tmp_path, capsys):
    path = tmp_path / "run"
    assert run(["train", data / "graphs.jsonl", *QUICK, "-o", path], capsys)[0] == 0
    lines = (data / "graphs.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    record["nodes"] = [[*features, 1.0] for features in record["nodes"]]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([lines[0], "", json.dumps(record), *lines[2:]]) + "\n")
    width = len(record["nodes"][0])
    for command in (["predict", path, bad], ["evaluate", path, bad], ["train", bad, *QUICK, "-o", tmp_path / "other"]):
        code, out, err = run(command, capsys)
        assert (code, out) == (2, "")
        assert f"bad.jsonl, line 3: node_features has {width} features, expected {width - 1}" in err
    code, _, err = run(["predict", path, bad, "--encoding", "latin-1"], capsys)
    assert code == 2
    assert "--encoding is for texts" in err


def test_boolean_labels_of_graphs_come_back(tmp_path, capsys):
    graph = {"nodes": [[0.0], [1.0], [0.1]], "edges": [[0, 1]], "labels": [False, True, False]}
    (tmp_path / "graphs.jsonl").write_text(json.dumps(graph) + "\n")
    assert run(["train", tmp_path / "graphs.jsonl", *QUICK, "-o", tmp_path / "run"], capsys)[0] == 0
    code, out, _ = run(["predict", tmp_path / "run", tmp_path / "graphs.jsonl"], capsys)
    assert code == 0
    assert {type(label) for label in json.loads(out)["labels"]} == {bool}


def test_a_pack_is_taken_for_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.conll").write_text("Ada B-PER\nspoke O\n")
    assert run(["pack", "train.conll", "-o", "packed"], capsys)[0] == 0
    for arguments in (["predict", "packed", "train.conll"], ["evaluate", "packed", "train.conll"], ["report", "packed"],
                      ["train", "--resume", "packed"]):  # fmt: skip
        code, out, err = run(arguments, capsys)
        assert (code, out) == (2, "")
        assert "packed is a pack" in err
        assert "bactrian train packed" in err


def test_a_damaged_model_is_refused(trained, data, tmp_path, capsys):
    path = tmp_path / "run"
    path.mkdir()
    for file in trained.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-5] ^= 4
    (path / "model.safetensors").write_bytes(bytes(content))
    code, _, err = run(["predict", path, data / "raw.txt"], capsys)
    assert code == 2
    assert "damaged" in err


# --- report ---


def test_reports_are_refreshed_and_compared(trained, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = (trained / "report.html").read_text(encoding="utf-8")
    (trained / "report.html").unlink()
    assert run(["report", trained], capsys)[0] == 0
    assert len((trained / "report.html").read_text(encoding="utf-8")) == len(before)
    other = ["train", data / "train", "--test", data / "test", "--model", "skip-chain", "-m", "piecewise", *QUICK]
    assert run([*other, "-o", tmp_path / "skips"], capsys)[0] == 0
    code, out, _ = run(["report", trained, tmp_path / "skips"], capsys)
    assert code == 0
    assert "comparison.html" in out
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "ner" in page
    assert "skips" in page


@pytest.mark.parametrize("name", ["train", "predict", "evaluate", "report", "reproduce"])
def test_help_shows_an_example(name, capsys):
    code, out, _ = run([name, "--help"], capsys)
    assert code == 0
    assert f"bactrian {name}" in out
    assert "Example" in out


def test_help_says_the_defaults_of_the_code():
    """The code is not imported for the help, half a second; but a default that changes must change there too."""
    words = {o.setting: o.help.partition("(default: ")[2].partition(")")[0] for o in (*DATA_OPTIONS, *LEARNING_OPTIONS)}
    of_text = with_defaults({"train": ["a.conll"], "input": {"format": "columns"}})
    tagged = with_defaults({"train": ["a.txt"], "input": {"format": "tagged"}})
    graphs = with_defaults({"train": ["a.npz"]})
    run = RunSettings.of(of_text)
    chain, skip, graph = bt.LinearChainCRF(), bt.SkipChainCRF(), bt.GraphCRF()
    assert run.features["ngrams"] == CONLL.ngrams != tagged["features"]["ngrams"] == SEMINARS.ngrams
    assert (graph.method.entropy, graph.prior_variance) == ("convex", "auto")
    assert (chain.tolerance, graph.tolerance, skip.tolerance) == (1e-3, 1e-3, 1e-4)
    assert {chain.seed, skip.seed, graph.seed} == {0}
    assert (
        {one.max_seconds for one in (chain, skip, graph)} == {one.n_threads for one in (chain, skip, graph)} == {None}
    )
    assert words == {
        "input.format": "guessed from the files",
        "input.columns": "by their number",
        "input.documents": run.input.documents,
        "input.fields": ",".join(run.input.fields),
        "input.tokenizer": f"{run.input.tokenizer}; {tagged['input']['tokenizer']} for tagged texts",
        "input.encoding": run.input.encoding,
        "features.preset": "conll; seminars for tagged texts",
        "features.pos": "--pos" if run.features["pos"] else "--no-pos",
        "features.columns": ",".join(run.features["columns"]) or "none",
        "features.template": "",
        "features.gazetteers": "the name of the file",
        "features.own": ",".join(run.features["own"]) or "none",
        "scheme": run.scheme,
        "model": f"{run.model}; {graphs['model']} for graphs",
        "options.min_frequency": str(run.options["min_frequency"]),
        "dev": "",
        "test": "",
        "patience": "learn to the end",
        "options.method": f"{chain.method} for chains, {skip.method} for skip chains, "
        "CAMEL with a convex entropy for graphs",
        "options.prior_variance": chain.prior_variance,
        "options.l1": f"{chain.l1:g}",
        "options.tolerance": "1e-3; 1e-4 for skip chains",
        "options.max_iterations": f"{chain.max_iterations}",
        "options.max_seconds": "no limit",
        "options.n_threads": "one per core",
        "options.seed": "0",
        "checkpoint_every": str(run.checkpoint_every),
        "report": "--report" if run.report else "--no-report",
    }
    assert (chain.prior_variance, chain.l1, chain.max_iterations) == (skip.prior_variance, skip.l1, skip.max_iterations)
    assert (chain.l1, chain.max_iterations) == (graph.l1, graph.max_iterations)


def test_help_names_every_learner(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    _, out, _ = run(["train", "--help"], capsys)
    words = {word.strip(",;:.") for word in out.split()}
    assert set(METHODS) <= words


# --- reproduce ---


TABLE = PaperTable("Table 1", ("method", "F1"), (("piecewise", "85.2"),), ("chosen on testa",))


def test_reproduce_prints_and_writes_the_table(tmp_path, monkeypatch, capsys):
    calls = []

    def experiment(data, *, quick, progress, rows, seconds):
        calls.append((data, quick, list(rows), seconds))
        progress("begun")
        return TABLE

    module = type(sys)("bactrian.experiments.table1.table")
    module.run = experiment
    monkeypatch.setitem(sys.modules, "bactrian.experiments.table1.table", module)
    for suffix in ("json", "html"):
        path = tmp_path / f"table.{suffix}"
        code, out, _ = run(["reproduce", "table1", "--data", tmp_path, "--quick", "-o", path], capsys)
        assert code == 0
        assert "85.2" in out
        assert "chosen on testa" in out
        assert "85.2" in path.read_text(encoding="utf-8")
    assert calls == [(tmp_path, True, [], None)] * 2
    chosen = ["--rows", "exact chain", "--rows", "CCCP", "--seconds", "2.5"]
    assert run(["reproduce", "table1", "--data", tmp_path, *chosen], capsys)[0] == 0
    assert calls[-1] == (tmp_path, False, ["exact chain", "CCCP"], 2.5)
    code, _, err = run(["reproduce", "table1", "--data", tmp_path, "--seconds", "0"], capsys)
    assert code == 2
    assert "--seconds" in err
    code, _, err = run(["reproduce", "table1", "--data", tmp_path / "nowhere"], capsys)
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = run(["reproduce", "table1", "--data", tmp_path, "--splits", "2"], capsys)
    assert (code, err) == (2, "bactrian: --splits is not an option of table1\n")
    code, _, err = run(["reproduce", "table4", "--data", tmp_path], capsys)
    assert (code, err) == (2, "bactrian: expected table1, table2 or table3, found 'table4'\n")


def test_reproduce_says_what_is_wrong_with_the_data(tmp_path, monkeypatch, capsys):
    def experiment(data, **options):
        raise ValueError(f"{data} has no eng.train")

    module = type(sys)("bactrian.experiments.table1.table")
    module.run = experiment
    monkeypatch.setitem(sys.modules, "bactrian.experiments.table1.table", module)
    code, _, err = run(["reproduce", "table1", "--data", tmp_path], capsys)
    assert code == 2
    assert "has no eng.train" in err


# --- settings that were tampered with ---


def test_forged_settings_are_refused_or_harmless(trained, data, tmp_path):
    from bactrian.runs.folders import RunFolder

    content = json.loads((trained / "settings.json").read_text())
    rng = np.random.default_rng(0)
    values = [None, True, -1, 10**30, 1.5, "", "odd", "os.system", [], {}, [[]], {"learner": "Popen"}, {"learner": 3}]
    refusals = []
    for _ in range(400):
        document = json.loads(json.dumps(content))
        places = [(document, key) for key in document]
        places += [(document["settings"], key) for key in document["settings"]]
        for part in ("input", "features", "options"):
            places += [(document["settings"][part], key) for key in (*document["settings"][part], "method", "odd")]
        node, key = places[rng.integers(len(places))]
        node[key] = values[rng.integers(len(values))]
        (tmp_path / "settings.json").write_text(json.dumps(document))
        try:
            settings, _ = RunFolder(tmp_path).read_settings()
        except ValueError as error:
            refusals.append(str(error))
        else:
            assert type(settings.estimator()).__module__.startswith("bactrian.")
    assert len(refusals) > 250
    assert all("settings.json" in message for message in refusals)


def test_variances_by_block_and_by_cross_validation(data, tmp_path, capsys):
    config = tmp_path / "run.toml"
    config.write_text("[options.prior_variance]\ntokens = 3.0\ntransitions = inf\n")
    assert run(["train", data / "train.conll", *QUICK, "--config", config, "-o", tmp_path / "blocks"], capsys)[0] == 0
    model = bt.LinearChainCRF.load(tmp_path / "blocks" / "model.safetensors")
    assert model.prior_variance == {"tokens": 3.0, "transitions": None}
    chosen = ["--prior-variance", "cv", "-o", tmp_path / "chosen"]
    assert run(["train", data / "train.conll", *QUICK, *chosen], capsys)[0] == 0
    model = bt.LinearChainCRF.load(tmp_path / "chosen" / "model.safetensors")
    assert model.prior_variance == "cv"
    assert model.prior_variance_ == min(model.prior_scores_, key=lambda pair: pair[1])[0]
    code, _, err = run(["train", data / "train.conll", "--prior-variance", "ten", "-o", tmp_path / "none"], capsys)
    assert code == 2
    assert "--prior-variance must be 'auto', a number, None, a mapping by block or 'cv', found 'ten'" in err


# --- what files are taken for ---


def test_the_content_decides_how_a_file_is_read(trained, data, tmp_path, capsys):
    expected = run(["predict", trained, data / "test.conll"], capsys)[1]
    for name in ("eng.testb", "test.txt", "test"):
        (tmp_path / name).write_bytes((data / "test.conll").read_bytes())
        code, out, err = run(["predict", trained, tmp_path / name], capsys)
        assert (code, out) == (0, expected)
        assert f"{name}: read as columns" in err
        assert err.count("\n") == 1
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.conll").write_bytes((data / "test.conll").read_bytes())
    assert run(["predict", trained, folder], capsys)[:2] == (0, expected)
    code, out, err = run(["predict", trained, data / "test" / "0.txt"], capsys)
    assert "read as tagged" in err
    assert "<" not in json.loads(out)["text"].splitlines()[-1]
    (folder / "letter.txt").write_text("Come to Wean Hall .\n")
    code, out, err = run(["predict", trained, folder], capsys)
    assert (code, out) == (2, "")
    assert "letter.txt is read as text and" in err
    assert run(["predict", trained, folder, "--to", "columns"], capsys)[0] == 0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("graphs.jsonl", b"{}", "hold graphs"),
        ("picture.png", b"PNG\0\0", "this is not text"),
        ("raw.txt", b"Come to Wean Hall at four .", "is this a labelled file?"),
        ("pos.conll", b"Come V\nto P\nRome N\n", "pos.conll, line 1: 'V' and the other tags are not among"),
        (
            "stray.conll",
            b"Come O\nto O\nRome B_LOC\nfor O\nAda B-speaker",
            "stray.conll, line 3: the tag 'B_LOC' is not",
        ),
    ],
)
def test_what_cannot_be_is_refused(name, content, words, trained, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    command = "predict" if name in ("graphs.jsonl", "picture.png") else "evaluate"
    code, out, err = run([command, trained, tmp_path / name], capsys)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_columns_on_standard_input_are_not_taken_for_text(trained, data, tmp_path, monkeypatch, capsys):
    piped = io.BufferedReader(io.BytesIO((data / "test.conll").read_bytes()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
    code, out, err = run(["predict", trained, "-"], capsys)
    assert (code, out) == (2, "")
    assert "standard input looks like columns: use --input columns" in err


PLAIN = [("Ada", "B-PER"), ("Lovelace", "I-PER"), ("saw", "O"), ("Rome", "B-LOC"), (".", "O")]


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (["B-PER", "I-PER", "O", "B-LOC", "O"], ""),
        (["I-PER", "I-PER", "O", "I-LOC", "O"], ""),
        (["B-PER", "E-PER", "O", "S-LOC", "O"], ""),
        (["B-PER", "L-PER", "O", "U-LOC", "O"], ""),
        (["PER", "PER", "O", "LOC", "O"], "tags are types without a prefix: LOC is read as I-LOC"),
        (["I-PER", "I-PER", "O", "B-LOC", "O"], "3 tags are not well-formed BIO and repaired"),
    ],
)
def test_every_scheme_gives_the_same_entities(tags, words, tmp_path, capsys):
    path = tmp_path / "some.conll"
    lines = "".join(f"{word} {tag}\n" for (word, _), tag in zip(PLAIN, tags, strict=True)) + "\n"
    path.write_text("# a comment\n" + lines + "# text = Ada Lovelace saw Rome .\n" + lines * 2)
    given = [path, "--dev", path, "--min-frequency", "1", *QUICK, "-o", tmp_path / "run"]
    code, out, err = run(["train", *given], capsys)
    assert code == 0
    assert words in err if words else err == ""
    scores = [line.split() for line in out.splitlines() if line.strip().startswith(("LOC", "PER"))]
    assert scores == [[kind, "100.00", "100.00", "100.00", "3"] for kind in ("LOC", "PER")], out


def test_one_stray_tag_is_refused_before_training(tmp_path, capsys):
    path = tmp_path / "some.conll"
    path.write_text("".join(f"{word} {tag}\n" for word, tag in PLAIN) + "Rome LOC\n")
    code, out, err = run(["train", path, *QUICK, "-o", tmp_path / "run"], capsys)
    assert (code, out) == (2, "")
    assert "some.conll, line 6: the tag 'LOC' is not an entity tag, but others are: B-LOC" in err


def test_unknown_tags_of_a_column_file(tmp_path, capsys):
    """They are learned around; the others stay as they are, and scores need all of them."""
    path, whole = tmp_path / "some.conll", tmp_path / "whole.conll"
    sentence = "".join(f"{word} {tag}\n" for word, tag in PLAIN) + "\n"
    whole.write_text(sentence * 3)
    path.write_text(sentence * 2 + sentence.replace("I-PER", "?").replace("B-LOC", "_"))
    given = ["--min-frequency", "1", *QUICK]
    code, out, err = run(["train", path, "--dev", whole, *given, "-o", tmp_path / "run"], capsys)
    assert (code, err) == (0, "")
    scores = [line.split() for line in out.splitlines() if line.strip().startswith(("LOC", "PER"))]
    assert scores == [[kind, "100.00", "100.00", "100.00", "3"] for kind in ("LOC", "PER")], out
    assert bt.LinearChainCRF.load(tmp_path / "run/model.safetensors").classes_.tolist() == [
        "B-LOC",
        "B-PER",
        "I-PER",
        "O",
    ]
    for arguments, words in (
        (["train", whole, "--dev", path, *given, "-o", tmp_path / "b"], "the tag '?' stands for an unknown tag"),
        (["evaluate", tmp_path / "run", path], "line 14: the tag '?' stands for an unknown tag; scores need every tag"),
        (["pack", path, "-o", tmp_path / "c"], "a pack needs every tag"),
    ):
        code, out, err = run(arguments, capsys)
        assert (code, out) == (2, "")
        assert words in err
    path.write_text("Ada I-PER\nLovelace I-PER\nsaw ?\n")
    code, out, err = run(["train", path, *given, "-o", tmp_path / "d"], capsys)
    assert code == 2
    assert "tag I-PER of 'Ada', token 1 of some.conll#1, is not well-formed BIO" in err
    path.write_text("Ada ?\nLovelace _\n")
    code, out, err = run(["train", path, *given, "-o", tmp_path / "e"], capsys)
    assert code == 2
    assert "every tag is unknown (?, _)" in err


def test_a_skip_chain_counts_its_skips_and_warns_of_one_long_document(tmp_path, capsys):
    path = tmp_path / "some.conll"
    sentence = "".join(f"{word} {tag}\n" for word, tag in PLAIN) + "\n"
    path.write_text(sentence * 1001)
    given = ["train", path, "--model", "skip-chain", "-m", "piecewise", *QUICK]
    code, out, err = run([*given, "-o", tmp_path / "one"], capsys)
    assert code == 0
    assert "skip edges  3,000 in 1 documents" in out
    assert "1,001 sentences, and skip edges cross all of it" in err
    code, out, err = run([*given, "--documents", "sentences", "-o", tmp_path / "many"], capsys)
    assert "skip edges  0 in 1,001 documents" in out
    assert "adds no edges" in err


def test_chinese_by_characters_from_train_to_predict(tmp_path, capsys):
    path = tmp_path / "zh.conll"
    sentence = "阿 B-PER\n达 E-PER\n在 O\n罗 B-LOC\n马 E-LOC\n。 O\n\n"
    path.write_text(sentence * 3, encoding="utf-8")
    given = ["train", path, "--tokenizer", "characters", "--min-frequency", "1", *QUICK, "-o", tmp_path / "run"]
    assert run(given, capsys)[0] == 0
    (tmp_path / "new.txt").write_text("阿达在罗马。", encoding="utf-8")
    code, out, err = run(["predict", tmp_path / "run", tmp_path / "new.txt"], capsys)
    assert (code, err) == (0, "")
    assert [(entity["type"], entity["text"]) for entity in json.loads(out)["entities"]] == [
        ("PER", "阿达"),
        ("LOC", "罗马"),
    ]
    assert "罗马" in out  # UTF-8, not escapes
    code, _, err = run(["train", path, "--tokenizer", "([", "-o", tmp_path / "no"], capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("bactrian: --tokenizer: pattern '([' is not a regular expression")


# --- features of one's own, and labels that are known ---


def lettered(path, n=8):
    """Columns word, chunk, tag: names alone do not tell PER from LOC, the column chunk does."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(n):
        for kind in rng.permutation(["PER", "LOC"]):
            lines += [f"near x O\n{rng.choice(['Oslo', 'Rome', 'Bern'])} {kind.lower()} B-{kind}"]
        lines += [""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


GIVEN = ["--columns", "word,chunk,tag", "--min-frequency", "1", *QUICK]


def test_a_report_says_things_as_a_person_would(trained, data, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert run(["report", trained, "-o", page], capsys)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "linear chain" in text
    assert "Gaussian; variance" in text
    assert "words, letters in them, shapes, neighbours up to 1 place away, words up to 4 places away" in text
    assert "cannot be compared" not in text
    assert "a word among the few before" in text  # the key to the features that are listed
    assert ">all together<" in text
    other = ["train", data / "train", "--test", data / "test", *QUICK, "-o", tmp_path / "other"]
    assert run(other, capsys)[0] == 0
    assert run(["report", trained, tmp_path / "other", "-o", page], capsys)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "The runs were learned from different data, so their scores cannot be compared" in text
    assert "train.conll; other train" in text


@pytest.mark.parametrize("way", ["columns", "template", "toml"])
def test_further_columns_and_templates(way, tmp_path, capsys):
    train = lettered(tmp_path / "train.conll")
    (tmp_path / "my.template").write_text("U0:%x[0,0]\nU1:%x[0,1]\nB\n")
    (tmp_path / "run.toml").write_text('train = "train.conll"\n[features]\ntemplate = "my.template"\n')
    options = {
        "columns": [train, "--feature-columns", "chunk"],
        "template": [train, "--template", tmp_path / "my.template"],
        "toml": ["--config", tmp_path / "run.toml"],
    }[way]
    code, out, err = run(["train", *options, *GIVEN, "-o", tmp_path / "run"], capsys)
    assert (code, err) == (0, "")
    (tmp_path / "my.template").unlink(missing_ok=True)  # the run has what it needs
    code, out, _ = run(["evaluate", tmp_path / "run", train, "--json"], capsys)
    assert json.loads(out)["accuracy"] == 1.0
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    if way != "columns":
        assert settings["features"]["template"] == ["U0:%x[0,word]", "U1:%x[0,chunk]", "B"]
        assert settings["features"]["ngrams"] == settings["features"]["window"] == 0
    (tmp_path / "raw.txt").write_text("near Oslo")
    code, out, err = run(["predict", tmp_path / "run", tmp_path / "raw.txt"], capsys)
    assert (code, out) == (2, "")
    assert "the model needs the column 'chunk'" in err
    plain = run(["train", train, *GIVEN, "-o", tmp_path / "plain"], capsys)
    assert plain[0] == 0
    code, out, _ = run(["evaluate", tmp_path / "plain", train, "--json"], capsys)
    assert json.loads(out)["accuracy"] < 1.0


def test_gazetteers_and_plugins(tmp_path, capsys):
    train, new = tmp_path / "train.conll", tmp_path / "new.txt"
    train.write_text("in O\nRome B-LOC\n\nby O\nAda B-PER\n\nin O\nBern B-LOC\n\nby O\nEve B-PER\n\n" * 2)
    (tmp_path / "cities.txt").write_text("Rome\nBern\nNew York\n")
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from bactrian.text import register_features\n"
        "@register_features('short')\n"
        "def short(document):\n"
        "    return [['short'] if len(word) < 4 else [] for word in document.words]\n"
    )
    bare = ["--features", "none", *QUICK]
    given = ["--gazetteer", tmp_path / "cities.txt", "--gazetteer", f"town={tmp_path / 'cities.txt'}"]
    given = ["--plugin", plugin, "train", train, *given, "--own-features", "short", *bare, "-o", tmp_path / "run"]
    assert run(given, capsys)[0] == 0
    new.write_text("in New York")
    code, out, _ = run(["--plugin", plugin, "predict", tmp_path / "run", new], capsys)
    assert code == 0
    assert [entity["type"] for entity in json.loads(out)["entities"]][:1] == ["LOC"]
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert settings["features"]["gazetteers"]["town"] == ["Rome", "Bern", "New York"]
    names = {name for name, _, _ in bt.LinearChainCRF.load(tmp_path / "run" / "model.safetensors").top_features(100)}
    assert {"cities=S", "town=S", "short"} <= names
    plugin.write_text("import nothing_of_that_name")
    for arguments, words in (
        (["--plugin", plugin, "train", train], "mine.py, line 1: ModuleNotFoundError"),
        (["train", train, "--gazetteer", "none.txt"], "--gazetteer: "),
        (["train", train, "--template", "none.txt"], "--template: "),
        (["train", train, "--own-features", "long"], "--own-features must be"),
        (["train", train, "--feature-columns", "lemma"], "there is no column 'lemma'"),
    ):
        code, out, err = run([*arguments, "-o", tmp_path / "no"], capsys)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_text_of_another_language_warns(trained, data, tmp_path, capsys):
    path = tmp_path / "fremd.txt"
    path.write_text("Am Donnerstag um vier Uhr spricht Frau Professor Müller über Märkte und ihre Geschichte . " * 3)
    code, _, err = run(["predict", trained, path], capsys)
    assert (code, err.count("\n")) == (0, 1)
    assert "fremd.txt: only 6 of 45 tokens" in err
    assert "are words of the training texts" in err
    assert run(["predict", trained, data / "raw.txt"], capsys)[2] == ""


def test_known_labels_stay(trained, data, tmp_path, capsys):
    lines = (data / "test.conll").read_text().splitlines()
    rows = [line.split() for line in lines]
    place = next(i for i, row in enumerate(rows) if len(row) > 1 and row[-1] == "O" and row[0] != "-DOCSTART-")
    rows = [[*row[:-1], "?"] if len(row) > 1 and row[0] != "-DOCSTART-" else row for row in rows]
    rows[place][-1] = "B-location"
    (tmp_path / "part.conll").write_text("\n".join(map(" ".join, rows)) + "\n")
    code, out, err = run(["predict", trained, tmp_path / "part.conll", "--known", "-p"], capsys)
    assert (code, err) == (0, "")
    assert out.splitlines()[place].split()[1:] == ["1.0000", "B-location"]
    free = run(["predict", trained, data / "test.conll"], capsys)[1].splitlines()
    assert [line.split()[0] for line in free if line] == [line.split()[0] for line in out.splitlines() if line]
    (tmp_path / "part.conll").write_text("Rome B-CITY\n")
    code, out, err = run(["predict", trained, tmp_path / "part.conll", "--known"], capsys)
    assert (code, out) == (2, "")
    assert "token 1 ('Rome'): the tag 'B-CITY' is neither a label of the model" in err


def test_known_labels_of_graphs_stay(data, tmp_path, capsys):
    assert run(["train", data / "graphs.jsonl", *QUICK, "-o", tmp_path / "run"], capsys)[0] == 0
    record = {"nodes": [[0.0], [0.0], [1.0]], "edges": [[0, 1], [1, 2]], "labels": [1, -1, -1]}
    (tmp_path / "some.jsonl").write_text(json.dumps(record) + "\n")
    code, out, err = run(["predict", tmp_path / "run", tmp_path / "some.jsonl", "--known"], capsys)
    assert (code, err, json.loads(out)["labels"][0]) == (0, "", 1)
    assert json.loads(run(["predict", tmp_path / "run", tmp_path / "some.jsonl"], capsys)[1])["labels"][0] == 0


def graph_files(folder):
    """Graphs as JSON lines: to learn from, with edge features, and to be scored on."""
    graphs = random_graphs(8)
    write_graph_lines(folder / "train.jsonl", graphs)
    records = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return records


def write_records(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda labels: [-1, *labels[1:]],
            "scores.jsonl, line 1: labels[0] is -1, an unknown label; scores need every",
        ),
        (lambda labels: [str(label) for label in labels], "'0' and the other labels are not among the model's labels"),
        (lambda labels: [label + 5 for label in labels], "and the other labels are not among the model's labels (0, 1"),
    ],
)
def test_graphs_whose_labels_cannot_be_scored_are_refused(change, message, tmp_path, capsys):
    records = graph_files(tmp_path)
    wrong = [record | {"labels": change(record["labels"])} for record in records]
    scores = write_records(tmp_path / "scores.jsonl", wrong)
    assert run(["train", tmp_path / "train.jsonl", *QUICK, "-o", tmp_path / "run"], capsys)[0] == 0
    assert run(["pack", tmp_path / "train.jsonl", "-o", tmp_path / "pack"], capsys)[0] == 0
    for command in (
        ["evaluate", tmp_path / "run", scores],
        ["train", tmp_path / "train.jsonl", "--test", scores, "-o", tmp_path / "other"],
        ["train", tmp_path / "pack", "--test", scores, "-o", tmp_path / "other"],
    ):
        code, _, err = run(command, capsys)
        assert code == 2
        assert message in err
    assert not (tmp_path / "other").exists()


def test_tags_that_a_model_of_a_pack_cannot_have_are_refused_before_learning(tmp_path, capsys):
    (tmp_path / "train.conll").write_text("Rome B-LOC\nfell O\n")
    (tmp_path / "test.conll").write_text("Rome NNP\nfell VBD\n")
    assert run(["pack", tmp_path / "train.conll", "-o", tmp_path / "pack"], capsys)[0] == 0
    command = ["train", tmp_path / "pack", "--test", tmp_path / "test.conll", "-o", tmp_path / "run"]
    code, _, err = run(command, capsys)
    assert code == 2
    assert "not among the model's labels" in err
    assert not (tmp_path / "run").exists()


def test_a_pack_of_graphs_with_unknown_labels_says_what_to_do(tmp_path, capsys):
    records = graph_files(tmp_path)
    records[3]["labels"][0] = -1
    path = write_records(tmp_path / "unknown.jsonl", records)
    code, _, err = run(["pack", path, "-o", tmp_path / "pack"], capsys)
    assert code == 2
    assert "unknown.jsonl, line 4: some labels are unknown, and a pack needs every label; train from files" in err
    assert not (tmp_path / "pack").exists()


def test_labels_of_two_kinds_are_refused_by_line(tmp_path, capsys):
    records = graph_files(tmp_path)
    records[5]["labels"] = [bool(label) for label in records[5]["labels"]]
    path = write_records(tmp_path / "mixed.jsonl", records)
    for command in (["train", path, "-o", tmp_path / "run"], ["pack", path, "-o", tmp_path / "pack"]):
        code, _, err = run(command, capsys)
        assert code == 2
        assert "mixed.jsonl, line 6: labels are booleans, expected integers as in" in err


@pytest.mark.parametrize("edge_features", [False, True])
def test_graphs_without_nodes_or_edges_in_files(edge_features, tmp_path, capsys):
    records = graph_files(tmp_path)
    if edge_features:
        rng = np.random.default_rng(0)
        records = [record | {"edge_features": rng.random((len(record["edges"]), 2)).tolist()} for record in records]
    empty = {"nodes": [], "edges": [], "labels": []} | ({"edge_features": []} if edge_features else {})
    lonely = empty | {"nodes": [[0.3]], "labels": [1]}
    path = write_records(tmp_path / "some.jsonl", [empty, lonely, *records, empty])
    for name in ("run", "packed"):
        if name == "packed":
            assert run(["pack", path, "--chunk", 1, "-o", tmp_path / "pack"], capsys)[0] == 0
            path = tmp_path / "pack"
        command = ["train", path, "--test", tmp_path / "some.jsonl", "--tolerance", "1e-6", "--no-report"]
        assert run([*command, "-o", tmp_path / name], capsys)[0] == 0
    models = [bt.GraphCRF.load(tmp_path / name / "model.safetensors") for name in ("run", "packed")]
    np.testing.assert_allclose(models[0].weights_, models[1].weights_, atol=1e-4)
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    assert list(scores["labels"]) == ["0", "1"]
    assert scores["nodes"] == 1 + sum(len(record["labels"]) for record in records)
    code, out, _ = run(["predict", tmp_path / "run", write_records(tmp_path / "empty.jsonl", [empty])], capsys)
    assert (code, json.loads(out)["labels"]) == (0, [])


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def test_byte_order_marks_are_no_part_of_a_text(data, tmp_path, capsys):
    (tmp_path / "marked").mkdir()
    for file in (data / "train").iterdir():
        (tmp_path / "marked" / file.name).write_bytes(BYTE_ORDER_MARK + file.read_bytes())
    for name, folder in (("plain", data / "train"), ("bom", tmp_path / "marked")):
        assert run(["train", folder, *QUICK, "-o", tmp_path / name], capsys)[0] == 0
    models = [bt.LinearChainCRF.load(tmp_path / name / "model.safetensors") for name in ("plain", "bom")]
    assert list(models[0].feature_names_) == list(models[1].feature_names_)
    np.testing.assert_array_equal(models[0].weights_, models[1].weights_)
    text = (data / "raw.txt").read_bytes()
    for form in ("text", "lines"):
        found = []
        for mark in (b"", BYTE_ORDER_MARK):
            (tmp_path / "raw.txt").write_bytes(mark + text)
            found.append(run(["predict", tmp_path / "plain", tmp_path / "raw.txt", "--input", form], capsys)[1])
        assert found[0] == found[1]


def test_hidden_files_say_nothing_of_the_form_of_a_folder(data, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.conll").write_bytes((data / "train.conll").read_bytes())
    (tmp_path / "folder" / ".DS_Store").write_bytes(b"\0\1 hidden")
    assert run(["train", tmp_path / "folder", *QUICK, "-o", tmp_path / "run"], capsys)[0] == 0


def test_graphs_whose_labels_are_minus_one_and_one(tmp_path, capsys):
    """The advice is one that a file can follow."""
    graphs = [(features, edges, 2 * labels - 1) for features, edges, labels in random_graphs(4)]
    write_graph_lines(tmp_path / "graphs.jsonl", graphs)
    code, _, printed = run(["train", tmp_path / "graphs.jsonl", "-o", tmp_path / "run"], capsys)
    said = " ".join(printed.split())
    assert code == 2
    assert "graphs.jsonl holds -1, which stands for an unknown label, and no class but 1" in said
    assert "number the classes from 0" in said
    assert "labels=" not in said
    assert "None" not in said
    assert not (tmp_path / "run").exists()


# --- what files of others bring ---


def test_tabs_stay_tabs_and_names_count_once(trained, data, tmp_path, capsys):
    given = (data / "test.conll").read_text(encoding="utf-8")
    tabbed = tmp_path / "tabbed.conll"
    tabbed.write_text(given.replace(" ", "\t"), encoding="utf-8")
    code, out, err = run(["predict", trained, tabbed, "--input", "columns"], capsys)
    assert (code, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines() if line and "DOCSTART" not in line]
    assert {len(row) for row in rows} == {3}
    plain = run(["predict", trained, data / "test.conll", "--input", "columns"], capsys)[1]
    assert out.replace("\t", " ") == plain
    scores = json.loads(run(["evaluate", trained, tabbed, "--json"], capsys)[1])
    names = [set(), set()]
    for document in read_columns(data / "test.conll"):
        names[0] |= {(found.type, found.text) for found in find_entities(document)}
    position = 0
    for document in read_columns(data / "test.conll"):
        tags = [row[2] for row in rows[position : position + len(document)]]
        names[1] |= {(found.type, found.text) for found in find_entities(document, tags)}
        position += len(document)
    assert scores["surface"]["support"] == len(names[0])
    assert scores["surface"]["precision"] == pytest.approx(len(names[0] & names[1]) / len(names[1]))


def test_a_type_that_the_model_lacks_is_named(trained, data, tmp_path, capsys):
    other = tmp_path / "other.conll"
    other.write_text((data / "test.conll").read_text(encoding="utf-8").replace("-speaker", "-guest"), encoding="utf-8")
    code, _, err = run(["evaluate", trained, other], capsys)
    assert code == 0
    assert "the model has no labels of type guest" in " ".join(err.split())


def test_a_long_document_is_shown_by_its_sentences(data, tmp_path, capsys):
    lines = [line for line in (data / "train.conll").read_text(encoding="utf-8").splitlines() if "DOCSTART" not in line]
    whole = tmp_path / "whole.conll"
    whole.write_text("\n".join(lines * 4) + "\n", encoding="utf-8")
    code, _, _ = run(["train", data / "train.conll", "--dev", whole, *QUICK[:2], "-o", tmp_path / "run"], capsys)
    assert code == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "whole.conll#1, sentence 2" in page
