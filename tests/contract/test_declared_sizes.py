"""A small file, or a model by hand, that declares a huge number of states is refused before memory is taken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bactrian as bt

HUGE = 1_000_000_000

#: A file per content and task, all in one process: what it takes at most tells of each.
_RUN = """
import contextlib, io, json, resource, sys
from bactrian.cli import main
import bactrian.inference.decode, bactrian.inference.infer, bactrian.inference.uai

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    for task in ("MAR", "PR", "MPE"):
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                main(["infer", path, "--task", task])
        except SystemExit as stopped:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            print(json.dumps([path, task, stopped.code, errors.getvalue(), grown]))
"""

CONTENTS = (
    f"MARKOV 1 {HUGE} 0", f"MARKOV 2 2 {HUGE} 1 1 0 2 .5 .5", f"BAYES 2 {HUGE} {HUGE} 1 0 1 2.0", f"MARKOV {HUGE} 2",
)  # fmt: skip


def test_uai_files_of_a_few_bytes_take_little_memory(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    files = {str(tmp_path / f"model{number}.uai"): content for number, content in enumerate(CONTENTS)}
    for path, content in files.items():
        Path(path).write_text(content)
    done = subprocess.run([sys.executable, "-c", _RUN, *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    tasks = ("MAR", "PR", "MPE")
    assert [(path, task) for path, task, *_ in found] == [(path, task) for path in files for task in tasks]
    refusal = "--memory-budget: the marginals of variables that are in no table would take more than "
    for path, _, code, said, grown in found:
        assert code == 2
        assert len(said.splitlines()) == 1
        assert refusal in said or files[path].endswith(" 2")
        assert grown * (1 if sys.platform == "darwin" else 1024) < 2**27


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
