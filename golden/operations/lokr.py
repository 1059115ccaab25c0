"""LoKr, applied factor by factor."""

from collections.abc import Iterable

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, F16_INPUT, SIDES_SWAPPED, answer, other_input, to_float16
from refsd.golden.operation import Mutant, Operation
from refsd.golden.operations.adapter import (
    SCALES,
    SIDES,
    Factors,
    columns_count,
    delta_bound,
    lokr_ranks,
    on_conv2d,
    on_linear,
    other_scale,
    rank_of,
    read_as_transposed,
)
from refsd.golden.operations.conv2d import CONV2D
from refsd.golden.operations.convolution import window_fits
from refsd.golden.operations.linear import LINEAR
from refsd.golden.recipe import Recipe
from refsd.kernels.adapters import LoKr
from refsd.kernels.adapters.scales import lokr_scale, lokr_scale_sdcpp, rank_sdcpp
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored


def _lokr_scale(a, inputs, params) -> float:
    rank, columns = lokr_ranks(inputs)
    if columns_count(a):
        return lokr_scale_sdcpp(params["alpha"], rank_sdcpp(rank, columns))
    return lokr_scale(params["alpha"], rank)


def _lokr_of(a, inputs, params) -> LoKr:
    for w in ("w1", "w2"):
        if (w in inputs) == (f"{w}_a" in inputs) or (f"{w}_a" in inputs) != (f"{w}_b" in inputs):
            raise BadInput(f"lokr: inputs {sorted(inputs)}, expected {w}, or {w}_a and {w}_b")
    w1, w2 = (
        a.expand(inputs[w]) if w in inputs else (a.expand(inputs[f"{w}_a"]), a.expand(inputs[f"{w}_b"]))
        for w in ("w1", "w2")
    )
    return LoKr(w1, w2, _lokr_scale(a, inputs, params))


_FACTORS = {"w1?": "[O1, I1]", "w1_a?": "[O1, K]", "w1_b?": "[K, I1]"}


def _lokr_delta(f: Factors) -> np.ndarray:
    w1, w2 = (f[w] if w in f else np.tensordot(f[f"{w}_a"], f[f"{w}_b"], 1) for w in ("w1", "w2"))
    O, I = (a * b for a, b in zip(w1.shape, w2.shape, strict=False))
    return (
        np.moveaxis(np.multiply.outer(w1, w2), 2, 1).reshape(O, I, *w2.shape[2:])
        if w2.ndim > 2
        else np.kron(w1, w2)
    )


def _bound_scale(run: Run) -> float:
    return lokr_scale(run.params["alpha"], lokr_ranks(run.inputs)[0])


def alpha_in_full(op, inputs, params):
    """Divide alpha by the rank that was asked for (here 4) though both factors are full matrices: PEFT's rule."""
    if params["alpha"] is None or rank_of(op, inputs)[0] is not None:
        return None
    return answer(op, inputs, params) * np.float32(params["alpha"] / 4)


def _full(inputs) -> tuple[np.ndarray, np.ndarray]:
    w1, w2 = (
        inputs[w].values() if w in inputs else np.tensordot(inputs[f"{w}_a"].values(), inputs[f"{w}_b"].values(), 1)
        for w in ("w1", "w2")
    )
    return np.asarray(w1, np.float32), np.asarray(w2, np.float32)


def _scale(op, inputs, params) -> float:
    rank, _ = rank_of(op, inputs)
    return 1.0 if rank is None or params["alpha"] is None else params["alpha"] / rank


def _as_layer(op, inputs, params, delta):
    """Compute a layer with this delta as its weight."""
    weight = {"x": inputs["x"], "weight": stored(np.ascontiguousarray(delta, np.float32))}
    if op.name == "lokr":
        return answer(LINEAR, weight, {})
    return answer(CONV2D, weight, {k: v for k, v in params.items() if k != "alpha"} | {"dilation": 1, "groups": 1})


def exchanged(op, inputs, params):
    """Use kron(W2, W1) instead of kron(W1, W2)."""
    w1, w2 = _full(inputs)
    delta = np.stack([np.kron(tap, w1) for tap in np.moveaxis(w2.reshape(*w2.shape[:2], -1), -1, 0)], axis=-1)
    shape = (len(w1) * len(w2), w1.shape[1] * w2.shape[1], *w2.shape[2:])
    return _as_layer(op, inputs, params, _scale(op, inputs, params) * delta.reshape(shape))


def interpolated(op, inputs, params):
    """Stretch W1 over the filter's taps instead of over the channels (stable-diffusion.cpp, merged)."""
    w1, w2 = _full(inputs)
    if w2.ndim == 2:
        return None
    O2, I2, R, S = w2.shape
    stretched = np.repeat(np.repeat(w1, R, axis=0), S, axis=1)  # [O1 R, I1 S]
    delta = stretched[None, None] * np.tile(w2, (1, 1, len(w1), w1.shape[1]))
    shape = (len(w1) * O2, w1.shape[1] * I2, R, S)
    return _as_layer(op, inputs, params, _scale(op, inputs, params) * delta.reshape(shape))


def input_folded(op, inputs, params):
    """Read x as [I2, I1] where it is [I1, I2]."""
    w1, w2 = _full(inputs)
    x, axis = inputs["x"].values(), -1 if op.name == "lokr" else 1
    channels = np.moveaxis(x, axis, -1)
    turned = (
        channels.reshape(*channels.shape[:-1], w2.shape[1], w1.shape[1]).swapaxes(-1, -2).reshape(channels.shape)
    )
    return answer(op, {**inputs, "x": stored(np.ascontiguousarray(np.moveaxis(turned, -1, axis)))}, params)


