"""``bactrian infer``: marginals, partition function or most probable assignment of a model in a UAI file."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bactrian.terminal import BadInputError, bad_input, check_output, named, positive, progress_bar, say_facts

if TYPE_CHECKING:
    from bactrian.inference.decode import Decoding
    from bactrian.inference.result import InferenceProgress, InferenceResult
    from bactrian.inference.uai import UaiModel

EXAMPLES = (
    "Examples:  bactrian infer model.uai -e model.uai.evid -o model.MAR  ·  "
    "bactrian infer model.uai --method exact -o model.PR  ·  bactrian infer model.uai --method dual -o model.MPE"
)
_METHOD_HELP = (
    "MAR and PR: auto (the default), exact, rbp, bp, trw, convex, double-loop, mean-field, annealing, "
    "gibbs (MAR alone); "
    "MPE: auto (the default), exact, max-product, max-marginals, dual."
)


#: Bytes of a file up to which its tables, some dozens, are not worth compiling for.
_SMALL = 2048
#: Whether this process runs one command and ends.
is_alone = False


class Task(StrEnum):
    """What to work out; the name is also the suffix of the result's file."""

    MAR = "MAR"
    PR = "PR"
    MPE = "MPE"


class Fallback(StrEnum):
    """What finishes where belief propagation does not converge."""

    DOUBLE_LOOP = "double-loop"


def bytes_of(text: str) -> int:
    """A number of bytes such as 6G, 500MiB or 1000000."""
    from bactrian.inference.problem import bytes_of

    try:
        return bytes_of(text)
    except ValueError:
        raise typer.BadParameter(f"expected bytes such as 6G, 500MiB or 1000000, found {text!r}") from None


def share(value: float | None) -> float | None:
    """A number from 0 to below 1, where one is given."""
    if value is not None and not 0.0 <= value < 1.0:
        raise typer.BadParameter(f"expected a number of at least 0 and below 1, found {value}")
    return value


def infer_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL.uai", help="The model, a MARKOV or BAYES file.")],
    evidence: Annotated[Path | None, typer.Option("--evidence", "-e", help="A file with the observed states.")] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", metavar="NAME", help=_METHOD_HELP)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The result; its suffix .MAR, .PR or .MPE names the task.")
    ] = None,
    task: Annotated[
        Task | None, typer.Option(case_sensitive=False, help="The task, if the suffix of the output does not name it.")
    ] = None,
    fallback: Annotated[Fallback | None, typer.Option(help="Method to use where bp or rbp does not converge.")] = None,
    damping: Annotated[
        float | None, typer.Option(callback=share, help="Share of the old message that an update keeps.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(callback=positive, help="Largest change at which message passing stops.")
    ] = None,
    max_iterations: Annotated[int, typer.Option(min=1, help="Maximum number of sweeps over the model.")] = 1000,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            callback=positive,
            help="Time limit in seconds (default of auto: 20); compiling, on first use, not counted.",
        ),
    ] = None,
    memory_budget: Annotated[
        int | None,
        typer.Option(
            parser=bytes_of,
            metavar="BYTES",
            help="Memory limit of a junction tree (default: by free memory); models without loops need none.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of mean-field, gibbs and annealing (default: 0).")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads (default: one per core).")] = None,
) -> None:
    """Compute marginals (MAR), partition function (PR) or most probable assignment (MPE) of a UAI model.

    Exit code 0: done; 1: stopped short, the result so far is written; 2: bad input, nothing written.
    """
    wanted = _task(task, output)
    if wanted is not Task.MPE and method in (None, "auto", "bp", "rbp") and fallback is None:
        _spare_compiling(model)
    from bactrian.compiling import seconds_compiling
    from bactrian.inference import problem

    name = _method(method, wanted)
    options = {
        "max_iterations": max_iterations,
        "memory_budget": memory_budget or problem.bytes_of(None),
        "n_threads": threads,
        "tolerance": tolerance,
        "damping": damping,
    }
    more = {"fallback": fallback and fallback.value, "max_seconds": max_seconds, "seed": seed}
    _check_options({option: value for option, value in more.items() if value is not None}, name, wanted)
    check_output(output, (model, evidence))
    read, seen = _read(model, evidence)
    about = f"{model}: " if evidence is None else f"{model} with {evidence}: "
    given = {option: value for option, value in (options | more).items() if value is not None}
    began, compiled = time.perf_counter(), seconds_compiling()
    budget = named("memory_budget", "--memory-budget")
    with bad_input(ValueError, MemoryError, prefix=about, options=budget), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the summary says where a method stopped short
        said, write, stopped_short = _run(read, name, seen, wanted, given)
    seconds, compiled = time.perf_counter() - began, seconds_compiling() - compiled
    if output is not None:
        with bad_input(OSError), bad_input(ValueError, prefix=f"{output}: "):
            write(output)
    size = f"{read.cardinalities.size} variables, {len(read.tables)} tables, {len(seen)} observed"
    spent = f"{seconds:.3g}" + (f", {compiled:.2g} of them compiling, once on a machine" if compiled else "")
    lines = [("model", f"{model}: {read.kind}, {size}"), *said, ("seconds", spent)]
    if output is not None:
        lines.append(("written", str(output)))
    say_facts(lines)
    if stopped_short:
        raise typer.Exit(1)


