"""Fuzz an engine on a cluster: workers draw and judge the cases, and reduce what this process calls a find.

What is asked, and which failures are one find, does not depend on the workers: answers are counted in the order of
the cases. Finds are reduced after all is asked, beside each other.
"""

import functools
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from refsd.cluster.engines import resources
from refsd.cluster.spread import Job, Spread, workers_of
from refsd.engines.chosen import one_engine
from refsd.fuzzing.fuzz import Asked, Find, Fuzzer, New, Tally, drawn_case, folder_name, kind_of, operations_of
from refsd.golden import verdict
from refsd.golden.report import Result
from refsd.numerics.errors import BadInput
from refsd.requests.isolated_engine import IsolatedEngine
from refsd.shrinking import folder
from refsd.shrinking.failure import runner_of
from refsd.weights.model_files import model_files, trim_model_files

_DIED = "ended by it: every worker that asked this case"


class RemoteFuzzer(NamedTuple):
    """The engine as the workers have it.

    argument: for which they find it; timeout: seconds for one of its answers
    ops:      operations, components of models and blocks of which it takes some case
    needs:    the Dask resources of the workers that have it
    """

    argument: str
    timeout: float
    name: str
    version: str
    ops: list[str]
    needs: dict[str, float]


class Reduced(NamedTuple):
    """A find, the operation of its smallest case, and the files of its folder by name."""

    find: Find
    op: str
    files: dict[str, bytes]


_one = threading.Lock()


@functools.lru_cache(4)
def _fuzzer(argument: str, timeout: float) -> Fuzzer:
    return Fuzzer(IsolatedEngine(one_engine(argument, timeout=timeout), argument, timeout), runner_of(model_files))


def look(argument: str, timeout: float, ops: Sequence[str]) -> tuple[str, str, list[str]]:
    """An engine's name and version on this worker, and those of the operations that it takes."""
    with _one:
        engine = _fuzzer(argument, timeout).engine
        return engine.name, engine.version, operations_of(engine, ops)


def ask(argument: str, timeout: float, seed: int, op: str, number: int) -> list[Asked]:
    """Ask one random case: a job."""
    with _one:
        answer = _fuzzer(argument, timeout).ask(drawn_case(seed, op, number))
        trim_model_files()
        return [answer]


def reduce(argument: str, timeout: float, new: New, out: str, number: int) -> list[Reduced]:
    """Reduce one find, and write its folder: a job.

    out: the folder of all finds, from where refsd was run; number: of this find
    """
    with _one, tempfile.TemporaryDirectory() as made:
        fuzzer, place = _fuzzer(argument, timeout), Path(made, "find")
        find, shrunk = fuzzer.reduce(new)
        folder.write(
            place, shrunk, fuzzer.engine, argument, model_files, Path(out, folder_name(shrunk.case.op, number))
        )
        return [Reduced(find, shrunk.case.op, {path.name: path.read_bytes() for path in place.iterdir()})]


def find_engine(spread: Spread, argument: str, timeout: float, ops: Sequence[str]) -> RemoteFuzzer:
    """Find an engine on the workers. ops: that may be asked. Raises BadInput where it is missing, or differs."""
    declared = {name for worker in workers_of(spread.client).values() for name in worker["resources"]}
    resource = next((name for name in resources(argument, argument) if name in declared), "")
    needs = {resource: 1.0} if resource else {}
    there = spread.on_every_worker(look, argument, timeout, ops, needs=needs)
    if len({(name, version) for name, version, _ in there.values()}) != 1:
        raise BadInput(
            f"{argument}: the workers have {', '.join(sorted({' '.join(of[:2]) for of in there.values()}))}"
        )
    name, version, taken = there[min(there)]
    return RemoteFuzzer(argument, timeout, name, version, taken, needs)


def ask_all(
    spread: Spread, engine: RemoteFuzzer, tally: Tally, seed: int, questions: Iterator[tuple[str, int]]
) -> Iterator[tuple[str, New | None]]:
    """Ask random cases, and count the answers. -> the case's name, and what must be reduced, if it is a find"""
    names: list[tuple[str, int]] = []

    def jobs() -> Iterator[Job]:
        for op, number in questions:
            names.append((op, number))
            yield Job((engine.argument, engine.timeout, seed, op, number), engine.needs)

    def crashed(job: Job) -> list[Asked]:
        case = drawn_case(*job.arguments[2:])
        error = Result(engine.name, case.name, case.op, verdict.ERROR, margin=verdict.INFINITE, reason=_DIED)
        return [Asked("", error)]

    for number, (answer,) in enumerate(spread.run(ask, jobs(), crashed)):
        case = drawn_case(seed, *names[number])
        new = tally.count(case, answer)
        if new is not None:
            tally.add(new, _unreduced(new))
        yield case.name, new


def reduce_all(
    spread: Spread,
    engine: RemoteFuzzer,
    tally: Tally,
    finds: list[New],
    keep: Callable[[Reduced, int], str],
    out: Path,
) -> Iterator[Find]:
    """Reduce the finds of a tally, in their order. keep: writes a find's folder into `out` -> its name"""
    where = str(folder.from_here(out))
    jobs = [Job((engine.argument, engine.timeout, new, where, n), engine.needs) for n, new in enumerate(finds)]
    for number, outcome in enumerate(spread.run(reduce, jobs, crashed=lambda job: [])):
        find = tally.finds[number]
        for reduced in outcome:
            times = find.times
            for field in Find.__struct_fields__:
                setattr(find, field, getattr(reduced.find, field))
            find.times, find.folder = times, keep(reduced, number)
        yield find


def _unreduced(new: New) -> Find:
    """The unreduced failure; used when reducing it crashes every worker."""
    case, result, failure = new
    shapes = {name: list(tensor.shape) for name, tensor in case.inputs.items()}
    title = (*failure.causes, failure.kind)[0]
    kind = kind_of(failure)
    causes, params = [*failure.causes], dict(case.params)
    return Find(case.name, case.layout, case.op, kind, title, causes, result.reason, shapes, params)
