"""The commands and code that README.md and the pages of docs/ print: they run as printed, in an empty folder.

Blocks called ``bash`` of one page run one after the other in one folder. Blocks called ``sh`` show commands that need
something of the reader's (a checkout, a model, minutes): here they are given it, or looked at.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bactrian.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if (ROOT / "docs").is_dir() else []
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)

#: A model for the page on UAI files: two variables, one table, the first observed.
UAI = {"model.uai": "MARKOV\n2\n2 2\n1\n2 0 1\n4\n 1.0 2.0 3.0 4.0\n", "model.uai.evid": "1 0 1\n"}


def blocks(page, kind):
    return [code for name, code in FENCE.findall(page.read_text(encoding="utf-8")) if name.strip() == kind]


def name_of(page):
    return str(page.relative_to(ROOT))


def environment():
    """Commands are those of the interpreter that runs the tests."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def commands(code):
    """The lines of a block, comments removed, continued lines joined."""
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run(code, folder):
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")], ids=name_of)
def test_blocks_that_run(page, tmp_path):
    for code in blocks(page, "bash"):
        run(code, tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh") or blocks(page, "bash")], ids=name_of)
def test_commands_exist_with_their_options(page):
    """Every ``bactrian`` command names options that it has, and every ``make`` target is one."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for code in [*blocks(page, "sh"), *blocks(page, "bash")]:
        code = re.sub(r"<<'END'\n.*?\nEND$", "", code, flags=re.MULTILINE | re.DOTALL)
        for words in commands(code):
            if "bactrian" in words:
                known = options_of(words[words.index("bactrian") + 1 :])
                used = [
                    word.partition("=")[0] for word in words[words.index("bactrian") :] if re.match("--?[a-z]", word)
                ]
                assert set(used) <= known, words
            elif words[0] == "make":
                assert set(words[1:]) <= set(targets), words


def options_of(words):
    """Options of the command that ``words`` begin with."""
    import typer

    command = typer.main.get_command(app)
    common = {option for parameter in command.params for option in parameter.opts}
    while words[0] in common:
        words = words[2:]
    while getattr(command, "commands", None):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return found | common | {"-h", "--help"}


@pytest.mark.slow
def test_the_page_on_uai_files(tmp_path):
    page = ROOT / "docs" / "uai.md"
    for name, content in UAI.items():
        (tmp_path / name).write_text(content)
    for code in blocks(page, "sh"):
        run(code, tmp_path)
    assert (tmp_path / "out.MAR").read_text().split()[:2] == ["MAR", "2"]
    for code in blocks(page, "python"):
        run(f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}", tmp_path)


def test_the_code_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), {})  # what a reader would type
    alone, together, *rest = capsys.readouterr().out.splitlines()
    assert (f"{float(alone):.2f}", f"{float(together):.3f}") == ("0.64", "0.997")  # as the page says
    assert rest[0] == "converged"
    assert any(line.startswith("converged True") for line in rest)
    assert not list(tmp_path.iterdir())


def test_the_readme_names_learners_that_exist():
    from bactrian.learners.learn import METHODS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| `method` |") :].split("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`([a-z0-9-]+)`", line.split("|")[1])}
    assert named == set(METHODS)