#: What the command says, what writes the result, and whether it was stopped short, whatever the task.
_Answer = tuple[Iterable[tuple[str, str]], Callable[[Path], None], bool]


def _spare_compiling(model: Path) -> None:
    """Run kernels as Python on models of a few tables, in a process that does nothing else.

    To start the compiler, even for functions that it has kept, takes longer than their messages.
    """
    small = model.is_file() and model.stat().st_size <= _SMALL
    if small and is_alone and "bactrian.compiling" not in sys.modules:
        os.environ.setdefault("NUMBA_DISABLE_JIT", "1")


def _task(task: Task | None, output: Path | None) -> Task:
    suffix = "" if output is None else output.suffix[1:].upper()
    named = Task(suffix) if suffix in Task.__members__ else None
    if named is not None and task is not None and task is not named:
        raise BadInputError(f"--task {task.value} does not go with an output named {output}")
    if output is not None and named is None and task is None:
        raise BadInputError(f"--output: {output} names no task; end it in .MAR, .PR or .MPE, or give --task")
    return named or task or Task.MAR


def _method(method: str | None, task: Task) -> str:
    from bactrian.inference import decode, infer

    choices = list(decode.METHODS if task is Task.MPE else infer.OF_WEIGHTS)
    if task is Task.PR:
        choices.remove("gibbs")  # it has no estimate of log Z
    if method is None:
        return "auto"
    if method not in choices:
        raise BadInputError(f"--method {method} is not for {task.value}; choose from {', '.join(choices)}")
    return method


def _check_options(more: dict[str, Any], method: str, task: Task) -> None:
    """Refuse options that the task or the method has no use for."""
    unused = [option for option in more if option != "max_seconds"]
    if task is Task.MPE and unused:
        raise BadInputError(f"--{unused[0].replace('_', '-')} is for MAR and PR; MPE does not use it")
    if "fallback" in more and method not in ("bp", "rbp"):
        raise BadInputError(f"--fallback is for bp and rbp; {method} has none")


def _read(model: Path, evidence: Path | None) -> tuple[UaiModel, dict[int, int]]:
    from bactrian.inference.uai import read_evidence, read_model

    with bad_input(ValueError, OSError):  # the message names file and line
        read = read_model(model)
        return read, {} if evidence is None else read_evidence(evidence, read.cardinalities)


