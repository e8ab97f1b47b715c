"""Kernels where nothing can be written, and where nothing is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: As for a user who may write neither beside the sources nor to a home: of Numba's places a named folder is left.
_PRODUCT = """
from numba.core import caching

places = (getattr(caching, "CacheImpl", None) or caching._CacheImpl)._locator_classes
places[:] = [place for place in places if "UserProvided" in place.__name__]

import numpy as np
from bactrian.engines.numba.sparse import rows_times_weights

out = np.zeros(1)
inputs = np.array([0, 1]), np.array([0], dtype=np.int32), np.array([3.0])
rows_times_weights(inputs, np.array([2.0]), out, 1, 0, 1, ())
print(out[0])
"""


def run_read_only(scratch: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["TMPDIR"] = str(scratch)
    command = [sys.executable, "-c", _PRODUCT]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_read_only_installation_keeps_kernels_in_a_folder_of_its_own(tmp_path: Path) -> None:
    done = run_read_only(tmp_path)
    assert done.stdout == "6.0\n", done.stderr
    assert done.stderr.count("bactrian can write neither to its own folder") == 1
    (folder,) = tmp_path.glob("bactrian-*")
    assert f"compiled functions are kept in {folder}" in done.stderr
    assert list(folder.rglob("*.nbi"))
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / f"bactrian-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    done = run_read_only(tmp_path)
    assert done.stdout == "6.0\n", done.stderr
    assert "compiled functions are compiled anew by every process" in done.stderr
    assert not list(folder.iterdir())


_LEARNING = """
import warnings
import numpy as np
import bactrian as bt
from bactrian.camel.accuracy import SCHEDULE

warnings.simplefilter("error")
warnings.simplefilter("ignore", bt.ConvergenceWarning)
graphs = [([[1.0, 0.0], [0.0, 0.3], [0.5, 0.1]], [(0, 1), (1, 2), (0, 2)]), ([[0.2, 1.0], [0.3, 0.0]], [(0, 1)])]
y = [[0, 1, 2], [0, 1]]
found = []
# Rounding decides which of two hubs with equal residuals is updated first, and so where within its tolerance residual
# belief propagation stops: what is compared is its fixed point.
closely = {"tolerance": 1e-12}
for worth_compiling in (SCHEDULE.worth_compiling, 1):  # small graphs take the fastest route, too
    object.__setattr__(SCHEDULE, "worth_compiling", worth_compiling)
    for method in (
        bt.Camel(entropy="convex"), bt.Camel(tight=True), bt.Camel(tighten=2), bt.Camel("clusters", solver="joint"),
        "piecewise", "camel0", "cccp", "cccp-empirical", "lbp", "trw", "exact", "pseudolikelihood",
        "piecewise-pseudolikelihood",
    ):
        crf = bt.GraphCRF(method=method, tables="full", max_iterations=4, seed=1, inference_options=closely)
        crf.fit(graphs, y)
        found += [crf.weights_, *map(np.ravel, crf.predict_marginals(graphs))]
rng = np.random.default_rng(2)
for clusters in ([(0, 1), (1, 2), (0, 2), (2, 3)], [(0, 1, 2), (2, 3), (1,), (3,)], [(0, 1), (1, 2), (1, 3)]):
    graph = bt.ClusterGraph([2, 3, 2, 2], clusters)
    sizes = [int(np.prod([[2, 3, 2, 2][v] for v in cluster])) for cluster in clusters]
    model = bt.LogLinearModel(graph, [rng.normal(size=(n, 2)) for n in sizes])
    base = [np.where((np.arange(n) == 1) & (n > 2), -np.inf, 0.0) for n in sizes]
    for limited in (model, bt.LogLinearModel(graph, model.features, base)):
        for method in ("exact", "bp", "rbp", "trw", "convex", "double-loop", "mean-field", "gibbs"):
            more = {"n_samples": 20, "burn_in": 5} if method == "gibbs" else {"max_iterations": 20}
            more = {"max_iterations": 1000, **closely} if method == "rbp" else more
            result = bt.infer(limited, [0.5, -1.0], method, evidence={3: 1}, seed=3, **more)
            found += list(result.variables)
        for schedule in ("parallel", "sequential"):
            options = {"schedule": schedule, "damping": 0.3, "max_iterations": 20}
            found += list(bt.infer(limited, [0.5, -1.0], "bp", **options).variables)
        for method in ("exact", "max-product", "max-marginals", "dual"):
            found.append(bt.decode(limited, [0.5, -1.0], method))
    found.append(bt.learn(bt.Samples(model, [[0, 1, 1, 0], [1, 2, 0, 1]]), "cccp", max_iterations=5).weights)
