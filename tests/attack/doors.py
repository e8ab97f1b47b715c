"""Doors of the command line: commands with options, inputs and outputs as careless or malicious hands give them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mutations import mutated

SURVEY = "age,smoker,lung\nyoung,yes,ill\nold,yes,ill\nold,no,well\nyoung,no,well\nold,yes,well\n"
COLUMNS = "Ada B-PER\nspoke O\n\nBob B-PER\nsaw O\nRome B-LOC\n\nAda B-PER\nleft O\n"
MARGINS = "sex,vote,count\nf,yes,30\nf,no,10\nm,yes,20\nm,no,40\n"
UAI = "MARKOV\n3\n2 2 2\n3\n2 0 1\n2 1 2\n1 2\n4\n1.5 0.5 0.2 2.0\n4\n1.0 0.3 0.4 1.2\n2\n0.7 1.1\n"
EVIDENCE = "1 0 1\n"
GRAPH = {"nodes": [[0.5, 1.0], [1.5, -1.0], [0.1, 0.2]], "edges": [[0, 1], [1, 2]], "labels": [0, 1, 0]}
GRAPHS = "\n".join(json.dumps({**GRAPH, "name": name}) for name in ("a", "b")) + "\n"
#: Files of the kit by name; any of them may turn up where another is expected.
FILES = {
    "survey.csv": SURVEY.encode(),
    "train.conll": COLUMNS.encode(),
    "margins.csv": MARGINS.encode(),
    "model.uai": UAI.encode(),
    "seen.evid": EVIDENCE.encode(),
    "graphs.jsonl": GRAPHS.encode(),
    "letter.txt": b"Ada spoke in Rome. Bob left.\n",
}
#: Contents that are of no kind that a command reads.
FOREIGN = {
    "nothing": b"",
    "lines without anything": b"\n\n\r\n\n",
    "a picture": b"\x89PNG\r\n\x1a\n" + zlib.compress(bytes(200)),
    "an archive": gzip.compress(SURVEY.encode()),
    "zeros": bytes(500),
    "noise": np.random.default_rng(0).bytes(500),
    "a page": b"<!doctype html><title>x</title><p>Hello",
    "an endless word": b"x" * 300_000,
    "an endless line": b"a," * 20_000 + b"a\n",
    "brackets": b"[" * 5000,
    "a number": b"17",
}
#: Tables that people have.
TABLES = {
    "two columns of a name": "a,a\n0,1\n1,0\n",
    "a column without a name": "a,\n0,1\n1,0\n",
    "a short line": "a,b,c\n0,1\n1,0,1\n",
    "a long line": "a,b\n0,1,1\n1,0\n",
    "an open quote": 'a,b\n"0,1\n1,0\n',
    "quotes": '"a ""x""","b,c"\n"yes, no",1\n"line\nbreak",0\n',
    "semicolons": "a;b\n0;1\n1;0\n",
    "names alone": "a,b\n",
    "one column": "a\n0\n1\n1\n",
    "one row": "a,b\n0,1\n",
    "one state": "a,b\n0,0\n0,0\n",
    "minus one": "a,b\n-1,1\n1,-1\n-1,-1\n1,1\n",
    "minus one and more": "a,b\n-1,0\n1,-1\n0,1\n1,1\n",
    "fractions": "a,b\n0.5,1e3\n1.5,2e3\n",
    "not numbers": "a,b\nnan,inf\n-inf,NaN\nx,y\n",
    "all missing": "a,b\n?,NA\n,?\n",
    "a column missing": "a,b\n0,\n1,\n0,NA\n",
    "spaces": " a , b \n 0 , 1 \n 1 , 0 \n",
    "numbers of many digits": "a,b\n99999999999999999999999,1\n0,1\n",
    "letters of all kinds": "größe,色\nklein,赤\ngroß,青\n\u202eabc,🐫\n",
    "markup": "[bold]a[/bold],<b>b</b>\n[red]x,</td>\n{{ y }},&amp;\n",
    "true and 1": "a,b\nTrue,1\n1,0\nfalse,1\n",
    "zeros before": "a,b\n007,1\n7,0\n",
    "a name of a keyword": "count,stddev\n1,2\n3,4\n",
    "comments": "# made by hand\na,b\n0,1\n",
}
#: Options, good and bad, one to a word.
_SETTINGS = """--method=exact --method=cccp --method=pseudolikelihood --method=nonsense --method= --method=EXACT
    --seed=3 --seed=-1 --seed=x --seed=99999999999999999999"""
_LIMITS = """--max-iterations=5 --max-iterations=0 --max-iterations=-3 --max-iterations=many --tolerance=0
    --tolerance=-1 --tolerance=nan --max-seconds=0 --max-seconds=nan --max-seconds=60"""
