"""The package as a stranger meets it: its import, its names, its version."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import bactrian


def run_python(code: str) -> str:
    """Standard output of ``code`` in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_takes_less_than_300_milliseconds():
    code = """
from time import perf_counter
start = perf_counter()
import bactrian
print(perf_counter() - start)
"""
    assert min(float(run_python(code)) for _ in range(3)) < 0.3


def test_import_loads_nothing_heavy():
    heavy = {"matplotlib", "numba", "numpy", "rich", "safetensors", "scipy", "sklearn", "typer"}
    loaded = run_python("import sys; import bactrian; dir(bactrian); print(*sys.modules)").split()
    assert "bactrian" in loaded
    assert not heavy.intersection(loaded)


def typed_names():
    """Public names and their modules, as type checkers read them."""
    tree = ast.parse(Path(bactrian.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = {alias.name: node.module for node in imports for alias in node.names}
    return {name: module for name, module in typed.items() if module.startswith("bactrian.")}


def test_every_public_name_has_a_module_and_the_other_way_round():
    assert {*typed_names(), "__version__"} == set(bactrian.__all__)
    assert set(bactrian.__all__) <= set(dir(bactrian))


@pytest.mark.parametrize("name", bactrian.__all__)
def test_public_name_resolves(name):
    value = getattr(bactrian, name)
    assert getattr(bactrian, name) is value


def test_type_checkers_see_the_same_modules():
    for name, module in typed_names().items():
        assert getattr(bactrian, name) is getattr(import_module(module), name)


#: Attributes that begin with an underscore and are public: of named tuples, sys, os, and torch.compile.
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_getframe", "_exit", "_dynamo"}


def private_names(tree):
    """Names with an underscore that a module imports, patches or reads of anything but ``self`` and ``cls``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
            yield node.value.split(".")[-1]  # as monkeypatch takes them


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_none_reaches_for_a_private_name(folder):
    found = []
    for file in sorted((Path(__file__).parents[2] / folder).rglob("*.py")):
        if "judges" not in file.parts:
            names = set(private_names(ast.parse(file.read_text(encoding="utf-8")))) - DOCUMENTED
            found += [f"{file.name}: {name}" for name in sorted(names) if re.match(r"_[A-Za-z]", name)]
    assert found == []


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'dromedary'"):
        bactrian.dromedary  # noqa: B018


def test_version_is_the_installed_one():
    assert bactrian.__version__ == version("bactrian")


def test_what_a_session_prints_of_data_and_solutions():
    graph = bactrian.ClusterGraph([2, 2], [(0, 1)])
    model = bactrian.LogLinearModel(graph, [[[1.0], [0.0], [0.0], [1.0]]])
    data = bactrian.Samples(model, [[0, 0], [1, 1], [0, 1]])
    assert repr(data) == "Samples(LogLinearModel(2 variables, 1 clusters, 1 weights), 3 samples)"
    assert repr(bactrian.Instance(model, [0, 1])) == "Instance(LogLinearModel(2 variables, 1 clusters, 1 weights))"
    shown = repr(bactrian.learn(data))
    assert "CONVERGED" in shown
    assert "Record(" not in shown