def _run(read: UaiModel, method: str, evidence: dict[int, int], task: Task, options: dict[str, Any]) -> _Answer:
    from bactrian.inference import uai
    from bactrian.inference.decode import decode
    from bactrian.inference.infer import infer
    from bactrian.inference.uai import to_model

    model = to_model(read, options["memory_budget"])
    with _progress(method, options.get("tolerance", 1e-8)) as callback:
        if task is Task.MPE:
            found = decode(model, [], method, evidence, return_result=True, callback=callback, **options)
            impossible = found.score == -math.inf and method != "max-marginals"
            short = not found.converged or impossible
            return _decoding_lines(found), lambda path: uai.write_assignment(path, found.assignment), short
        result = infer(model, [], method, evidence, callback=callback, **options)
    log_partition = result.log_partition

    def write(path: Path) -> None:
        if task is Task.MAR:
            uai.write_marginals(path, list(result.variables))
        else:
            if log_partition is None:
                raise BadInputError(f"{method} has no estimate of log Z: {result.status}")
            uai.write_log_partition(path, log_partition)

    return _inference_lines(result), write, not result.converged


@contextmanager
def _progress(method: str, tolerance: float) -> Iterator[Callable[[InferenceProgress], None] | None]:
    """A bar that fills as the logarithm of the residual falls towards the tolerance."""
    with progress_bar(method) as show:
        largest = 0.0

        def tell(at: InferenceProgress) -> None:
            nonlocal largest
            if show is None:
                return
            detail = f"iteration {at.iteration} residual {at.residual:.1e}"
            if at.score is not None:
                detail = f"round {at.iteration} log score {at.score:.9g}"
            if not tolerance < at.residual < math.inf:
                show(at.method, detail, 0.0, None)
                return
            largest = max(largest, at.residual)
            whole = math.log(largest / tolerance)
            show(at.method, detail, whole - math.log(at.residual / tolerance), whole)

        yield None if show is None else tell


# --- the summary ---

#: What a method's log Z is where it is not Bethe's approximation.
_MEANING = {"convex": "convex approximation", "annealing": "estimate", "trw": "no bound before convergence"}
_BOUNDS = {"exact": "exact", "upper": "upper bound", "lower": "lower bound"}


def _inference_lines(result: InferenceResult) -> Iterator[tuple[str, str]]:
    """Name and value of what there is to say about marginals and a partition function."""
    yield "method", result.method
    if result.converged:
        yield "converged", "yes" if result.status == "converged" else f"yes: {result.status}"
    else:
        yield "converged", f"no: {result.status}"
    yield "iterations", str(result.iterations)
    if result.log_partition is None:
        yield "log Z", f"none: {result.method} does not estimate it"
    else:
        meaning = _BOUNDS.get(result.bound or "") or _MEANING.get(result.method, "Bethe approximation")
        yield "log Z", f"{_logarithm(result.log_partition)}, {meaning}"
    if result.route:
        yield "route", result.route
    if result.interval is not None:
        yield "interval", f"{result.interval[0]:.9g} to {result.interval[1]:.9g}, 95 %"


def _decoding_lines(result: Decoding) -> Iterator[tuple[str, str]]:
    """Name and value of what there is to say about an assignment."""
    has_gap = result.bound is not None and not result.optimal
    yield "method", result.method
    yield "converged", "no" if not result.converged else "the bound alone, which falls no further" if has_gap else "yes"
    yield "iterations", str(result.iterations)
    yield "log score", _logarithm(result.score) if result.score > -math.inf else "-inf: the assignment is impossible"
    if result.bound is not None:
        yield "bound", _logarithm(result.bound)
    if result.bound is not None and has_gap and result.score > -math.inf:
        yield "optimal", f"not proved: others may score up to {result.bound - result.score:.4g} more"
    else:
        yield "optimal", "yes" if result.optimal else "not proved"


def _logarithm(value: float) -> str:
    return f"{value:.9g} (log10: {value / math.log(10):.9g})"
