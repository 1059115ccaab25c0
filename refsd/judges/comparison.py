"""Judge the tensors of a dump: against a case of the corpus, or against files with the truth and an honest run."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from refsd.causes.model.following import nearest_order
from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.golden.examination import Examination, explain
from refsd.golden.judge import Judge, Standard, Trace
from refsd.golden.taps import measure_taps
from refsd.golden.verdict import judge
from refsd.golden.wording import counted, did_you_mean
from refsd.judges import judges
from refsd.judges.storage_mistakes import storage_mistake
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.profiles import FLOAT32, Numerics
from refsd.stages import STAGES

# Name at most this many unknown tensors.
_NAMED = 5
# Share of a tap's size that its slices may be off from the reference's to be taken for these in another order.
_LIKE = 0.1
# Of the wrong taps behind the first, so many are searched for a cause of their own.
_OTHERS = 3

Tensors = Mapping[str, np.ndarray]


class Targets(NamedTuple):
    """What the user calls the dump's tensors: "MINE=THEIRS" -> the names that tensors got by it.

    typed:    pairs of the command line: the golden must have one of the names
    of_files: pairs of files: one file serves several dumps and goldens
    """

    typed: Mapping[str, Sequence[str]] = MappingProxyType({})
    of_files: Mapping[str, Sequence[str]] = MappingProxyType({})


_NO_TARGETS = Targets()


class Comparison(NamedTuple):
    """The verdict on a dump.

    examined: the judged taps and outputs
    absent:   names of the golden's tensors that the dump lacks; only if the dump has taps or the golden is a file
    causes:   known bugs that make the reference agree with the dump
    notes:    tensors that are not judged, for their names are unknown, and outputs that were reshaped; a line each
    others:   wrong tap behind the first -> its cause, where that is another
    looks:    if no known bug explains the error: phrases that describe the first wrong tap or output
    stored:   the phrase for outputs that conform once they are read otherwise (NHWC, float16); "" if none does
    misnamed: lines of files of names that give tensors a name which the golden lacks; a line each
    """

    examined: Examination
    absent: Sequence[str] = ()
    causes: Sequence[str] = ()
    notes: Sequence[str] = ()
    looks: Sequence[str] = ()
    stored: str = ""
    misnamed: Sequence[str] = ()
    others: Mapping[str, str] = MappingProxyType({})


def with_case(
    case: Case,
    actual: Tensors,
    truth: Tensors,
    numerics: Numerics,
    model_files: ModelFiles,
    strict: bool = False,
    targets: Targets = _NO_TARGETS,
    seeking: Callable[[str], AbstractContextManager] = nullcontext,
) -> Comparison:
    """Judge a dump of a case's outputs, of its taps, or of both.

    actual:   tensors by the names of the case's outputs and the model's taps; a single tensor may have any name
    truth:    the case's outputs in float64
    numerics: the engine's rounding, for the honest run
    strict:   True if unknown names and other shapes fail, as an engine's; False if they are noted, as a dump's
    seeking:  tap or output -> a context for the search for its cause

    This computes the honest run, and the reference's taps from the dump's own taps. Raises BadInput for a name of
    `targets.typed` that the golden lacks.
    """
    there = {name: y for name, y in truth.items() if name in actual}
    if not strict and case.op in STAGES and 0 < len(there) < len(truth):
        # Each output of a stage is a result of its own: those that a dump has are judged.
        compared = with_case(case, actual, there, numerics, model_files, strict, targets, seeking)
        return compared._replace(absent=[name for name in truth if name not in there])
    inputs, kind = case.realize(), judges(model_files).of(case)
    taps = {name: y for name, y in actual.items() if name not in truth}
    trace = kind.trace(case, inputs, actual, numerics) if taps else Trace()
    misnamed = _misnamed(targets, [*truth, *trace.names])
    known = {*trace.names} & taps.keys()
    orders: Mapping[str, tuple[int, ...]] = {}
    if not strict and any(name in known and y.shape != trace.shapes[name] for name, y in taps.items()):
        orders = kind.layouts(case, inputs, actual)
    laid = [_laid(name, y.shape, trace.shapes[name], orders) for name, y in _in_order(taps, trace)]
    if orders:
        actual = {name: y.transpose(orders[name]) if name in orders else y for name, y in actual.items()}
        taps = {name: actual[name] for name in taps}
        trace = kind.trace(case, inputs, actual, numerics)
    if not known and len(actual) == len(truth) == 1:
        actual, taps = dict(zip(truth, actual.values(), strict=True)), {}
    given = stored_as = {name: y for name, y in actual.items() if name not in known and (strict or name in truth)}
    notes = []
    if not strict:
        given = {name: _shaped(y, truth[name]) for name, y in stored_as.items()}
        notes = _unknown([name for name in taps if name not in known], [*truth, *trace.names])
        notes += filter(None, laid)
        notes += filter(None, [_laid(name, y.shape, given[name].shape) for name, y in stored_as.items()])
    # Taps may come without the outputs; a dump without taps must have every output.
    requested = {name: y for name, y in truth.items() if name in given or not known}
    answer = kind.answer(case, inputs, Arithmetic(numerics)) if requested else {}
    honest = {name: y for name, y in answer.items() if name in truth}
    standard = Standard(case, inputs, truth, honest, numerics)
    outputs = kind.measure(standard._replace(truth=requested, honest={n: honest[n] for n in requested}), given)
    examined = Examination(trace, outputs)
    absent = [name for name in truth if name not in requested]
    listing = f"refsd golden show {case.name} --taps '*' lists them"
    untapped = not taps and case.model is not None and case.model.tiny
    if examined.verdict.passed and untapped and not strict:
        notes += [f"outputs hide small errors, as of another eps or GELU; dump the model's taps too: {listing}"]
    if examined.verdict.passed or (absent and not examined.wrong):
        return Comparison(examined, absent, notes=notes, misnamed=misnamed)
    if known and requested and judge(outputs).passed and (laid_out := _in_order_of(kind, standard, taps)):
        again = Examination(kind.trace(case, inputs, {**actual, **laid_out.values}, numerics), outputs)
        if again.verdict.passed:
            return Comparison(again, absent, notes=[*notes, laid_out.note], misnamed=misnamed)
    stored = "" if known else storage_mistake(kind, standard, stored_as)
    if stored:
        return Comparison(examined, absent, notes=notes, stored=stored, misnamed=misnamed)
    with seeking(examined.place):
        why = explain(kind, standard, given, taps, examined)
    looks = [] if why.causes else why.phrases
    if untapped and not why.causes:
        notes += [f"dump the model's taps too, to see where the error is: {listing}"]
    others: dict[str, str] = {}
    for tap in _of_other_layers(examined.wrong, examined.trace.ops)[:_OTHERS]:
        with seeking(tap):
            causes = explain(kind, standard, given, taps, examined, tap).causes
        # A number of many digits is no bug of this layer: it follows from the first.
        if causes and not {*causes} & {*why.causes, *others.values()} and not re.search(r"\.\d{6}", causes[0]):
            others[tap] = causes[0]
    return Comparison(examined, absent, [*why.causes], notes, looks, misnamed=misnamed, others=others)


class _LaidOut(NamedTuple):
    """Taps that are the reference's in another order: their values in its order, and the note on them."""

    values: Tensors
    note: str


