"""What refsd offers from Python: golden, judge, assert_conforms, forward. docs/python.md is their page.

They are used as `refsd.golden(...)`; this module is imported at the first use.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refsd.cases import CASES
from refsd.components import COMPONENTS, load, offered, resolve
from refsd.components import forward as run_component
from refsd.engines.caller_arrays import as_array, as_arrays
from refsd.golden.cache_folder import cache_folder
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.judge import Standard
from refsd.golden.verdict import NO_WITNESS
from refsd.golden.wording import did_you_mean
from refsd.goldens.making import make_into
from refsd.judges import judges
from refsd.judges.comparison import with_case
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import PROFILES, Numerics
from refsd.progress.compiling import compile_progress
from refsd.reports.comparison_lines import comparison_lines, headline
from refsd.taps import Taps
from refsd.weights import open_checkpoint
from refsd.weights.model_files import model_files, model_path, open_store

STORE = "REFSD_GOLDENS"
# Lines of a report that an AssertionError shows.
_LINES = 12


@dataclass(frozen=True)
class Golden:
    """A case with its answer.

    name, op: the case and its operation: "conv2d", "model/unet", "trajectory", "stage/sigmas"
    params:   what is not a tensor: stride, eps, ...
    inputs:   argument -> array as a file would store it; blocks as uint8 [..., bytes in a row]
    types:    argument -> storage type: "f32", "f16", "q4_k", ...
    truth:    output -> float64 array
    bound:    output -> float64 array of its shape: how far each element may be from the truth. inf: any value is
              right. Empty for trajectories, which are judged step by step
    weights:  file with the model's weights, in the original's layout; None for a case without a model
    """

    name: str
    op: str
    params: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    types: Mapping[str, str]
    truth: Mapping[str, np.ndarray]
    bound: Mapping[str, np.ndarray]
    weights: Path | None = None

    def __repr__(self) -> str:
        def shapes(arrays: Mapping[str, np.ndarray]) -> str:
            return ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())

        return f"Golden({self.name!r}: {shapes(self.inputs)} -> {shapes(self.truth)})"


@dataclass(frozen=True)
class Verdict:
    """The verdict on an engine's answer: true if it conforms; its str is the report of `refsd compare`.

    case:     name of the case
    numerics: the rounding that the engine declares
    verdict:  "pass", "fail", or "not judged" where the numerics are too coarse for the case
    place:    the first wrong tap or output, in the order of computation; "" if none is
    cause:    the likeliest known bug that explains the error; "" if none does
    causes:   all that do, the likeliest first
    reason:   the deciding criterion in a sentence; "" for a pass
    margin:   error / limit of that criterion; above 1 it fails
    text:     the report
    """

    case: str
    numerics: str
    verdict: str
    place: str
    cause: str
    causes: tuple[str, ...]
    reason: str
    margin: float
    text: str = field(repr=False)

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return self.text


class Outputs(dict[str, np.ndarray]):
    """Output name -> array. taps: block name -> its result, where `forward` was asked for them."""

    def __init__(self, outputs: Mapping[str, np.ndarray], taps: Mapping[str, np.ndarray]):
        super().__init__(outputs)
        self.taps = dict(taps)


def golden(case: str, numerics: str = "float32") -> Golden:
    """Return the inputs, truth and bound of a case.

    case:     its exact name, as `refsd golden list` prints it
    numerics: the rounding that an engine declares, on which the bound depends

    The answer is computed at the first call and kept: in $REFSD_GOLDENS, or else in refsd's cache.

    Raises BadInput for an unknown case or profile, and for a case that these numerics do not fit.

    >>> case = golden("silu/f32/bend-x33x77")
    >>> {name: (x.dtype.name, x.shape) for name, x in case.inputs.items()}
    {'x': ('float32', (33, 77))}
    >>> case.truth["y"].shape == case.bound["y"].shape
    True
    >>> golden("silu/f32/bend-x33x7")
    Traceback (most recent call last):
    refsd.numerics.errors.BadInput: no case 'silu/f32/bend-x33x7' (did you mean "silu/f32/bend-x33x77"?): \
