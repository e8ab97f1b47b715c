"""Where commands write: links, devices, folders that cannot be replaced, and folders that others fill meanwhile."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bactrian.atomic_files import atomic_file, atomic_folder
from bactrian.cli import main

posix = pytest.mark.skipif(os.name != "posix", reason="needs links and devices")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a table and a text."""
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text("age,smoker\nold,yes\nyoung,no\nold,no\n")
    Path("t.conll").write_text("Ada B-PER\nspoke O\n\nBob B-PER\nsaw O\nAda B-PER\n")
    return tmp_path


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


FIT, TRAIN, PACK = ("fit", "s.csv"), ("train", "t.conll", "--no-report"), ("pack", "t.conll")
COMMANDS = pytest.mark.parametrize("command", [FIT, TRAIN, PACK], ids=lambda command: command[0])
MODEL = {"fit": "field.safetensors", "train": "model.safetensors", "pack": "pack.json"}


@posix
@COMMANDS
@pytest.mark.parametrize("target", ["missing", "empty", "deep/missing"])
def test_a_folder_ends_where_the_link_points(command, target, folder):
    if target == "empty":
        Path(target).mkdir()
    Path("link").symlink_to(target)
    assert call(*command, "-o", "link") == 0
    assert Path("link").is_symlink()
    assert (folder / target / MODEL[command[0]]).is_file()
    assert not list(folder.rglob(".*"))


@posix
@COMMANDS
@pytest.mark.parametrize("what", ["a full folder", "a circle", "the working folder", "a file", "a folder of a file"])
def test_what_cannot_be_filled_is_refused_before_work(command, what, folder, capsys):
    output = Path("link")
    if what == "a full folder":
        Path("full").mkdir()
        Path("full/notes.txt").touch()
        output.symlink_to("full")
    elif what == "a circle":
        output.symlink_to("link")
    elif what == "the working folder":
        output = Path(".")
    elif what == "a file":
        output.symlink_to("s.csv")
    else:
        output = Path("s.csv/run")
    before = sorted(folder.rglob("*"))
    assert call(*command, "-o", str(output)) == 2
    err = capsys.readouterr().err
    assert err.startswith("bactrian: ")
    assert err.count("\n") == 1
    assert str(output) in err
    assert sorted(folder.rglob("*")) == before


@posix
def test_refused_data_leave_a_link_as_it_was(folder, capsys):
    Path("link").symlink_to("missing")
    assert call("train", "t.conll", "--no-report", "--method", "exact", "--l1", "-1", "-o", "link") == 2
    Path("bad.conll").write_text("Ada B-PER\n\n" * 3)
    assert call("train", "bad.conll", "--dev", "nowhere", "-o", "link") == 2
    assert Path("link").is_symlink()
    assert not Path("missing").exists()
    capsys.readouterr()


@posix
def test_a_file_ends_where_the_link_points(folder):
    Path("old").write_text("old")
    Path("link").symlink_to("old")
    with pytest.raises(TypeError), atomic_file("link") as stream:
        stream.writelines([b"half", "text"])
    assert Path("old").read_text() == "old"
    with atomic_file("link") as stream:
        stream.write(b"new")
    assert Path("link").is_symlink()
    assert Path("old").read_text() == "new"
    assert sorted(path.name for path in folder.iterdir()) == ["link", "old", "s.csv", "t.conll"]


@posix
def test_pipes_are_written_to_and_never_replaced(folder, capsys):
    """As devices are; for root, a device that is replaced is gone for everybody."""
    assert call("fit", "s.csv", "-o", "run") == 0
    os.mkfifo("pipe")
    with open(os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        assert call("sample", "run", "-n", "2", "-o", "pipe") == 0
        assert reader.read().count("\n") == 3
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    Path("link").symlink_to("/dev/stdout")
    command = [sys.executable, "-m", "bactrian", "sample", "run", "-n", "2", "-o", "link"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.count("\n")) == (0, 3), done.stderr
    assert Path("link").is_symlink()


def test_what_is_damaged_or_too_much_is_one_line(folder, capsys):
    assert call("fit", "s.csv", "-o", "field") == 0
    assert call(*TRAIN, "-o", "run") == 0
    Path("run/model.safetensors").write_text("damaged")
    Path("circle").symlink_to("circle")
    capsys.readouterr()
    for arguments, words in (
        (("train", "--resume", "run"), "run/model.safetensors: the file is truncated"),
        (("report", "circle"), "circle is not a run folder"),
        (("sample", "field", "-n", "100000000000000"), "out of memory"),
    ):
        assert call(*arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("bactrian: ")
        assert err.count("\n") == 1
        assert words in err


def test_names_as_long_as_a_system_takes_are_written(folder):
    longest = "n" * 255
    with atomic_folder(folder / longest) as draft:
        (draft / "file").touch()
    assert (folder / longest / "file").is_file()
    with atomic_file(folder / ("f" * 255)) as stream:
        stream.write(b"content")
    assert (folder / ("f" * 255)).read_bytes() == b"content"


def test_the_second_of_two_that_fill_a_folder_is_told(folder):
    words = "run was filled by another process meanwhile; choose another name"
    theirs = Path("run/theirs")
    with pytest.raises(ValueError, match=words), atomic_folder(Path("run")):
        os.renames("s.csv", theirs)
    assert [path.name for path in Path("run").iterdir()] == ["theirs"]
    assert sorted(path.name for path in folder.iterdir()) == ["run", "t.conll"]