def _in_order_of(kind: Judge, standard: Standard, taps: Tensors) -> _LaidOut | None:
    """Return the taps that hold the reference's slices along an axis in another order; None if there are none."""
    values, first = {}, ""
    for name, right in kind.reference_taps(standard.case, standard.inputs).items():
        found = taps.get(name, np.zeros(0))
        for axis in range(1, right.ndim) if found.shape == right.shape else ():
            ours, theirs = (np.moveaxis(y, axis, 0).reshape(y.shape[axis], -1) for y in (right, found))
            order = (np.square(ours).sum(axis=1) - 2 * theirs @ ours.T).argmin(axis=1)
            off = [np.linalg.norm(theirs - y) / np.linalg.norm(ours) for y in (ours, ours[order])]
            if {*order} == {*range(len(order))} and off[1] < _LIKE < off[0]:
                values[name] = np.take(found, np.argsort(order), axis)
                listed = ", ".join(map(str, order[:_NAMED]))
                first = first or f"{printable(name)}, whose axis {axis} is the reference's {listed}, ..."
                break
    count = f"{counted(len(values), 'tap')} in another order, first {first}"
    return _LaidOut(values, f"a convention, no bug: the outputs agree; {count}") if values else None


def with_files(actual: Tensors, truth: Tensors, honest: Tensors, targets: Targets = _NO_TARGETS) -> Comparison:
    """Judge the tensors that dump and truth have in common, as taps in the truth's order.

    A tensor of the truth's axes in another order fails, as an output of a case does, and the order is named; where
    axes were joined or split, the nearest order is read, and that is noted.

    Raises BadInput if there are none, for a name of `targets.typed` that the truth lacks, and if the honest run
    lacks one or has it in another shape.
    """
    if len(actual) == len(truth) == len(honest) == 1:
        actual, honest = (dict(zip(truth, tensors.values(), strict=True)) for tensors in (actual, honest))
    misnamed = _misnamed(targets, truth)
    common = [name for name in truth if name in actual]
    if not common:
        raise BadInput(f"the dump has {_some(actual)}, the golden {_some(truth)}: no name is in both")
    for name in common:
        if name not in honest:
            raise BadInput(
                f"the honest run has no tensor {name!r}{did_you_mean(name, honest)}, which the golden has"
            )
        if honest[name].shape != truth[name].shape:
            shapes = f"{list(honest[name].shape)} in the honest run, {list(truth[name].shape)} in the golden"
            raise BadInput(f"{name} is {shapes}: they are not of one computation")
    orders = {name: nearest_order(actual[name], truth[name]) for name in common}
    orders = {name: order for name, order in orders.items() if order}
    split = {name: order for name, order in orders.items() if not _same_axes(actual[name], truth[name])}

    def read(turned: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        laid = {name: actual[name].transpose(turned[name]) if name in turned else actual[name] for name in common}
        return {name: _shaped(y, truth[name]) for name, y in laid.items()}

    def examined(taps: Tensors) -> Examination:
        return Examination(Trace(measure_taps(taps, truth, honest, FLOAT32)), ())

    shaped = read(split)
    notes = [*filter(None, [_laid(name, actual[name].shape, y.shape, split) for name, y in shaped.items()])]
    judged, stored = examined(shaped), ""
    if orders != split and not judged.verdict.passed and examined(read(orders)).verdict.passed:
        stored = "; ".join(f"{name} agrees after transpose{orders[name]}" for name in orders if name not in split)
    return Comparison(
        judged,
        [name for name in truth if name not in actual],
        notes=[*_unknown([name for name in actual if name not in truth], truth), *notes],
        stored=stored,
        misnamed=misnamed,
    )


def _of_other_layers(wrong: Sequence[str], ops_of: Mapping[str, Sequence[str]]) -> list[str]:
    """List the first wrong tap of each layer but the first's: of "blocks.3.norm" and "blocks.4.norm" the former.

    Taps of operations that no earlier one has come first: they may be wrong for a reason of their own.
    ops_of: tap -> the operations that lead to it
    """
    first: dict[str, str] = {}
    for name in wrong:
        first.setdefault(re.sub(r"\d+", "", name), name)
    ops = [frozenset(ops_of.get(name, ())) for name in first.values()]
    known = [any(of & before for before in ops[:i]) for i, of in enumerate(ops)]
    behind = [*zip(known, first.values(), strict=True)][1:]
    return [name for _, name in sorted(behind, key=lambda one: one[0])]


def _unknown(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the line on tensors whose names the golden does not have."""
    if not names:
        return []
    named = ", ".join(f"{printable(name)}{did_you_mean(name, known)}" for name in names[:_NAMED])
    more = ", ..." if len(names) > _NAMED else ""
    count = counted(len(names), "tensor")
    say = "say --names MINE=THEIRS"
    return [f"not judged, for the golden has no such name: {count}: {named}{more}; {say}"]


def _shaped(y: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return an output in the truth's shape if axes were split or joined; as it is if they are in another order."""
    order = [n for n in y.shape if n > 1] == [n for n in truth.shape if n > 1]
    return y.reshape(truth.shape) if y.size == truth.size and (order or not _same_axes(y, truth)) else y


def _same_axes(y: np.ndarray, truth: np.ndarray) -> bool:
    """Return True if the axes that are longer than 1 have the same sizes, in any order."""
    return sorted(n for n in y.shape if n > 1) == sorted(n for n in truth.shape if n > 1)


def _in_order(taps: Tensors, trace: Trace) -> list[tuple[str, np.ndarray]]:
    return [(name, taps[name]) for name in trace.names if name in taps]


def _laid(
    name: str,
    own: tuple[int, ...],
    right: tuple[int, ...],
    orders: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> str:
    """Return the line on a tensor of another shape than the reference's that is judged; "" for one of its shape.

    own, right: the tensor's shape, the reference's
    """
    if own == right or math.prod(own) != math.prod(right):
        return ""
    order = orders.get(name)
    turned = tuple(own[axis] for axis in order) if order else own
    how = f"transpose{order}" if order else ""
    how += f"{' and ' if how else ''}reshape{right}" if turned != right else ""
    return f"{printable(name)}: your shape is {list(own)}, the reference's {list(right)}: read as {how}"


def _misnamed(targets: Targets, known: Collection[str]) -> list[str]:
    """Return a line for each pair of a file of names that the golden lacks. Raises BadInput for a typed pair."""

    def lines(pairs: Mapping[str, Sequence[str]]) -> list[str]:
        return [
            f"--names {pair}: the golden has no tensor {theirs[0]!r}{did_you_mean(theirs[0], known)}"
            for pair, theirs in pairs.items()
            if theirs and not any(name in known for name in theirs)
        ]

    for line in lines(targets.typed):
        raise BadInput(line)
    return lines(targets.of_files)


def _some(tensors: Tensors) -> str:
    names = list(tensors)
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