_FIELD = """--prior-variance=1 --prior-variance=0 --prior-variance=-1 --prior-variance=nan --prior-variance=1e-300
    --prior-variance=1e300 --seconds=60 --seconds=-1 --memory=0 --memory=1e-9 --memory=64 --starts=2 --starts=0
    --edge=age,smoker --edge=age --edge=age,age --edge=age,income --edge= --hidden=kind=2 --hidden=kind --hidden=kind=1
    --hidden=age=2 --hidden=kind=x --hidden=kind=-2 --hidden==2 --hidden=kind=100000000000"""
_TRAIN = """--model=chain --model=skip-chain --model=graph --model=tree --prior-variance=auto --prior-variance=-1
    --prior-variance=x --l1=0.1 --l1=-1 --dev=dev.conll --dev=train.conll --checkpoint-every=2 --checkpoint-every=-1
    --encoding=utf-8 --encoding=klingon --threads=0 --tokenizer=x --config=no.toml --config=survey.csv --resume=chain"""
_QUESTIONS = (
    "P(lung)", "P(lung | smoker=yes)", "P(lung=ill, age=old)", "P(", "", "P()", "P(lung | )", "P(income)", "P(lung=7)",
    "P(lung=ill | lung=well)", "P(lung) P(age)", "lung", "P(lung | smoker)", "P(" + "lung," * 3000 + "lung)",
)  # fmt: skip
_STRANGE = ("--nonsense", "--", "-", "", "-x", "--output", "-o", "--help", "\u00e9\u202e", "two words", "[bold]")


@dataclass(frozen=True)
class Door:
    """A command: its arguments with ``IN`` and ``OUT`` in them, the input, and options of which some are added."""

    arguments: tuple[str, ...]
    input: str  #: a file or folder of the kit
    options: tuple[str, ...]
    writes: str  #: "folder", "file", "run" (the one that it is given) or "nothing"


def _door(arguments: str, given: str, options: str, writes: str = "folder") -> Door:
    return Door(tuple(arguments.split()), given, tuple(options.split()), writes)


DOORS = {
    "fit": _door("fit IN -o OUT", "survey.csv", _SETTINGS + " " + _FIELD),
    "train": _door("train IN -o OUT --no-report", "train.conll", f"{_SETTINGS} {_TRAIN} {_LIMITS}"),
    "train graphs": _door("train IN -o OUT --no-report --model graph", "graphs.jsonl", _LIMITS),
    "pack": _door("pack IN -o OUT", "train.conll", "--chunk=1 --chunk=0 --model=skip-chain --l1=1"),
    "rake": _door(
        "rake IN -o OUT",
        "margins.csv",
        """--total=50 --total=0 --total=nan --total=1e308 --base=margins.csv --base=no.csv --base=survey.csv
        --entropy-weight=0 --entropy-weight=-1 --method=cccp --method=nonsense""",
    ),
    "query": Door(("query", "IN"), "field", _QUESTIONS, "nothing"),
    "sample": _door(
        "sample IN -o OUT",
        "field",
        "-n=3 -n=0 -n=-1 -n=x --number=5 --number=100000000000000 --seed=4 --seed=-4 --independent",
        "file",
    ),
    "predict": _door(
        "predict chain IN -o OUT",
        "letter.txt",
        """--input=text --input=columns --input=lines --input=x --to=json --to=columns --to=tagged --to=x -p --known
        --encoding=utf-8 --encoding=klingon survey.csv no.txt""",
        "file",
    ),
    "predict by": _door("predict IN letter.txt -o OUT", "chain", "-p --known", "file"),
    "evaluate": _door("evaluate chain IN", "train.conll", "--json survey.csv --encoding=x", "nothing"),
    "evaluate by": _door("evaluate IN train.conll", "chain", "--json", "nothing"),
    "report": _door("report IN -o OUT", "chain", "chain field survey.csv", "file"),
    "resume": _door("train --resume IN", "chain", _LIMITS + " --no-report --l1=1 train.conll", "run"),
    "infer": _door(
        "infer IN -o OUT --task=MAR",
        "model.uai",
        """--method=exact --method=bp --method=dual --method=nonsense -e=seen.evid -e=no.evid -e=survey.csv
        --damping=0.5 --damping=1 --damping=-1 --memory-budget=1 --memory-budget=x --threads=1 --threads=0 --task=PR
        --fallback=double-loop --fallback=x """
        + _LIMITS,
        "file",
    ),
    "infer most probable": _door(
        "infer IN -o OUT --task=MPE",
        "model.uai",
        "--method=exact --method=dual --method=rbp --max-seconds=1 --max-iterations=1",
        "file",
    ),
}


@dataclass
class Case:
    """One call in a folder of its own."""

    kind: str
    folder: Path
    arguments: list[str]
    input: Path
    output: str
    intact: bool  #: the input, the output and the options are such that it must work
    notes: list[str] = field(default_factory=list)

    @property
    def door(self) -> Door:
        """The command."""
        return DOORS[self.kind]


