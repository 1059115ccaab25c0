"""Bounds of adapters: the delta on absolute values."""

from collections.abc import Callable, Mapping

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.bounds.run import Run, products
from refsd.golden.numerics import DTYPES, FLOAT64
from refsd.golden.operations.adapters import filter_of, lokr_ranks, lora_scale
from refsd.golden.rounding import Bound, Terms, unit
from refsd.kernels.adapters.scales import lokr_scale
from refsd.kernels.conv2d_im2col import conv2d_im2col

Factors = Mapping[str, np.ndarray]
_FACTORS = ("down", "up", "w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b")


def _lora_delta(f: Factors) -> np.ndarray:
    return np.tensordot(f["up"], f["down"], 1)


def _lokr_delta(f: Factors) -> np.ndarray:
    w1, w2 = (f[w] if w in f else np.tensordot(f[f"{w}_a"], f[f"{w}_b"], 1) for w in ("w1", "w2"))
    O, I = (a * b for a, b in zip(w1.shape, w2.shape, strict=False))
    return (
        np.moveaxis(np.multiply.outer(w1, w2), 2, 1).reshape(O, I, *w2.shape[2:])
        if w2.ndim > 2
        else np.kron(w1, w2)
    )


def _of(delta: Callable[[Factors], np.ndarray], scale: Callable[[Run], float]) -> Callable[[Run], Bound]:
    def bound(run: Run) -> Bound:
        """y = s D x, D made of factors f: D(|f| + df) (|x| + dx) - D(|f|) |x| for what is stored, gamma(n) for the
        sums, and for each factor but the last one a rounding of what it leaves.

        n counts a serial sum over the delta's row and over every rank: it holds for an engine that goes through the
        factors and for one that forms the delta.
        """
        factors = {name: np.abs(run.inputs[name]) for name in _FACTORS if name in run.inputs}
        conv = bool(filter_of(run.inputs))
        moved = {name: run.moved(name, run.numerics.conv if conv else None) for name in factors}
        kind = run.types[next(name for name in ("down", "w2", "w2_b") if name in factors)]
        through = run.numerics.conv if conv else run.numerics.activations.get(kind)
        x, dx = np.abs(run.inputs["x"]), run.moved("x", through)
        s = abs(scale(run))

        def apply(weight, values):
            if not conv:
                return values @ weight.T
            values, weight = np.ascontiguousarray(values), np.ascontiguousarray(weight)
            none = np.zeros(len(weight))
            return conv2d_im2col(values, weight, none, run.params["stride"], tuple(run.params["padding"]))

        exact = s * delta(factors)
        upper = s * delta({name: value + moved[name] for name, value in factors.items()})
        absolute = apply(upper, x + dx)
        squares = apply(s**2 * delta({name: (f + moved[name]) ** 2 for name, f in factors.items()}), (x + dx) ** 2)
        terms = Terms().add(np.maximum(absolute - apply(exact, x), 0) if dx.any() or _any(moved) else 0 * absolute)
        ranks = sum(len(f) for name, f in factors.items() if name in ("down", "w1_b", "w2_b"))
        n = upper[0].size + ranks + len(factors) + 1
        terms.add(*products(run.u, n, absolute, squares, run.truth))
        between = max(unit(run.numerics.storage_dtype), _unit_of(through))
        if between > run.u:
            terms.add((len(factors) - 1) * between * absolute)
        return run.rounded(terms)

    return bound


def _any(moved: Factors) -> bool:
    return any(m.any() for m in moved.values())


def _unit_of(through: str | None) -> float:
    return {None: 0.0, "f16": unit(DTYPES["float16"]), "bf16": unit(DTYPES["bfloat16"])}.get(through, 2.0**-7)


def _lora_scale(run: Run) -> float:
    return lora_scale(Arithmetic(FLOAT64), run.inputs, run.params)


def _lokr_scale(run: Run) -> float:
    return lokr_scale(run.params["alpha"], lokr_ranks(run.inputs)[0])


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "lora": _of(_lora_delta, _lora_scale),
    "lora_conv2d": _of(_lora_delta, _lora_scale),
    "lokr": _of(_lokr_delta, _lokr_scale),
    "lokr_conv2d": _of(_lokr_delta, _lokr_scale),
}
