"""Judge the tensors of a dump against a case of the corpus, or against files of a truth and an honest run."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.golden.judge import Standard
from refsd.golden.metrics import Metrics, not_asked_for
from refsd.golden.taps import measure_taps
from refsd.golden.verdict import NO_WITNESS, Judgement, judge, judge_output
from refsd.golden.wording import did_you_mean
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, Numerics

Tensors = Mapping[str, np.ndarray]


class Comparison(NamedTuple):
    """
    taps:    in the order of computation
    outputs: of the case, and what nobody asked for
    absent:  names of the golden's tensors that the dump lacks; only where the dump has taps
    bugs:    under which the reference agrees with the dump
    meant:   name that nobody asked for -> the name that was probably meant, as a phrase
    """

    taps: Sequence[Metrics]
    outputs: list[Metrics]
    absent: Sequence[str] = ()
    bugs: Sequence[str] = ()
    meant: Mapping[str, str] = MappingProxyType({})

    def unseen(self) -> list[str]:
        """Names of the taps that cannot be judged, because the honest run itself is too far from the truth."""
        return [m.output for m in self.taps if judge_output(m).criterion == NO_WITNESS]

    def verdict(self) -> Judgement:
        """That of the first wrong tap or output. A tap that cannot be judged counts only if no other can be."""
        unseen = {*self.unseen()}
        seen = [m for m in self.taps if m.output not in unseen] + self.outputs
        return judge(seen or self.taps)


def with_case(
    case: Case, found: Tensors, truth: Tensors, numerics: Numerics, model_files: ModelFiles
) -> Comparison:
    """Judge outputs, taps or both of a case.

    found: tensors by the names of the case's outputs, and of the model's taps; a single tensor may have any name
    truth: the case's outputs in float64

    The truth's taps and the honest run are computed here.
    """
    inputs, kind = case.realize(), judges(model_files).of(case)
    trace = kind.locate(case, inputs, found, truth, numerics)
    located = {m.output for m in trace.taps}
    if not located and len(found) == len(truth) == 1:
        found = dict(zip(truth, found.values(), strict=True))
    given = {name: y for name, y in found.items() if name not in located}
    # Taps may come without the outputs; a dump without taps must have every output.
    asked = {name: y for name, y in truth.items() if name in given or not located}
    honest = {name: trace.honest[name] for name in asked}
    standard = Standard(case, inputs, truth, trace.honest, numerics)
    outputs = kind.measure(standard._replace(truth=asked, honest=honest), given)
    meant = {m.output: did_you_mean(m.output, [*truth, *trace.names]) for m in outputs if m.unwanted}
    compared = Comparison(trace.taps, outputs, [n for n in truth if n not in asked], meant=meant)
    if compared.verdict().passed or compared.absent:
        return compared
    return compared._replace(bugs=kind.diagnose(standard, given))


def with_files(found: Tensors, truth: Tensors, honest: Tensors) -> Comparison:
    """Judge those tensors of a truth that the dump has, as taps in the truth's order.

    Raises BadInput where the dump has none of them, or the honest run lacks one or has it in another shape.
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
        measure_taps(found, truth, honest, FLOAT32),
        others,
        [name for name in truth if name not in found],
        meant={m.output: did_you_mean(m.output, truth) for m in others},
    )


def _some(tensors: Tensors) -> str:
    names = list(tensors)
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
