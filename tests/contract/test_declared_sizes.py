"""A small file, or a model by hand, that declares a huge number of states is refused before memory is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bactrian as bt

HUGE = 1_000_000_000

#: What may be taken beside the interpreter and its libraries.
_RUN = """
import resource, sys
from bactrian.cli import main
import bactrian.inference.decode, bactrian.inference.infer, bactrian.inference.uai

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    main(sys.argv[1:])
finally:
    print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("task", ["MAR", "PR", "MPE"])
@pytest.mark.parametrize(
    "content",
    [f"MARKOV 1 {HUGE} 0", f"MARKOV 2 2 {HUGE} 1 1 0 2 .5 .5", f"BAYES 2 {HUGE} {HUGE} 1 0 1 2.0", f"MARKOV {HUGE} 2"],
)
def test_a_uai_file_of_a_few_bytes_takes_little_memory(content: str, task: str, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    (tmp_path / "model.uai").write_text(content)
    command = [sys.executable, "-c", _RUN, "infer", str(tmp_path / "model.uai"), "--task", task]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    if not content.endswith(" 2"):
        assert f"--memory-budget: the marginals of variables that are in no table would take more than {4 * 2**30}" in (
            done.stderr
        )
    assert int(done.stdout.split("grown")[1]) * (1 if sys.platform == "darwin" else 1024) < 2**27


@pytest.mark.parametrize("call", [bt.infer, bt.decode])
@pytest.mark.parametrize("many", [False, True])
def test_models_by_hand_are_held_to_the_budget(call: Any, many: bool) -> None:
    model = bt.LogLinearModel(bt.ClusterGraph([2, HUGE], [(0,)]), [np.zeros((2, 0))])
    with pytest.raises(ValueError, match=f"memory_budget: .* variable 1 has {HUGE} states"):
        call([model] if many else model, [])
    small = bt.LogLinearModel(bt.ClusterGraph([2, 1000], [(0,)]), [np.zeros((2, 0))])
    call([small] if many else small, [])
    with pytest.raises(ValueError, match=r"memory_budget: .* variable 1 has 1000 states"):
        call(small, [], memory_budget=10_000)