def write_kit(folder: Path, run: Callable[[list[str]], int]) -> None:
    """The files, a field and a chain, by the commands themselves."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    at = os.getcwd()
    os.chdir(folder)
    try:
        assert run(["fit", "survey.csv", "-o", "field"]) == 0
        assert run(["train", "train.conll", "--no-report", "-o", "chain"]) == 0
    finally:
        os.chdir(at)


def make_case(number: int, kit: Path, folder: Path) -> Case:
    """The case of a number, laid out in a new folder."""
    rng = np.random.default_rng([6, number])
    kind = list(DOORS)[number % len(DOORS)]
    door, notes = DOORS[kind], []
    shutil.copytree(kit, folder)
    source, output = folder / door.input, "out" if door.writes == "folder" else "out.txt"
    plain_input = rng.random() < 0.5
    if not plain_input:
        source = _spoiled_input(source, rng, notes)
    plain_output = door.writes in ("nothing", "run") or rng.random() < 0.5
    if not plain_output:
        output = _strange_output(folder, output, source, rng, notes)
    arguments = [{"IN": source.name, "OUT": output}.get(word, word) for word in door.arguments]
    if "" in (source.name, output):
        plain_output = False
    chosen: list[str] = []
    if rng.random() < 0.6:
        chosen = [str(option) for option in rng.choice(door.options, size=int(rng.integers(1, 4)))]
    if rng.random() < 0.1:
        chosen.append(_STRANGE[int(rng.integers(len(_STRANGE)))])
    for option in chosen:
        arguments.insert(
            int(rng.integers(1, len(arguments) + 1)) if option.startswith("--") else len(arguments), option
        )
    if kind == "query" and not chosen:
        arguments.append("P(lung | smoker=yes)")
    if rng.random() < 0.03:
        del arguments[int(rng.integers(1, len(arguments)))]
        plain_output = False
    return Case(kind, folder, arguments, source, output, plain_input and plain_output and not chosen, notes)


def _spoiled_input(source: Path, rng: np.random.Generator, notes: list[str]) -> Path:
    """Something else where the input should be; for a run, in one of its files."""
    target = source
    if source.is_dir() and rng.random() < 0.6:
        target = sorted(source.iterdir())[int(rng.integers(len(list(source.iterdir()))))]
    content = target.read_bytes() if target.is_file() else b""
    kinds = ["bytes", "foreign", "other", "folder", "missing", "circle", "dangling", "link", "encoding"]
    if source.suffix == ".csv":
        kinds += ["table"] * 6
    kind = kinds[int(rng.integers(len(kinds)))]
    note = kind
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    if kind == "bytes":
        target.write_bytes(mutated(content, rng))
    elif kind == "foreign":
        note = list(FOREIGN)[int(rng.integers(len(FOREIGN)))]
        target.write_bytes(FOREIGN[note])
    elif kind == "other":
        note = list(FILES)[int(rng.integers(len(FILES)))]
        target.write_bytes(FILES[note])
    elif kind == "folder":
        target.mkdir()
        if rng.random() < 0.5:
            (target / "notes.txt").write_text("hello\n")
    elif kind == "circle":
        target.symlink_to(target.name)
    elif kind == "dangling":
        target.symlink_to("nowhere")
    elif kind == "link":
        (target.parent / "original").write_bytes(content)
        target.symlink_to("original")
    elif kind == "encoding":
        note = ["utf-16", "latin-1", "utf-8-sig", "carriage returns"][int(rng.integers(4))]
        text = content.decode("utf-8", "replace").replace("yes", "jä").replace("Ada", "Adä")
        if note == "carriage returns":
            text, code = text.replace("\n", "\r\n" if rng.random() < 0.5 else "\r"), "utf-8"
        else:
            code = note
        target.write_bytes(text.encode(code, "replace"))
    elif kind == "table":
        note = list(TABLES)[int(rng.integers(len(TABLES)))]
        target.write_text(TABLES[note], encoding="utf-8")
    notes.append(f"{target.name}: {note}")
    return source


def _strange_output(folder: Path, output: str, source: Path, rng: np.random.Generator, notes: list[str]) -> str:
    """An output that is there already, leads elsewhere, or has a strange name."""
    names = {
        "inside a file": "letter.txt/out", "deep": "a/b/c/out", "input": source.name, "here": ".", "above": "..",
        "long": "n" * 300, "longest": "n" * 255, "spaces": " o u t ", "slash": "out/", "nothing": "",
        "letters": "größe-色-🐫",
    }  # fmt: skip
    kinds = ["folder", "full", "file", "to missing", "to folder", "to full", "to file", "circle", *names]
    kind = kinds[int(rng.integers(len(kinds)))]
    notes.append(f"output: {kind}")
    if kind in ("folder", "to folder"):
        (folder / "there").mkdir()
    elif kind in ("full", "to full"):
        (folder / "there").mkdir()
        (folder / "there" / "notes.txt").write_text("mine")
    elif kind in ("file", "to file"):
        (folder / "there").write_text("mine")
    if kind in ("folder", "full", "file"):
        return "there"
    if kind.startswith("to ") or kind == "circle":
        (folder / "link").symlink_to("link" if kind == "circle" else "there")
        return "link"
    return names[kind]
