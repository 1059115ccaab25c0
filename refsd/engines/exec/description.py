"""Read and check the description of an exec program: its operations, numerics and deviations."""

import re
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from refsd.cases import CASES
from refsd.golden.engine import EngineFailure
from refsd.golden.operations import OPERATIONS
from refsd.golden.wording import did_you_mean
from refsd.kernels.quant import BLOCK_TYPES
from refsd.kernels.quant.activation_codes import GRIDS, ROUNDINGS
from refsd.numerics.deviations import DEVIATIONS, EPS, SETTABLE, Deviation
from refsd.numerics.printable import printable
from refsd.numerics.profiles import DTYPES, PROFILES, Float16Sums, Numerics
from refsd.numerics.quantization import Int8Scores, Quantization
from refsd.numerics.tensor import SCALAR_TYPES
from refsd.weights.recipes import TYPES

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>[^`]*)`(?: - at `(?P<at>[^`]*)`)?$")
# Names are printed in reports and JUnit files. (\Z, because "$" also matches before a final newline.)
_Word = Annotated[str, msgspec.Meta(pattern=r"^[\w .:+()/-]{1,80}\Z")]


class DeviationText(msgspec.Struct, forbid_unknown_fields=True):
    """A deviation that the program defines itself; the fields are those of deviations.Deviation."""

    name: _Word
    op: str
    sets: dict[str, Any]
    what: str
    source: str = ""


class _Sums(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of profiles.Float16Sums."""

    step: int = 1
    run: int = 0


class _Scores(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of quantization.Int8Scores."""

    query_block: int = 128
    key_block: int = 64
    smooth: bool = True


class Offer(msgspec.Struct, forbid_unknown_fields=True):
    """What the program supports of one operation.

    types:      supported storage types of the inputs; None: all
    weights:    for models: supported types of the weights' file, as ModelRecipe.type; None: all
    numerics:   a profile's name, or {"like": a profile's name, ...} with the fields that differ
    deviations: names of known deviations, or new deviations in full
    samplers, schedules: the supported ones, for the operation "trajectory"; None: all
    params:     parameter -> its supported values: {"engine": ["sdcpp"]}; an absent parameter supports all values
    inputs:     names of the input tensors that it takes, for operations with optional ones; None: all
    taps:       for models: True if the program can write its intermediate tensors (taps)
    forced:     for models: True if the program can replace its taps by given tensors and continue with them
    """

    types: list[str] | None = None
    weights: list[str] | None = None
    samplers: list[str] | None = None
    schedules: list[str] | None = None
    params: dict[str, list[Any]] = {}
    inputs: list[str] | None = None
    numerics: str | dict[str, Any] | None = None
    deviations: list[str | DeviationText] = []
    taps: bool = False
    forced: bool = False


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    protocol: int
    name: _Word
    version: _Word
    ops: dict[str, Offer]
    numerics: str | dict[str, Any] = "float32"
    serve: bool = False


class Description:
    """A program's description, checked. Raises EngineFailure for a word that refsd does not know."""

    def __init__(self, text: _Text):
        if text.protocol != 1:
            raise EngineFailure(f"description.json: protocol {text.protocol}, expected 1")
        for op, offer in text.ops.items():
            if not op.startswith(_GRAPH):
                _one_of("operation", op, tuple(_ASKED))
            for kind in offer.types or ():
                _one_of(f"{op}: types", kind, (*SCALAR_TYPES, *BLOCK_TYPES))
            for kind in offer.weights or ():
                _one_of(f"{op}: weights", kind, TYPES)
            if not op.startswith(_GRAPH):
                _check_parameters(op, offer)
        self.name, self.version, self.ops, self.serve = text.name, text.version, text.ops, text.serve
        default = _numerics(text.numerics, text.name)
        self._numerics = {
            op: default if offer.numerics is None else _numerics(offer.numerics, text.name)
            for op, offer in text.ops.items()
        }
        self._deviations = {op: tuple(map(_deviation, offer.deviations)) for op, offer in text.ops.items()}

    def numerics_of(self, op: str) -> Numerics:
        return self._numerics[op]

    def deviations_of(self, op: str) -> tuple[Deviation, ...]:
        return self._deviations[op]


# Beginning of the operations of adopted graphs, whose names only their folders know.
_GRAPH = "model/graph/"
# Every other operation that a case can ask for: golden's operations, models' components, trajectories, stages.
_ASKED = dict.fromkeys((*OPERATIONS, *(case.op for case in CASES.values())))


def _check_parameters(op: str, offer: Offer) -> None:
    """Raise EngineFailure for a parameter that no case has, or a name that no case gives it."""
    asked: dict[str, dict[Any, None]] = {name: {} for name in OPERATIONS[op].params} if op in OPERATIONS else {}
    for case in CASES.values():
        for name, value in case.params.items() if case.op == op else ():
            asked.setdefault(name, {})[value if isinstance(value, str) else None] = None
    names = {"sampler": offer.samplers or [], "schedule": offer.schedules or []}
    for name, values in {**offer.params, **{name: given for name, given in names.items() if given}}.items():
        known = [value for value in asked[_one_of(f"{op}: parameter", name, tuple(asked))] if value is not None]
        for value in values if known else ():
            if isinstance(value, str):
                _one_of(f"{op}: {name}", value, tuple(known))


def read_description(data: bytes) -> Description:
    """Check a description.json. Raises EngineFailure."""
    try:
        return Description(msgspec.json.decode(data, type=_Text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailure(f"description.json: {_with_fields(_with_operation(data, str(error)))}") from None


def _with_fields(error: str) -> str:
    """Say behind msgspec's "unknown field `type`" which field was meant, or which there are."""
    found = _UNKNOWN_FIELD.search(error)
    if found is None:
        return error
    at = found["at"] or ""
    struct = DeviationText if ".deviations[" in at else Offer if at.startswith("$.ops.") else _Text
    fields = struct.__struct_fields__
    return error + (did_you_mean(found["field"], fields) or f": expected one of {', '.join(fields)}")


def _with_operation(data: bytes, error: str) -> str:
    """Name the operation that msgspec writes as "$.ops[...]"."""
    if "$.ops[...]" not in error:
        return error
    try:
        ops = msgspec.json.decode(data)["ops"]
    except (msgspec.DecodeError, RecursionError):  # what comes behind is not JSON
        return error
    for op, offer in ops.items():
        try:
            msgspec.convert(offer, Offer)
        except msgspec.ValidationError:
            return printable(error.replace("$.ops[...]", f"$.ops.{op}"), 300)
    return error


# Types to which activations can be rounded; of the block types, ggml quantizes activations only to a few.
_ROUNDED = ("f32", "f16", "bf16", *(name for name, of in BLOCK_TYPES.items() if of.quantize_activation))
# An error message that can suggest the intended name lists the allowed names only if there are at most this many.
_MANY = 12
# What other programs call numerics -> the profile that is meant.
_OTHER_NAMES = {
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    **dict.fromkeys(("fp32", "f32", "single"), "float32"),
    **dict.fromkeys(("fp16", "f16", "float16", "half"), "torch-f16"),
    **dict.fromkeys(("bf16", "bfloat16"), "torch-bf16"),
    "tf32": "torch-tf32",
}
_ROUNDING = (None, "f16", "bf16", "f32")
_MULTIPLIED = (None, "tf32", "bf16", "f16")
_ALLOWED = {
    "compute": ("float64", "float32"),
    "storage": tuple(DTYPES),
    "products": _MULTIPLIED,
    "conv": (*_ROUNDING, "tf32"),
    "gelu": _ROUNDING,
    "logistic": (None, "rational"),
    "flash": (None, "f16"),
    "flash_sum": (None, "f16"),
    "convolution": ("im2col", "direct", "winograd-f16"),
    "shader": (False, True),
}
# Fields of Quantization -> what they may be, or None for a number.
_FEW_BITS = {
    "type": tuple(GRIDS),
    "scale": ("row", "tensor", "none"),
    "block": (0, 16, 32, 64, 128),
    "block_scale": ("f8_e4m3", "e8m0", "e8m0_floor", "f32"),
    "rounding": tuple(ROUNDINGS),
    "largest": None,
    "rotation": (0, 4, 16, 64, 256, 1024),
    "quotient": ("storage", "compute", "wide"),
    "zero_point": (False, True),
    "fewest": None,
    "outliers": None,
}
_MOST = {"largest": 65504, "fewest": 65504, "outliers": 65504}
_ONE_PASS = ("group_norm", "layer_norm")
_SUMMED = ("linear", "conv", "attention")


def _numerics(said: str | dict[str, Any], program: str) -> Numerics:
    changes: dict[str, Any] = {"like": said} if isinstance(said, str) else dict(said)
    profile = changes.pop("like", "float32")
    if isinstance(profile, str) and (meant := _OTHER_NAMES.get(profile.lower())):
        raise EngineFailure(f'description.json: numerics {profile!r} is not known (did you mean "{meant}"?)')
    like = PROFILES[_one_of("numerics", profile, tuple(PROFILES))]
    rounded, one_pass, sums = (changes.pop(field, None) for field in ("activations", "one_pass", "sums"))
    if "scores" in changes:
        changes["scores"] = _scores(changes["scores"])
    for field, value in changes.items():
        if field != "scores":
            _one_of(f"numerics {field}", value, _ALLOWED[_one_of("numerics field", field, tuple(_ALLOWED))])
    if rounded is not None:
        if not isinstance(rounded, dict):
            raise EngineFailure("description.json: numerics activations: expected weight type -> type")
        for weight, kind in rounded.items():
            _one_of("numerics activations of weight type", weight, (*SCALAR_TYPES, *BLOCK_TYPES))
            if not isinstance(kind, dict):
                _one_of(f"numerics activations of {weight}:", kind, _ROUNDED)
        changes["activations"] = {
            weight: _few_bits(weight, kind) if isinstance(kind, dict) else kind for weight, kind in rounded.items()
        }
    if one_pass is not None:
        if not isinstance(one_pass, list):
            raise EngineFailure("description.json: numerics one_pass: expected a list of norms")
        changes["one_pass"] = tuple(_one_of("numerics one_pass", norm, _ONE_PASS) for norm in one_pass)
    if sums is not None:
        changes["sums"] = _sums(sums)
    try:
        return replace(like, name=program, **changes) if changes else like
    except ValueError as error:
        raise EngineFailure(f"description.json: numerics: {error}") from None


def _few_bits(weight: str, said: dict[str, Any]) -> Quantization:
    """{"type": "int8", "scale": "row", ...}: the fields of Quantization"""
    at = f"numerics activations of {weight}"
    for field, value in said.items():
        if (allowed := _FEW_BITS[_one_of(f"{at}, field", field, tuple(_FEW_BITS))]) is not None:
            _one_of(f"{at}, {field}", value, allowed)
        elif type(value) not in (int, float) or not 0 <= value <= _MOST[field]:
            raise EngineFailure(f"description.json: {at}, {field} {value!r}: expected 0 .. {_MOST[field]}")
    if "type" not in said:
        raise EngineFailure(f"description.json: {at}: no type, expected one of {', '.join(GRIDS)}")
    how = Quantization(**said)
    if how.zero_point and (how.grid.exponent is not None or how.block or how.scale == "none"):
        raise EngineFailure(f"description.json: {at}: expected zero_point of integers, a scale a row or tensor")
    return how


def _sums(said: Any) -> dict[str, Float16Sums]:
    """{"linear": {"step": 16, "run": 0}, ...}"""
    try:
        sums = msgspec.convert(said, dict[str, _Sums])
    except msgspec.ValidationError as error:
        raise EngineFailure(f"description.json: numerics sums: {error}") from None
    for op, how in sums.items():
        _one_of("numerics sums of", op, _SUMMED)
        if how.step < 1 or how.run < 0:
            raise EngineFailure(f"description.json: numerics sums of {op}: expected step >= 1 and run >= 0")
    return {op: Float16Sums(how.step, how.run) for op, how in sums.items()}


def _scores(said: Any) -> Int8Scores | None:
    """{"query_block": 128, "key_block": 64, "smooth": true}, or null"""
    try:
        scores = msgspec.convert(said, _Scores | None)
    except msgspec.ValidationError as error:
        raise EngineFailure(f"description.json: numerics scores: {error}") from None
    if scores is None:
        return None
    if scores.query_block < 1 or scores.key_block < 1:
        raise EngineFailure("description.json: numerics scores: expected blocks of 1 token or more")
    return Int8Scores(scores.query_block, scores.key_block, scores.smooth)


def _one_of(what: str, value, allowed: tuple):
    if value not in allowed:
        meant = did_you_mean(value, map(str, allowed))
        expected = "" if meant and len(allowed) > _MANY else f": expected one of {', '.join(map(str, allowed))}"
        raise EngineFailure(f"description.json: {what} {value!r} is not known{meant}{expected}")
    return value


def _deviation(said: str | DeviationText) -> Deviation:
    if isinstance(said, str):
        return DEVIATIONS[_one_of("deviation", said, tuple(DEVIATIONS))]
    for parameter, value in said.sets.items():
        at = f"description.json: deviation {said.name} sets {said.op} {parameter}"
        if (said.op, parameter) not in SETTABLE:
            raise EngineFailure(f"{at}, expected one of {', '.join(map(' '.join, SETTABLE))}")
        allowed = SETTABLE[said.op, parameter]
        if allowed is EPS:
            if type(value) not in (int, float) or not EPS[0] <= value <= EPS[1]:
                raise EngineFailure(f"{at} to {value!r}, expected a number from {EPS[0]:g} to {EPS[1]:g}")
        elif value not in allowed:
            raise EngineFailure(f"{at} to {value!r}, expected one of {', '.join(map(str, allowed))}")
    return Deviation(said.name, said.op, said.sets, printable(said.what, 300), printable(said.source, 300))
