"""Exact inference on the models of the UAI 2014 competition, against the published answers, as a Markdown table.

Run ``BACTRIAN_DATA=/path/to/data python benchmarks/uai_table.py`` to print the table, and name a page, as in
``... benchmarks/uai_table.py docs/uai.md``, to put it there as well, between the page's two markers. The folder
``uai`` of the data holds ``X.uai``, ``X.uai.evid``, ``X.uai.MAR`` and ``X.uai.PR``. Models run one at a time.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import bactrian as bt
from bactrian.graphs.elimination import junction_tree
from bactrian.inference.uai import read_evidence, read_log_partition, read_marginals, read_model, to_model

BEGIN, END = "<!-- table: benchmarks/uai_table.py -->", "<!-- end of table -->"
HEAD = (
    "model", "variables", "observed", "width", "clique tables", "MAR error", "published log10 Z", "log10 Z error",
)  # fmt: skip


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    for path in sorted(folder.glob("*.uai"), key=natural):
        read = read_model(path)
        evidence = read_evidence(f"{path}.evid", read.cardinalities)
        published = Path(f"{path}.PR").read_text(encoding="ascii").split()[-1]
        scopes = [scope for scope in read.scopes if scope]
        tree = junction_tree(read.cardinalities, scopes, evidence=evidence.keys(), memory_budget=2**40)
        result = bt.infer(to_model(read), [], "exact", evidence)
        assert result.log_partition is not None
        answers = read_marginals(f"{path}.MAR")
        marginal = max(np.abs(m - a).max() for m, a in zip(result.variables, answers, strict=True))
        partition = abs(result.log_partition - read_log_partition(f"{path}.PR")) / math.log(10)
        measured = (readable(8 * tree.table_entries), f"{marginal:.1e}", published, f"{partition:.1e}")
        yield (path.stem, str(read.cardinalities.size), str(len(evidence)), str(tree.width), *measured)


def natural(path: Path) -> list[object]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def readable(size: int) -> str:
    unit = min(max(size.bit_length() - 1, 0) // 10, 3)
    return f"{size / 1024**unit:.3g} {('B', 'KiB', 'MiB', 'GiB')[unit]}"


def line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    data = os.environ.get("BACTRIAN_DATA")
    if not data:
        sys.exit("BACTRIAN_DATA is not set: it names the folder that holds uai/")
    lines = [line(HEAD), line(("---", *["---:"] * 7))]
    print(*lines, sep="\n")
    for cells in rows(Path(data) / "uai"):
        lines.append(line(cells))
        print(lines[-1], flush=True)
    for page in map(Path, sys.argv[1:]):
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, found, after = rest.partition(END)
        if not found:
            sys.exit(f"{page}: expected the markers {BEGIN} and {END}")
        page.write_text("\n".join([f"{before}{BEGIN}\n", *lines, f"\n{END}{after}"]), encoding="utf-8")


if __name__ == "__main__":
    main()