`refsd golden list` shows the cases
    """
    requested, profile = find_case(case), _profile(numerics)
    judge = judges(model_files).of(requested)
    truth = _truth(requested)
    _check_answered(judge.refuses(requested, profile), requested)
    inputs = requested.realize()
    with compile_progress():
        honest = judge.answer(requested, inputs, Arithmetic(profile))
        bound = judge.limits(Standard(requested, inputs, truth, honest, profile))
    return Golden(
        requested.name,
        requested.op,
        judge.complete(requested, inputs),
        {name: tensor.storable() for name, tensor in inputs.items()},
        {name: tensor.type for name, tensor in inputs.items()},
        truth,
        bound,
        model_files(requested.model, "ldm") if requested.model is not None else None,
    )


def judge(case: str, arrays: Any, numerics: str = "float32", taps: Mapping[str, Any] | None = None) -> Verdict:
    """Judge an engine's answer to a case.

    case:     its exact name
    arrays:   output -> array; one array where the case has one output. NumPy arrays or torch tensors of any dtype.
              None: only the taps are judged
    numerics: the rounding that the engine declares: "float32", "torch-f16", "ggml-cpu", ...
    taps:     names of the reference's intermediate results -> the engine's

    An output that is missing, has another shape or is not finite fails. Raises BadInput for an unknown case,
    profile or output, and for arrays that hold no numbers.

    >>> x = golden("silu/f32/bend-x33x77").inputs["x"]
    >>> bool(judge("silu/f32/bend-x33x77", x / (1 + np.exp(-x))))
    True
    >>> wrong = judge("silu/f32/bend-x33x77", x)
    >>> wrong.verdict, wrong.place, wrong.margin > 1
    ('fail', 'y', True)
    """
    requested, profile = find_case(case), _profile(numerics)
    truth = _truth(requested)
    _check_answered(judges(model_files).of(requested).refuses(requested, profile), requested)
    found = as_arrays(arrays, list(truth), case) if arrays is not None or not taps else {}
    found |= {name: as_array(name, y) for name, y in (taps or {}).items()}
    with compile_progress():
        compared = with_case(requested, found, truth, profile, model_files, strict=True)
    judged, place = compared.examined.verdict, compared.examined.place
    verdict = "pass" if judged.passed else "not judged" if judged.criterion == NO_WITNESS else "fail"
    causes = tuple(compared.causes)
    lines = [headline(compared, f"{case} under {numerics}"), *comparison_lines(compared)]
    cause = causes[0] if causes else ""
    return Verdict(case, numerics, verdict, place, cause, causes, judged.reason, judged.margin, "\n".join(lines))


def assert_conforms(
    case: str, arrays: Any, numerics: str = "float32", taps: Mapping[str, Any] | None = None
) -> None:
    """Raise AssertionError with the first lines of the report unless `judge` passes the same arguments.

    >>> x = golden("silu/f32/bend-x33x77").inputs["x"]
    >>> assert_conforms("silu/f32/bend-x33x77", x / (1 + np.exp(-x)))
    >>> assert_conforms("silu/f32/bend-x33x77", x[:1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: FAIL  silu/f32/bend-x33x77 under float32, at y
    ...
    """
    __tracebackhide__ = True
    verdict = judge(case, arrays, numerics, taps)
    if not verdict:
        lines = str(verdict).splitlines()
        raise AssertionError("\n".join(lines[:_LINES] + ["..."] * (len(lines) > _LINES)))


def forward(
    model: str | os.PathLike[str] | ModelRecipe,
    component: str,
    *,
    numerics: str = "float64",
    taps: str | None = None,
    **inputs: Any,
) -> Outputs:
    """Run one component of a model once with the reference.

    model:     a checkpoint file, a diffusers folder, or a recipe: "recipe:FAMILY[:TYPE][:tiny]"
    component: "diffusion", "clip_l", "vae-decoder", ...: as `refsd forward --help` lists them
    numerics:  "float64", "float32", or the rounding of an engine
    taps:      a glob of the blocks whose results `.taps` holds
    inputs:    the component's tensors by name (NumPy arrays or torch tensors), and its params

    Raises BadInput for a file that is no such model, and for inputs that are missing, unknown, misshapen or not
    finite.

    >>> y = forward("recipe:taesd:tiny", "tae-decoder", z=np.zeros((1, 4, 8, 8)))
    >>> y["out"].shape, y["out"].dtype.name
    ((1, 3, 64, 64), 'float64')
    >>> forward("recipe:taesd:tiny", "tae-decoder", z=np.zeros((4, 8, 8)))
    Traceback (most recent call last):
    refsd.numerics.errors.BadInput: inputs: tensor z has shape [4, 8, 8], expected [N, Z, H, W]: reshape it
    """
    if not isinstance(taps, str | None):
        raise BadInput(f"taps {taps!r}: a glob of blocks expected, such as '*'")
    if component not in offered():
        meant = did_you_mean(component, offered())
        raise BadInput(f"no component {component!r}{meant}; there are {', '.join(offered())}")
    arithmetic = Arithmetic(_profile(numerics))
    checkpoint = open_checkpoint(model_path(model))
    name = resolve(checkpoint, component)
    m, params = load(checkpoint, name, arithmetic)
    given = {key: inputs.pop(key) for key in COMPONENTS[name].params if key in inputs}
    arrays = {key: as_array(key, x) for key, x in inputs.items()}
    found = Taps(taps or "")
    with compile_progress(), one_answer(arithmetic.numerics):
        m.taps = found if taps else None
        y = run_component(name, m, arrays, {**params, **given}, also=True)
    return Outputs(y, found)


def find_case(name: str) -> Case:
    """Return the case of this exact name. Raises BadInput with the name that was probably meant."""
    if name not in CASES:
        meant = did_you_mean(name, CASES)
        raise BadInput(f"no case {name!r}{meant}: `refsd golden list` shows the cases")
    return CASES[name]


def _profile(numerics: str) -> Numerics:
    if numerics not in PROFILES:
        meant = did_you_mean(numerics, PROFILES)
        raise BadInput(f"no numerics profile {numerics!r}{meant}; there are {', '.join(PROFILES)}")
    return PROFILES[numerics]


def _truth(case: Case) -> dict[str, np.ndarray]:
    """The case's answer, from the store or computed into it."""
    _check_answered(judges(model_files).of(case).refuses(case, PROFILES["float64"]), case)
    store = open_store(os.environ.get(STORE) or cache_folder("goldens"))
    make_into(store, [case])
    return store.get(case.name).outputs


def _check_answered(refusal: str | None, case: Case) -> None:
    if refusal is not None:
        raise BadInput(f"{case.name}: {refusal}")
