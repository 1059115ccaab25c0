"""What a program says of itself: its operations, its numerics, its deviations."""

from dataclasses import replace
from typing import Annotated, Any

import msgspec

from refsd.golden.deviations import DEVIATIONS, Deviation
from refsd.golden.engines import EngineFailure
from refsd.golden.numerics import DTYPES, PROFILES, Numerics
from refsd.golden.operations import OPERATIONS
from refsd.golden.tensor import SCALAR_TYPES
from refsd.kernels.quant import BLOCK_TYPES


class DeviationText(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of deviations.Deviation."""

    name: str
    op: str
    sets: dict[str, Any]
    what: str
    source: str = ""


class Offer(msgspec.Struct, forbid_unknown_fields=True):
    """
    types:      storage types of inputs that it takes; None: all
    numerics:   a profile's name, or {"like": a profile's name, ...} with what differs
    deviations: names of known deviations, or new ones in full
    samplers, schedules: of "trajectory", those that it has; None: all
    """

    types: list[str] | None = None
    samplers: list[str] | None = None
    schedules: list[str] | None = None
    numerics: str | dict[str, Any] | None = None
    deviations: list[str | DeviationText] = []


# Names go into reports and JUnit files.
_Word = Annotated[str, msgspec.Meta(pattern=r"^[\w .:+()/-]{1,80}$")]


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    name: _Word
    version: _Word
    ops: dict[str, Offer]
    protocol: int = 1
    numerics: str | dict[str, Any] = "float32"


class Description:
    """A program's description, checked. Raises EngineFailure for a word that refsd does not know."""

    def __init__(self, text: _Text):
        if text.protocol != 1:
            raise EngineFailure(f"description.json: protocol {text.protocol}, expected 1")
        known = {*OPERATIONS, "trajectory"}
        unknown = [op for op in text.ops if op not in known and not op.startswith("model/")]
        if unknown:
            raise EngineFailure(f"description.json: unknown operations {', '.join(unknown)}")
        self.name, self.version, self.ops = text.name, text.version, text.ops
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


def read_description(data: bytes) -> Description:
    """Check a description.json. Raises EngineFailure."""
    try:
        return Description(msgspec.json.decode(data, type=_Text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailure(f"description.json: {error}") from None


_ROUNDING = (None, "f16", "bf16", "f32")
_ALLOWED = {
    "compute": ("float64", "float32"),
    "storage": tuple(DTYPES),
    "conv": _ROUNDING,
    "gelu": _ROUNDING,
    "flash": (None, "f16"),
    "convolution": ("im2col", "direct", "winograd-f16"),
}


def _numerics(said: str | dict[str, Any], program: str) -> Numerics:
    changes: dict[str, Any] = {"like": said} if isinstance(said, str) else dict(said)
    like = PROFILES[_one_of("numerics", changes.pop("like", "float32"), tuple(PROFILES))]
    rounded = changes.pop("activations", None)
    for field, value in changes.items():
        _one_of(f"numerics {field}", value, _ALLOWED[_one_of("numerics field", field, tuple(_ALLOWED))])
    if rounded is not None:
        known = (*SCALAR_TYPES, *BLOCK_TYPES)
        if not isinstance(rounded, dict):
            raise EngineFailure("description.json: numerics activations: expected weight type -> type")
        for kind in (*rounded, *rounded.values()):
            _one_of("numerics activations", kind, known)
        changes["activations"] = rounded
    return replace(like, name=program, **changes) if changes else like


def _one_of(what: str, value, allowed: tuple):
    if value not in allowed:
        expected = ", ".join(map(str, allowed))
        raise EngineFailure(f"description.json: {what} {value!r}, expected one of {expected}")
    return value


def _deviation(said: str | DeviationText) -> Deviation:
    if isinstance(said, DeviationText):
        return Deviation(said.name, said.op, said.sets, said.what, said.source)
    return DEVIATIONS[_one_of("deviation", said, tuple(DEVIATIONS))]