pair = bt.ClusterGraph([2, 2], [(0, 1), (0,), (1,)])
full = bt.LogLinearModel(pair, [np.eye(8)[k] for k in ([0, 1, 2, 3], [4, 5], [6, 7])])
nodes = [np.zeros((4, 4)), np.eye(4)[:2], np.eye(4)[2:]]
fixed = bt.LogLinearModel(pair, nodes, [np.array([0.5, 0.0, 0.0, 0.5]), np.zeros(2), np.zeros(2)])
for method, model in (("ups", fixed), ("pseudo-moments", full)):
    samples = bt.Samples(model, [[0, 0], [1, 1], [0, 1], [1, 0], [0, 0]])
    found.append(bt.learn(samples, method, prior_variance=None).weights)
chain = bt.LinearChainCRF(max_iterations=5).fit([[["a"], ["b"], ["a"]]], [["x", "y", "x"]])
found += [chain.weights_, *map(np.ravel, chain.predict_marginals([[["a"], ["b"]]]))]
print(" ".join(repr(float(number)) for part in found for number in part))
"""


@pytest.mark.slow
def test_kernels_as_python_do_the_same() -> None:
    """``NUMBA_DISABLE_JIT=1``, for debuggers; the compiled kernels are the judge."""
    numbers = []
    for value in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": value}
        done = subprocess.run([sys.executable, "-c", _LEARNING], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        numbers.append([float(word) for word in done.stdout.split()])
    assert len(numbers[0]) > 100
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-5, abs=1e-7)


_RENAMED = """
from typing import NamedTuple
from bactrian.compiling import kernel

class NAME(NamedTuple):
    value: float

@kernel()
def double(x):
    return 2.0 * x.value

print(double(NAME(1.5)))
"""


def test_kernels_that_an_earlier_version_compiled(tmp_path: Path) -> None:
    """The index of compiled functions names types; one that is gone must not keep the function from running."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    for name in ("Before", "Later"):
        (tmp_path / "kernels.py").write_text(_RENAMED.replace("NAME", name))
        command = [sys.executable, "-c", "import kernels"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.stdout == "3.0\n", done.stderr
    assert list((tmp_path / "cache").rglob("*.nbi"))


_RECORDS = """
import sys
from typing import NamedTuple
import numpy as np
from bactrian.compiling import kernel, njit, record

class Own(NamedTuple):
    x: np.ndarray
    n: int

class Whole(NamedTuple):
    own: Own
    y: np.ndarray

HeldOwn, HeldWhole = record(Own), record(Whole)

@njit()
def add_up(whole, own):
    whole.y[0] += own.n
    return whole.own.x[0] + whole.own.n + whole.own.x[1] + whole.y[0]

@njit()
def doubled(own):
    return HeldOwn(2.0 * own.x, 2 * own.n)

@kernel()
def several(given):
    whole = HeldWhole(HeldOwn(*given.own), given.y)
    return add_up(whole, whole.own) + add_up(HeldWhole(doubled(whole.own), whole.y), doubled(doubled(whole.own)))

x, y = np.array([1.0, 10.0]), np.array([100.0])
whole = Whole(Own(x, 3), y)
before = sys.getrefcount(x), sys.getrefcount(y)
print(several(whole), y[0], several(whole), y[0])
print((sys.getrefcount(x), sys.getrefcount(y)) == before)
"""


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_records_are_named_tuples_behind_a_pointer(disabled: str, tmp_path: Path) -> None:
    """Their arrays are those given, not copies; without compiling they are the named tuples themselves."""
    script = tmp_path / "script.py"
    script.write_text(_RECORDS)
    environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled}
    # 1 + 3 + 10 + 103; 2 + 6 + 20 + 115. Then from 115 on.
    expected = "260.0 115.0 290.0 130.0\nTrue\n"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == expected, done.stdout + done.stderr


