"""What is installed with the library is what it needs: no less for its commands, and nothing undeclared."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Modules whose distribution has another name.
MODULES = {"scikit-learn": "sklearn", "scikit-image": "skimage"}

_COMMANDS = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from bactrian.cli import main
main(sys.argv[2:])
"""


def modules(requirements):
    """Names under which what is required is imported."""
    names = [re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements]
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def test_every_import_is_declared():
    extras = (PROJECT["optional-dependencies"][name] for name in ("report", "mpi", "torch", "vision"))
    declared = modules(PROJECT["dependencies"]).union(*map(modules, extras))
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    brought = {"triton", "llvmlite", "joblib"}  # by PyTorch, Numba and scikit-learn
    assert found - set(sys.stdlib_module_names) - {"bactrian"} <= declared | brought


@pytest.mark.parametrize(
    "commands",
    [[["fit", "survey.csv", "-o", "field"]], [["train", "train.conll", "-o", "run"], ["report", "run"]]],
    ids=["fit", "train and report"],
)
def test_a_plain_install_fits_trains_and_reports(commands, tmp_path):
    """With nothing but the dependencies of the core; what these bring along may be there too."""
    core = modules(PROJECT["dependencies"])
    others = set().union(*map(modules, PROJECT["optional-dependencies"].values())) | {"PIL"}
    missing = ",".join(others - core - {"bactrian"})
    (tmp_path / "survey.csv").write_text("age,smoker\nold,yes\nyoung,no\nold,no\n")
    (tmp_path / "train.conll").write_text("Ada B-PER\nspoke O\n\nBob B-PER\nsaw O\nAda B-PER\n")
    for arguments in commands:
        command = [sys.executable, "-c", _COMMANDS, missing, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        (tmp_path / arguments[-1] / "report.html").unlink()  # which was there
