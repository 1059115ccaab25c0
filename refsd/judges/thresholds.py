"""Measure how sensitive a case is: the smallest size of each kind of change that fails, by outputs and by taps.

The simulated engine is the reference under the engine's numerics, with one change whose size is bisected. Its taps
are those of the layers with weights, as torch's hooks give them.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from refsd.causes.model.observed import Observed
from refsd.golden.case import Case
from refsd.golden.examination import examine
from refsd.golden.judge import Inputs, Standard
from refsd.golden.metrics import channel_axis
from refsd.golden.verdict import judge
from refsd.judges.model import ModelJudge
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, Numerics

_SMALLEST = 1e-7
_HALVINGS = 5
_TILE = 8

# value, size -> changed value; size -> changed arithmetic.
Bend = Callable[[np.ndarray, float], np.ndarray]
Wrong = Callable[[float], type[Arithmetic]]


class Kind(NamedTuple):
    """A kind of change: of one layer's output (`bend`), or of every operation (`wrong`).

    name:    in words; `s` is the size
    largest: largest size that is tried
    bend:    changes the output of one layer
    wrong:   changes the arithmetic
    ops:     the case must have one of these operations; empty: any case
    """

    name: str
    largest: float
    bend: Bend | None = None
    wrong: Wrong | None = None
    ops: tuple[str, ...] = ()


class Threshold(NamedTuple):
    """The smallest size of a change that fails.

    change:  the Kind's name
    outputs: smallest size that fails by the outputs alone, within a factor of about 2; None: none tried fails
    taps:    the same by the taps
    """

    change: str
    outputs: float | None
    taps: float | None


def _channel(y: np.ndarray, s: float) -> np.ndarray:
    y = y.copy()
    np.moveaxis(y, channel_axis(y), 0)[0] *= 1 + s
    return y


def _tile(y: np.ndarray, s: float) -> np.ndarray:
    """Scale 8 x 8 pixels in all channels, or 8 tokens, of the first item."""
    y = y.copy()
    y[(0, slice(None), slice(_TILE), slice(_TILE)) if y.ndim == 4 else (0, slice(_TILE))] *= 1 + s
    return y


def _eps(s: float) -> type[Arithmetic]:
    class Eps(Arithmetic):
        def parameter(self, op, name, value):
            return (1 + s) * value if name == "eps" else super().parameter(op, name, value)

    return Eps


def _tanh(s: float) -> type[Arithmetic]:
    class Tanh(Arithmetic):
        def gelu(self, x, approximate="none"):
            one, other = (
                super(Tanh, self).gelu(x, how).astype(np.float64) for how in (approximate, _other(approximate))
            )
            return self._round(one + s * (other - one))

        def geglu(self, x):
            value, gate = np.split(x, 2, axis=-1)
            return self.multiply(value, self.gelu(gate))

    return Tanh


def _other(approximate: str) -> str:
    return "none" if approximate == "tanh" else "tanh"


def _theta(s: float) -> type[Arithmetic]:
    class Theta(Arithmetic):
        def rope_angles(self, ids, axes_dim, theta):
            return super().rope_angles(ids, axes_dim, (1 + s) * theta)

    return Theta


KINDS = (
    Kind("one layer times 1 + s", 10.0, bend=lambda y, s: y * (1 + s)),
    Kind("one layer plus s times its RMS", 10.0, bend=lambda y, s: y + s * np.sqrt(np.mean(np.square(y)))),
    Kind("one channel of one layer times 1 + s", 10.0, bend=_channel),
    Kind("one tile of one layer times 1 + s", 10.0, bend=_tile),
    Kind(
        "eps times 1 + s", 1000.0, wrong=_eps, ops=("group_norm", "layer_norm", "adaptive_layer_norm", "rms_norm")
    ),
    Kind("GELU: s of the way from erf to tanh, or back", 1.0, wrong=_tanh, ops=("gelu", "geglu", "gelu_tanh")),
    Kind("RoPE's theta times 1 + s", 10.0, wrong=_theta, ops=("rope",)),
)


class _Bent(Taps):
    """Taps of a simulated engine that changes the output of one layer, and continues with it."""

    def __init__(self, at: str, bend: Callable[[np.ndarray], np.ndarray]):
        super().__init__(ops=True)
        self._at, self._bend = at, bend

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        value = super().record(name, value)
        if self.recorded[-1] != self._at:
            return value
        self[self._at] = self._bend(value.astype(np.float64)).astype(value.dtype)
        return self[self._at]


class _Bench(NamedTuple):
    """A case under the engine's numerics. layers: taps that the engine gives; at: the layer that is changed"""

    kind: ModelJudge
    standard: Standard
    layers: frozenset[str]
    at: str

    def fails(self, change: Kind, size: float, by_taps: bool) -> bool:
        case, inputs, numerics = self.standard.case, self.standard.inputs, self.standard.numerics
        bend = change.bend
        taps = Taps(ops=True) if bend is None else _Bent(self.at, lambda y: bend(y, size))
        arithmetic = (Arithmetic if change.wrong is None else change.wrong(size))(numerics)
        with np.errstate(all="ignore"):
            found = self.kind.tapped(case, inputs, arithmetic, taps)
        if not by_taps:
            return not judge(self.kind.measure(self.standard, found)).passed
        shown = {name: y for name, y in taps.items() if name in self.layers}
        return not examine(self.kind, self.standard, found, shown).verdict.passed


def thresholds(kind: ModelJudge, case: Case, numerics: Numerics) -> Iterator[Threshold]:
    """Yield the threshold of each kind of change that applies to a model's case under these numerics.

    The layer that is changed is the middle one of those that multiply tokens or pixels. Raises BadInput for a case
    without such a layer.
    """
    inputs = case.realize()
    bench, ops = _bench(kind, case, inputs, numerics)
    for change in KINDS:
        if change.ops and ops.isdisjoint(change.ops):
            continue
        yield Threshold(change.name, _smallest(bench, change, False), _smallest(bench, change, True))


def _bench(kind: ModelJudge, case: Case, inputs: Inputs, numerics: Numerics) -> tuple[_Bench, set[str]]:
    taps, observed = Taps(ops=True), Observed(FLOAT64)
    truth = kind.tapped(case, inputs, observed, taps)
    standard = Standard(case, inputs, truth, kind.answer(case, inputs, Arithmetic(numerics)), numerics)
    axes = kind.axes_of_weights(case, inputs)
    layers = [tap for tap in taps if tap in axes or f"{tap}.weight" in axes]
    products = [tap for tap in layers if axes.get(f"{tap}.weight", 0) > 1 and taps[tap].ndim > 2]
    if not products:
        raise BadInput(f"{case.name}: no layer of tokens or pixels has a matrix or filters for its weight")
    return _Bench(kind, standard, frozenset(layers), products[len(products) // 2]), {*observed.ops}


def _smallest(bench: _Bench, change: Kind, by_taps: bool) -> float | None:
    low, high = math.log(_SMALLEST), math.log(change.largest)
    if not bench.fails(change, change.largest, by_taps):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if bench.fails(change, math.exp(middle), by_taps) else (middle, high)
    return math.exp(high)
