"""Judge the tensors of a dump: against a case of the corpus, or against files with the truth and an honest run."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.golden.examination import Examination, describe, explain, nearest
from refsd.golden.judge import Standard, Trace
from refsd.golden.metrics import not_asked_for
from refsd.golden.taps import measure_taps
from refsd.golden.wording import did_you_mean
from refsd.judges import judges
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, Numerics
from refsd.storage_mistakes import storage_mistake

Tensors = Mapping[str, np.ndarray]


class Comparison(NamedTuple):
    """The verdict on a dump.

    examined: the judged taps and outputs, and the dump's tensors with unknown names
    absent:   names of the golden's tensors that the dump lacks; only if the dump has taps or the golden is a file
    causes:   known bugs that make the reference agree with the dump
    meant:    unknown tensor name -> a phrase with the name that was probably meant
    looks:    if no known bug explains the error: phrases that describe the first wrong tap or output
    stored:   the phrase for outputs that conform once they are read otherwise (NHWC, float16); "" if none does
    """

    examined: Examination
    absent: Sequence[str] = ()
    causes: Sequence[str] = ()
    meant: Mapping[str, str] = MappingProxyType({})
    looks: Sequence[str] = ()
    stored: str = ""


def with_case(
    case: Case, found: Tensors, truth: Tensors, numerics: Numerics, model_files: ModelFiles
) -> Comparison:
    """Judge a dump of a case's outputs, of its taps, or of both.

    found:    tensors by the names of the case's outputs and the model's taps; a single tensor may have any name
    truth:    the case's outputs in float64
    numerics: the engine's rounding, for the honest run

    This computes the honest run, and the reference's taps from the dump's own taps.
    """
    inputs, kind = case.realize(), judges(model_files).of(case)
    taps = {name: y for name, y in found.items() if name not in truth}
    trace = kind.trace(case, inputs, found, numerics) if taps else Trace()
    known = {*trace.names} & taps.keys()
    if not known and len(found) == len(truth) == 1:
        found, taps = dict(zip(truth, found.values(), strict=True)), {}
    given = {name: y for name, y in found.items() if name not in known}
    # Taps may come without the outputs; a dump without taps must have every output.
    asked = {name: y for name, y in truth.items() if name in given or not known}
    honest = kind.answer(case, inputs, Arithmetic(numerics)) if asked else {}
    standard = Standard(case, inputs, truth, honest, numerics)
    outputs = kind.measure(standard._replace(truth=asked, honest={n: honest[n] for n in asked}), given)
    meant = {m.output: did_you_mean(m.output, [*truth, *trace.names]) for m in outputs if m.unwanted}
    examined = Examination(trace, outputs)
    absent = [name for name in truth if name not in asked]
    if examined.verdict.passed or (absent and not examined.wrong):
        return Comparison(examined, absent, meant=meant)
    stored = "" if known else storage_mistake(kind, standard, given)
    if stored:
        return Comparison(examined, absent, meant=meant, stored=stored)
    causes = explain(kind, standard, given, taps, examined)
    if causes:
        return Comparison(examined, absent, causes, meant)
    looks = describe(kind, standard, given, taps, examined)
    near = nearest(kind, standard, given, taps, examined)
    return Comparison(
        examined, absent, meant=meant, looks=[*looks, *([near.phrase] if near and near.telling else [])]
    )


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
    others = not_asked_for(found, truth)
    return Comparison(
        Examination(Trace(measure_taps(found, truth, honest, FLOAT32)), others),
        [name for name in truth if name not in found],
        meant={m.output: did_you_mean(m.output, truth) for m in others},
    )


def _some(tensors: Tensors) -> str:
    names = list(tensors)
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