def output_unfolded(op, inputs, params):
    """Leave y as [O2, O1] where it should be [O1, O2]."""
    w1, w2 = _full(inputs)
    axis = -1 if op.name == "lokr" else 1
    y = np.moveaxis(answer(op, inputs, params), axis, -1)
    turned = y.reshape(*y.shape[:-1], len(w1), len(w2)).swapaxes(-1, -2).reshape(y.shape)
    return np.moveaxis(turned, -1, axis)


_MUTANTS = (
    *SCALES,
    Mutant("a rank of 1 makes the scale 1", other_scale(lambda alpha, rank, columns: 1.0 if rank == 1 else None)),
    Mutant("alpha counts though both factors are in full", alpha_in_full),
    Mutant("W1 and W2 exchanged", exchanged),
    Mutant("input folded the other way", input_folded),
    Mutant("output unfolded the other way", output_unfolded),
    Mutant("W1 read as its transpose", read_as_transposed("w1")),
    Mutant("W1 silently float16", other_input("w1", to_float16)),
    BATCH,
    F16_INPUT,
)

_FLIPPED = tuple(
    Mutant(f"filter flipped ({name})", other_input(name, lambda w: w[:, :, ::-1, ::-1] if w.ndim == 4 else None))
    for name in ("w2", "w2_b")
)

_W1, _W2, _BOTH = ("w1",), ("w2",), ("w1", "w2")


def _case(
    type: str,
    x: tuple[int, ...],
    w1: tuple[int, int],
    w2: tuple[int, int],
    alpha: float | None,
    factored: Iterable[str] = (),
    rank: int = 4,
    kernel=(),
    **params,
) -> Case:
    parts = "-".join(factored) or "full"
    inputs = {"x": Recipe(x)}
    for name, (O, I), taps, exponent in (("w1", w1, (), -17), ("w2", w2, kernel, -17)):
        if name in parts:
            inputs |= {
                f"{name}_a": Recipe((O, rank), type),
                f"{name}_b": Recipe((rank, I, *taps), type, exponent=exponent),
            }
        else:
            inputs[name] = Recipe((O, I, *taps), type, exponent=exponent)
    shape = "x".join(map(str, (*x, *kernel)))
    op = "lokr_conv2d" if kernel else "lokr"
    name = f"{op}/{type}/{parts}{f'-r{rank}' if factored else ''}-x{shape}-o{w1[0]}x{w2[0]}"
    return Case(name, op, inputs, {"alpha": alpha, **params})


LOKR = Operation(
    "lokr",
    "What LoKr adds to a linear layer: scale kron(W1, W2) x; scale alpha / K, or 1 if no factor is in parts.",
    family="adapters",
    inputs={"x": "[..., I1*I2]", **_FACTORS, "w2?": "[O2, I2]", "w2_a?": "[O2, K]", "w2_b?": "[K, I2]"},
    output="[..., O1*O2]",
    params={"alpha": None},
    run=on_linear(_lokr_of, lambda inputs: "w2" if "w2" in inputs else "w2_b"),
    bound=delta_bound(_lokr_delta, _bound_scale),
    mutants=_MUTANTS,
    cases=(
        _case("f32", (2, 33, 77), (4, 7), (6, 11), 3.0),
        _case("f16", (2, 9, 96), (4, 6), (5, 16), None),
        _case("f32", (2, 33, 77), (4, 7), (6, 11), 3.0, _W2),
        _case("f32", (2, 33, 77), (5, 7), (6, 11), 3.0, _W1),
        _case("f16", (2, 9, 96), (4, 6), (5, 16), 3.0, _BOTH),
        _case("f32", (2, 9, 77), (4, 7), (6, 11), 3.0, _W2, rank=1),
        _case("f32", (2, 9, 77), (4, 7), (6, 11), 3.0, _W1, rank=1),
        # Square factors: their transposes have their shapes.
        _case("f32", (2, 9, 77), (7, 7), (11, 11), None),
    ),
)

LOKR_CONV2D = Operation(
    "lokr_conv2d",
    "The same of a convolution: the Kronecker product of W1 and each tap of W2.",
    family="adapters",
    inputs={
        "x": "[N, I1*I2, H, W]",
        **_FACTORS,
        "w2?": "[O2, I2, R, S]",
        "w2_a?": "[O2, K]",
        "w2_b?": "[K, I2, R, S]",
    },
    output="[N, O1*O2, P, Q]",
    channel=1,
    params={"alpha": None, "stride": 1, "padding": (0, 0, 0, 0)},
    run=on_conv2d(_lokr_of),
    fits=window_fits,
    bound=delta_bound(_lokr_delta, _bound_scale),
    mutants=(
        Mutant("W1 stretched over the taps", interpolated),
        *_FLIPPED,
        SIDES_SWAPPED,
        *_MUTANTS,
    ),
    cases=(
        _case("f32", (2, 28, 9, 7), (3, 4), (5, 7), 3.0, kernel=(3, 3), **SIDES),
        _case("f16", (2, 24, 8, 6), (3, 4), (5, 6), 3.0, kernel=(3, 3), stride=2, **SIDES),
        _case("f32", (2, 28, 9, 7), (3, 4), (5, 7), 3.0, _W2, kernel=(3, 3), **SIDES),
        _case("f32", (2, 28, 9, 7), (3, 4), (5, 7), 3.0, _BOTH, kernel=(3, 2), **SIDES),
        _case("f32", (2, 28, 5, 4), (3, 4), (5, 7), 3.0, _W2, rank=1, kernel=(3, 3), **SIDES),
        _case("f32", (1, 24, 6, 5), (3, 4), (5, 6), 2.0, _W2, kernel=(3, 3), padding=(1, 1, 1, 1)),
    ),
)

OPERATIONS = (LOKR, LOKR_CONV2D)
