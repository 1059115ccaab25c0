"""Judge the tensors of a dump: against a case of the corpus, or against files with the truth and an honest run."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.golden.examination import Examination, explain
from refsd.golden.judge import Standard, Trace
from refsd.golden.taps import measure_taps
from refsd.golden.wording import counted, did_you_mean
from refsd.judges import judges
from refsd.judges.storage_mistakes import storage_mistake
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.profiles import FLOAT32, Numerics

# Name at most this many unknown tensors.
_NAMED = 5

Tensors = Mapping[str, np.ndarray]


class Comparison(NamedTuple):
    """The verdict on a dump.

    examined: the judged taps and outputs
    absent:   names of the golden's tensors that the dump lacks; only if the dump has taps or the golden is a file
    causes:   known bugs that make the reference agree with the dump
    notes:    tensors that are not judged, for their names are unknown, and outputs that were reshaped; a line each
    looks:    if no known bug explains the error: phrases that describe the first wrong tap or output
    stored:   the phrase for outputs that conform once they are read otherwise (NHWC, float16); "" if none does
    """

    examined: Examination
    absent: Sequence[str] = ()
    causes: Sequence[str] = ()
    notes: Sequence[str] = ()
    looks: Sequence[str] = ()
    stored: str = ""


def with_case(
    case: Case, found: Tensors, truth: Tensors, numerics: Numerics, model_files: ModelFiles, strict=False
) -> Comparison:
    """Judge a dump of a case's outputs, of its taps, or of both.

    found:    tensors by the names of the case's outputs and the model's taps; a single tensor may have any name
    truth:    the case's outputs in float64
    numerics: the engine's rounding, for the honest run
    strict:   True if unknown names and other shapes fail, as an engine's; False if they are noted, as a dump's

    This computes the honest run, and the reference's taps from the dump's own taps.
    """
    inputs, kind = case.realize(), judges(model_files).of(case)
    taps = {name: y for name, y in found.items() if name not in truth}
    trace = kind.trace(case, inputs, found, numerics) if taps else Trace()
    known = {*trace.names} & taps.keys()
    if not known and len(found) == len(truth) == 1:
        found, taps = dict(zip(truth, found.values(), strict=True)), {}
    given = stored_as = {name: y for name, y in found.items() if name not in known and (strict or name in truth)}
    notes = []
    if not strict:
        given = {name: _shaped(y, truth[name]) for name, y in stored_as.items()}
        notes = _unknown([name for name in taps if name not in known], [*truth, *trace.names])
        notes += [_reshaped(name, y, given[name]) for name, y in stored_as.items() if y.shape != given[name].shape]
    # Taps may come without the outputs; a dump without taps must have every output.
    asked = {name: y for name, y in truth.items() if name in given or not known}
    honest = kind.answer(case, inputs, Arithmetic(numerics)) if asked else {}
    standard = Standard(case, inputs, truth, honest, numerics)
    outputs = kind.measure(standard._replace(truth=asked, honest={n: honest[n] for n in asked}), given)
    examined = Examination(trace, outputs)
    absent = [name for name in truth if name not in asked]
    if examined.verdict.passed or (absent and not examined.wrong):
        return Comparison(examined, absent, notes=notes)
    stored = "" if known else storage_mistake(kind, standard, stored_as)
    if stored:
        return Comparison(examined, absent, notes=notes, stored=stored)
    why = explain(kind, standard, given, taps, examined)
    return Comparison(examined, absent, [*why.causes], notes, looks=[] if why.causes else why.phrases)


def with_files(found: Tensors, truth: Tensors, honest: Tensors) -> Comparison:
    """Judge the tensors that dump and truth have in common, as taps in the truth's order.

    Raises BadInput if there are none, or if the honest run lacks one or has it in another shape.
    """
    if len(found) == len(truth) == len(honest) == 1:
        found, honest = (dict(zip(truth, tensors.values(), strict=True)) for tensors in (found, honest))
    common = [name for name in truth if name in found]
    if not common:
        raise BadInput(f"the dump has {_some(found)}, the golden {_some(truth)}: no name is in both")
    for name in common:
        if name not in honest:
            raise BadInput(
                f"the honest run has no tensor {name!r}{did_you_mean(name, honest)}, which the golden has"
            )
        if honest[name].shape != truth[name].shape:
            shapes = f"{list(honest[name].shape)} in the honest run, {list(truth[name].shape)} in the golden"
            raise BadInput(f"{name} is {shapes}: they are not of one computation")
    shaped = {name: _shaped(found[name], truth[name]) for name in common}
    notes = [_reshaped(name, found[name], y) for name, y in shaped.items() if y.shape != found[name].shape]
    return Comparison(
        Examination(Trace(measure_taps(shaped, truth, honest, FLOAT32)), ()),
        [name for name in truth if name not in found],
        notes=[*_unknown([name for name in found if name not in truth], truth), *notes],
    )


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
    same_axes = sorted(n for n in y.shape if n > 1) == sorted(n for n in truth.shape if n > 1)
    order = [n for n in y.shape if n > 1] == [n for n in truth.shape if n > 1]
    return y.reshape(truth.shape) if y.size == truth.size and (order or not same_axes) else y


def _reshaped(name: str, y: np.ndarray, shaped: np.ndarray) -> str:
    return f"{printable(name)}: reshaped from {list(y.shape)} to {list(shaped.shape)}"


def _some(tensors: Tensors) -> str:
    names = list(tensors)
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
