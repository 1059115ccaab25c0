"""Layers, scales, the bound of a delta and bugs in scales, which LoRA and LoKr share."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from refsd.golden.bounds import Run, sums
from refsd.golden.mutations import Wrong, answer, other_input
from refsd.golden.operation import Mutant, values
from refsd.golden.rounding import Bound, Terms, largest, unit, unit_of_type
from refsd.kernels.adapters import Conv2d
from refsd.kernels.adapters.layer import convolve
from refsd.kernels.adapters.scales import lokr_rank
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.convolution_geometry import each, positions
from refsd.numerics.quantization import Quantization
from refsd.numerics.tensor import SCALAR_TYPES


def lokr_ranks(inputs) -> tuple[int | None, int]:
    """Return the rank that divides alpha (or None), and the number of columns of the part that has it."""
    rank = lokr_rank(*(inputs[part].shape[0] if part in inputs else None for part in ("w1_b", "w2_b")))
    part = "w2_b" if "w2_b" in inputs else "w1_b"
    return rank, int(np.prod(inputs[part].shape[1:])) if rank else 0


def columns_count(a) -> bool:
    return a.parameter("adapter", "rank_one_is_columns", False)


def _added(a, adapter, x, layer, shape):
    out = np.zeros(shape, a.numerics.compute_dtype)
    adapter.forward(x, out, layer, out)
    return a.store(out)


def on_linear(adapter_of, part):
    def run(a, inputs, params):
        adapter = adapter_of(a, inputs, params)
        x = np.ascontiguousarray(values(a, inputs["x"]), a.numerics.compute_dtype)
        O, I = outputs_of(inputs), x.shape[-1]
        weight = np.broadcast_to(np.zeros((), x.dtype), (O, I))
        return _added(
            a,
            adapter,
            x,
            a.adapted(weight, None, inputs[part(inputs)].type),
            (*x.shape[:-1], O),
        )

    return run


def on_conv2d(adapter_of):
    def run(a, inputs, params):
        adapter = adapter_of(a, inputs, params)
        x = np.ascontiguousarray(values(a, inputs["x"]), a.numerics.compute_dtype)
        O, kernel = outputs_of(inputs), filter_of(inputs)
        stride, (top, bottom, left, right) = params["stride"], params["padding"]

        def product(x, weight, stride, padding):
            x, weight = (a.round_as(t, a.numerics.conv) for t in (a.settled(x), weight))
            return convolve(x, weight, stride, padding, a.matmul("conv"))

        weight = np.broadcast_to(np.zeros((), x.dtype), (O, x.shape[1], *kernel))
        layer = Conv2d(weight, None, stride, (top, bottom, left, right), 1, product, a.settled)
        sizes = positions(x.shape[2:], (top, bottom, left, right), kernel, each(stride, 2), (1, 1))
        return _added(a, adapter, x, layer, (len(x), O, *sizes))

    return run


def outputs_of(inputs) -> int:
    """Return the layer's number of outputs."""
    if "up" in inputs:
        return inputs["up"].shape[0]
    first, second = (inputs[w] if w in inputs else inputs[f"{w}_a"] for w in ("w1", "w2"))
    return first.shape[0] * second.shape[0]


def filter_of(inputs) -> tuple[int, ...]:
    """Return the filter's (R, S), or () for a linear layer."""
    return next(inputs[part] for part in ("down", "w2", "w2_b") if part in inputs).shape[2:]


Factors = Mapping[str, np.ndarray]

_FACTORS = ("down", "up", "w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b")