_SETUP = """
import numpy as np
from bactrian.compiling import njit, setup

@njit()
def double(x):
    assert x.size < 9_000
    return 2 * x

@setup
def quadruple(x):
    return double(double(x))

few = np.arange(100)
print(quadruple(few).sum(), quadruple.compiled.signatures, double.signatures)
print((quadruple(np.arange(2_800)) == quadruple.compiled(np.arange(2_800))).all(), len(quadruple.compiled.signatures))
several = [quadruple(few).sum() for _ in range(20)]
print(set(map(int, several)))
"""


def test_little_setup_is_left_to_python(tmp_path: Path) -> None:
    """To compile the elimination of five variables takes seconds."""
    script = tmp_path / "script.py"  # what is kept is kept beside a file
    script.write_text(_SETUP)
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == "19800 [] []\nTrue 1\n{19800}\n", done.stdout + done.stderr


_ELIMINATION = """
import numpy as np
from bactrian.engines.numba import elimination
from bactrian.engines.numba.orders import sweep_order
from bactrian.graphs.elimination import junction_tree

def results(sizes):
    rng, found = np.random.default_rng(5), []
    for n in sizes:
        lowest = np.arange(2 * n) // 2 % max(1, n - 12)  # of large graphs, so that they have no large cliques
        scopes = [tuple(map(int, low + rng.choice(min(n, 12), size=2, replace=False))) for low in lowest]
        found.append(junction_tree(rng.integers(2, 5, n).tolist(), scopes, restarts=3))
        ends = np.array(scopes).ravel()
        links, pairs = np.argsort(ends, kind="stable"), np.arange(0, ends.size + 1, 2)
        bounds = np.searchsorted(ends[links], np.arange(n + 1))
        order = sweep_order(np.array([0, n]), bounds, links // 2, ends[links], pairs, np.argsort(links))
        found.append([part.tolist() for part in order])
    return found

functions = [sweep_order]
functions += [getattr(elimination, name) for name in ("adjacency", "initial_fill", "eliminate", "supernodes")]
few = results((3, 5, 12))
print([function.__name__ for function in functions if function.compiled.signatures])
results((800, 800, 800))
print([function.__name__ for function in functions if not function.compiled.signatures])
print(results((3, 5, 12)) == few)
"""


def test_setup_as_python_does_the_same() -> None:
    """Small graphs before any function is compiled, and after large ones, when all are."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _ELIMINATION], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.stdout == "[]\n[]\nTrue\n", done.stdout + done.stderr


_SLOW = """
import sys
import bactrian.compiling
bactrian.compiling.SILENCE = bactrian.compiling.LOADING = 1e-9
sys.stderr.isatty = lambda: TTY
from bactrian.compiling import kernel

@kernel()
def double(x):
    return 2.0 * x

@kernel()
def triple(x):
    return 3.0 * x

print(double(1.5), triple(2))
"""


@pytest.mark.parametrize("watched", [True, False])
def test_a_line_says_that_something_is_compiled(watched: bool, tmp_path: Path) -> None:
    """Once, and only where somebody watches."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    script = tmp_path / "script.py"
    script.write_text(_SLOW.replace("TTY", str(watched)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == "3.0 6.0\n", done.stderr
    assert done.stderr.count("bactrian: compiling for this machine") == watched
    assert done.stderr.count("\n") == watched


def test_without_compiling_numba_is_not_imported() -> None:
    code = "import sys, bactrian.inference.infer; print('numba' in sys.modules)"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == "False\n", done.stderr