def delta_bound(delta: Callable[[Factors], np.ndarray], scale: Callable[[Run], float]) -> Callable[[Run], Bound]:
    def bound(run: Run) -> Bound:
        """Bound y = s D x, with the delta D made of factors f.

        Stored numbers move it by D(|f| + df) (|x| + dx) - D(|f|) |x|, the sums by gamma(n). Each factor but the
        last rounds its result. Storage narrower than the sums also rounds the last one's result, and that times
        the scale.

        n counts a serial sum over the delta's row and over every rank: it covers an engine that applies the
        factors in turn, and one that forms the delta.
        """
        factors = {name: np.abs(run.inputs[name]) for name in _FACTORS if name in run.inputs}
        conv = bool(filter_of(run.inputs))
        moved = {name: run.moved(name, run.numerics.conv if conv else run.numerics.products) for name in factors}
        kind = run.types[next(name for name in ("down", "w2", "w2_b") if name in factors)]
        through = run.numerics.conv if conv else run.numerics.input_of(kind)
        x, dx = np.abs(run.inputs["x"]), run.moved("x", through)
        s = abs(scale(run))

        def apply(weight, values):
            if not conv:
                return values @ weight.T
            values, weight = np.ascontiguousarray(values), np.ascontiguousarray(weight)
            none = np.zeros(len(weight))
            return conv2d_im2col(values, weight, none, run.params["stride"], tuple(run.params["padding"]))

        exact = s * delta(factors)
        upper = s * delta(upper_of(factors, moved))
        absolute = apply(upper, x + dx)
        squares = apply(s**2 * delta({name: (f + moved[name]) ** 2 for name, f in factors.items()}), (x + dx) ** 2)
        terms = Terms().add(np.maximum(absolute - apply(exact, x), 0) if dx.any() or _any(moved) else 0 * absolute)
        ranks = sum(len(f) for name, f in factors.items() if name in ("down", "w1_b", "w2_b"))
        n = upper[0].size + ranks + len(factors) + 1
        terms.add(*sums(run, "conv" if conv else "linear", n, absolute, squares, run.truth, through))
        kept = unit(run.numerics.storage_dtype)
        between = max(kept, _unit_of(through))
        if between > run.u:
            terms.add((len(factors) - 1) * between * absolute)
        if kept > run.u:
            terms.add(2 * kept * absolute)
        lost, beyond = _between_factors(run, upper_of(factors, moved), through, s, x + dx)
        bound = run.rounded(terms.add(lost))
        return bound._replace(limit=np.where(beyond, np.inf, bound.limit))

    return bound


def upper_of(factors: Factors, moved: Factors) -> Factors:
    return {name: value + moved[name] for name, value in factors.items()}


def _between_factors(
    run: Run, factors: Factors, through: str | Quantization | None, scale: float, x
) -> tuple[float, np.ndarray]:
    """Bound underflow and overflow of 16-bit numbers between two factors, whatever the order of the factors.

    A factor enlarges a number by its largest row sum at most; R is the product of those above 1. Each number
    between factors loses half a subnormal at most, which R s magnifies; where max |x| R s is beyond the type,
    anything may follow.

    -> the loss; whether the numbers of a token (or picture) may overflow, broadcast to y
    """
    types = [
        run.numerics.storage_dtype,
        *([SCALAR_TYPES[through]] if isinstance(through, str) and through in SCALAR_TYPES else ()),
    ]
    sums = (float(f.reshape(len(f), -1).sum(axis=1).max()) for f in factors.values())
    reach = max(scale, 1.0) * math.prod(max(a, 1.0) for a in sums)
    lost = (len(factors) - 1) * reach * max(float(ml_dtypes.finfo(t).smallest_subnormal) for t in types) / 2
    channels = tuple(range(1, x.ndim)) if filter_of(run.inputs) else -1
    return lost, x.max(axis=channels, keepdims=True) * reach > min(map(largest, types))


def _any(moved: Factors) -> bool:
    return any(m.any() for m in moved.values())


def _unit_of(through: str | Quantization | None) -> float:
    return 0.0 if through is None else unit_of_type(through) or 2.0**-7


def rank_of(op, inputs) -> tuple[int | None, int]:
    return inputs["down"].shape[:2] if op.name.startswith("lora") else lokr_ranks(inputs)


def other_scale(change) -> Wrong:
    """Replace alpha by change(alpha, rank, columns); no bug if that keeps alpha, or if no rank divides it."""

    def wrong(op, inputs, params):
        alpha, (rank, columns) = params["alpha"], rank_of(op, inputs)
        if alpha is None or rank is None:
            return None
        other = change(alpha, rank, columns)
        return None if other in (None, alpha) else answer(op, inputs, {**params, "alpha": other})

    return wrong


def read_as_transposed(name) -> Wrong:
    return other_input(name, lambda w: w.reshape(w.shape[::-1]).T if w.ndim == 2 and 1 not in w.shape else None)


SCALES = (
    Mutant("alpha ignored", other_scale(lambda alpha, rank, columns: rank)),
    Mutant("scale twice", other_scale(lambda alpha, rank, columns: alpha**2 / rank)),
    Mutant("alpha not divided by the rank", other_scale(lambda alpha, rank, columns: alpha * rank)),
    Mutant("alpha over the root of the rank", other_scale(lambda alpha, rank, columns: alpha * math.sqrt(rank))),
    Mutant(
        "a rank of 1 read as the columns", other_scale(lambda a, rank, columns: a / columns if rank == 1 else None)
    ),
)

SIDES: dict[str, Any] = {"padding": [1, 0, 2, 1]}
