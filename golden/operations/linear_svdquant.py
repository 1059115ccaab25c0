"""SVDQuant's linear layers: both factors in 4 bits, and beside their product a low-rank one that is not rounded."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from refsd.golden.bounds import Run, bias_of, sums
from refsd.golden.few_bits import moves
from refsd.golden.mutations import BATCH, F16_INPUT, NO_BIAS, Wrong, other_input
from refsd.golden.operation import Inputs, Mutant, Operation, Params, values
from refsd.golden.operations.few_bits import product_case
from refsd.golden.operations.linear import read_as_transposed, shifted_rows, without_tail
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, gamma
from refsd.kernels.quant import w4a8
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.quantization import Quantization, Quantized, quantize

_GROUP = 64
# What nunchaku and comfy-kitchen add to the outputs of a GELU, so that they become codes without a sign.
_SHIFT = 0.171875


def _rule(params: Params) -> Quantization:
    """A group of 64 is a row of its own."""
    return Quantization("uint4" if params["unsigned"] else "int4", "row")


def _codes(inputs: Inputs) -> np.ndarray:
    """Return the weight's codes, of which the first of a byte is its lower half. -> int8 [O, K], -8 to 7"""
    return w4a8.signed(w4a8.unpack(inputs["weight"].values().astype(np.uint8)))


def _by_scale(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Multiply codes [O, K] by the scales of their groups [K/64, O]."""
    return codes * np.repeat(scale.T, codes.shape[1] // scale.shape[0], axis=1).astype(scale.dtype)


class _Layer(NamedTuple):
    """The tensors of a layer in one dtype, of which a bug replaces some. group: activations under one scale"""

    x: np.ndarray
    smooth: np.ndarray
    weight: np.ndarray
    down: np.ndarray
    up: np.ndarray
    bias: np.ndarray | None
    how: Quantization
    shift: float
    group: int = _GROUP

    @property
    def smoothed(self) -> np.ndarray:
        return (self.x + self.x.dtype.type(self.shift)) / self.smooth


def _layer(a: Arithmetic, inputs: Inputs, params: Params) -> _Layer:
    dtype = a.numerics.compute_dtype
    given = {name: values(a, tensor).astype(dtype) for name, tensor in inputs.items() if name != "weight"}
    weight = _by_scale(_codes(inputs), given["group_scale"])
    tensors = given["x"], given["smooth"], weight, given["down"], given["up"], given.get("bias")
    return _Layer(*tensors, _rule(params), _SHIFT if params["unsigned"] else 0.0)


def _few_bits(layer: _Layer, settled) -> Quantized:
    """Round the smoothed activations. -> values [..., K/64, 64], scale [..., K/64, 1]"""
    v = settled(layer.smoothed)
    return quantize(v.reshape(*v.shape[:-1], -1, layer.group), layer.how, settled)


def _result(a: Arithmetic, layer: _Layer, q: Quantized, low: np.ndarray | None = None) -> np.ndarray:
    main = (q.values * q.scale).reshape(layer.x.shape) @ layer.weight.T
    low = (layer.x if low is None else low) @ layer.down @ layer.up.T
    y = a.settled(main) + a.settled(low)
    return a.store(y if layer.bias is None else a.settled(y) + layer.bias)


def _run(a: Arithmetic, inputs: Inputs, params: Params) -> np.ndarray:
    layer = _layer(a, inputs, params)
    return _result(a, layer, _few_bits(layer, a.settled))


def _bound(run: Run) -> Bound:
    """y = (q s) W^T + (x D) U^T + b.

    |W| dq where a code may be another; the sums of K, of K and of R products; what the numbers of D, U, W and b
    lose where they are stored; four roundings of a number of few bits that an engine widens.
    """
    n, u = run.numerics, run.u
    near = lambda name: run.inputs[name].astype(n.storage_dtype).astype(np.float64)
    x, dx, smooth = near("x"), run.moved("x"), near("smooth")
    shift = _SHIFT if run.params["unsigned"] else 0.0
    v = (x + shift) / smooth
    dv = dx / smooth + 2 * u * np.abs(v) + run.between(np.abs(v)) + (u * np.abs(x + shift) / smooth if shift else 0)
    groups = (*x.shape[:-1], -1, _GROUP)
    bits = moves(v.reshape(groups), dv.reshape(groups), _rule(run.params), n.compute, n.storage)
    q = (bits.values * bits.scale).reshape(x.shape)
    most = np.abs(bits.values) + bits.moved
    dq = (bits.scale * (bits.moved + most * bits.relative)).reshape(x.shape)
    codes = _codes(run.stored).astype(np.float64)
    W = np.abs(_by_scale(codes, near("group_scale")))
    dW = np.abs(_by_scale(codes, run.moved("group_scale")))
    D, U = np.abs(run.inputs["down"]), np.abs(run.inputs["up"])
    dD, dU = run.moved("down"), run.moved("up")
    terms = Terms().add(dq @ W.T, np.sqrt(dq**2 @ (W**2).T / 3))
    largest = np.abs(q) + dq
    absolute = largest @ (W + dW).T
    main = np.abs(q @ _by_scale(codes, near("group_scale")).T)
    terms.add(*sums(run, "linear", x.shape[-1], absolute, largest**2 @ ((W + dW) ** 2).T, main, _rule(run.params)))
    terms.add(largest @ dW.T).add(gamma(4, u) * absolute)
    x, low = np.abs(x), np.abs(run.inputs["x"] @ run.inputs["down"] @ run.inputs["up"].T)
    inner, exact = (x + dx) @ (D + dD), x @ D
    total = inner @ (U + dU).T
    terms.add(np.maximum(total - exact @ U.T, 0) if dx.any() or dD.any() or dU.any() else 0 * total)
    squares = (x + dx) ** 2 @ (D + dD) ** 2 @ ((U + dU) ** 2).T
    terms.add(*sums(run, "linear", sum(D.shape), total, squares, low))
    terms.add(run.between(inner) @ U.T)
    b, db = bias_of(run)
    y = main + low + terms.limit
    return run.rounded(terms.add(db).add(run.between(main + low) + 2 * run.between(y) + 2 * u * (y + b)))


def _wrong(change: Callable[[_Layer, Inputs], np.ndarray | None]) -> Wrong:
    return lambda op, inputs, params: change(_layer(_FLOAT32, inputs, params), inputs)


_FLOAT32 = Arithmetic(FLOAT32)


def _answer(layer: _Layer, q: Quantized | None = None, low: np.ndarray | None = None) -> np.ndarray:
    return _result(_FLOAT32, layer, _few_bits(layer, _FLOAT32.settled) if q is None else q, low)


def _with(**changes) -> Wrong:
    """Another rule of the activations' rounding."""
    return _wrong(lambda layer, inputs: _answer(layer._replace(how=replace(layer.how, **changes))))


def _other_codes(change) -> Wrong:
    """The weight's codes read otherwise. change: codes of -8 to 7, float32 -> float32"""
    return _wrong(
        lambda layer, inputs: _answer(
            layer._replace(
                weight=_by_scale(change(_codes(inputs).astype(np.float32)), inputs["group_scale"].values())
            )
        )
    )


def _groups_of(group: int) -> Wrong:
    def change(layer: _Layer, inputs: Inputs) -> np.ndarray | None:
        width = group or layer.x.shape[-1]
        whole = width != _GROUP and layer.x.shape[-1] % width == 0
        return _answer(layer._replace(group=width)) if whole else None

    return _wrong(change)


def _not_rounded(layer: _Layer, inputs: Inputs) -> np.ndarray:
    return _answer(layer, Quantized(layer.smoothed, np.ones(1, np.float32)))


def _scale_through_float16(layer: _Layer, inputs: Inputs) -> np.ndarray:
    q = _few_bits(layer, _FLOAT32.settled)
    return _answer(layer, q._replace(scale=q.scale.astype(np.float16).astype(np.float32)))


def _smoothed_after(layer: _Layer, inputs: Inputs) -> np.ndarray:
    """The activations rounded first, and then divided."""
    q = _few_bits(layer._replace(smooth=np.ones_like(layer.smooth)), _FLOAT32.settled)
    smooth = layer.smooth.reshape(-1, _GROUP)
    return _answer(layer, Quantized(q.values / smooth, q.scale))


def _nan_of_zero_groups(layer: _Layer, inputs: Inputs) -> np.ndarray | None:
    zero = ~layer.smoothed.any(axis=-1, keepdims=True)
    return np.where(zero, np.float32(np.nan), _answer(layer)) if zero.any() else None


def _shift_kept(layer: _Layer, inputs: Inputs) -> np.ndarray | None:
    return _answer(layer, low=layer.x + np.float32(layer.shift)) if layer.shift else None


def _shift_missing(layer: _Layer, inputs: Inputs) -> np.ndarray | None:
    return _answer(layer._replace(shift=0.0)) if layer.shift else None


def _next_group(scale: np.ndarray) -> np.ndarray | None:
    return np.roll(scale, -1, axis=0) if len(scale) > 1 else None


def _smoothed_low(layer: _Layer, inputs: Inputs) -> np.ndarray:
    return _answer(layer, low=layer.smoothed)


def _rounded_low(layer: _Layer, inputs: Inputs) -> np.ndarray:
    q = _few_bits(layer, _FLOAT32.settled)
    return _answer(layer, q, (q.values * q.scale).reshape(layer.x.shape) * layer.smooth)


def _case(label: str, x, out: int, *, rank=16, unsigned=False, **more):
    K = x[-1]
    tensors = {
        "smooth": Recipe((K,), data="positive", exponent=-17),
        "weight": Recipe((out, K // 2), "u8", "token_ids", 0, n=256),
        "group_scale": Recipe((K // _GROUP, out), data="positive", exponent=-23),
        "down": Recipe((K, rank), exponent=-19),
        "up": Recipe((out, rank), exponent=-17),
    }
    return product_case("linear_svdquant", label, x, out, tensors, {"unsigned": unsigned}, **more)


LINEAR_SVDQUANT = Operation(
    "linear_svdquant",
    "Divide activations by a smoothing factor, multiply 4 bits by 4 bits in groups of 64, add a low-rank product.",
    family="linear",
    inputs={
        "x": "[..., K]",
        "smooth": "[K]",
        "weight": "[O, K/2]",
        "group_scale": "[K/64, O]",
        "down": "[K, R]",
        "up": "[O, R]",
        "bias?": "[O]",
    },
    output="[..., O]",
    run=_run,
    bound=_bound,
    mutants=(
        Mutant("low-rank branch left out", other_input("up", np.zeros_like)),
        Mutant("low-rank branch's first factor read as its transpose", other_input("down", read_as_transposed)),
        Mutant("low-rank branch's second factor read as its transpose", other_input("up", read_as_transposed)),
        Mutant("low-rank branch of the smoothed activations", _wrong(_smoothed_low)),
        Mutant("low-rank branch of the rounded activations", _wrong(_rounded_low)),
        Mutant("smoothing multiplied for divided", other_input("smooth", lambda smooth: 1 / smooth)),
        Mutant("smoothing missing", other_input("smooth", np.ones_like)),
        Mutant("activations rounded before they are smoothed", _wrong(_smoothed_after)),
        Mutant("activations not rounded: the weight was widened instead", _wrong(_not_rounded)),
        Mutant("activations rounded toward zero", _with(rounding="zero")),
        Mutant("activations' scale max |x| / 8, not / 7", _with(largest=8.0)),
        Mutant("activations in 8 bits", _with(type="int8")),
        Mutant("activations' scale rounded to float16", _wrong(_scale_through_float16)),
        Mutant("one scale for a row of activations, not one every 64", _groups_of(0)),
        Mutant("activations in groups of 32", _groups_of(32)),
        Mutant("NaN where a row of x is zero", _wrong(_nan_of_zero_groups)),
        Mutant("shift of unsigned activations missing", _wrong(_shift_missing)),
        Mutant("low-rank branch of the shifted activations", _wrong(_shift_kept)),
        Mutant(
            "codes of a byte in the other order", other_input("weight", lambda packed: packed << 4 | packed >> 4)
        ),
        Mutant(
            "weight's codes read as unsigned", _other_codes(lambda codes: np.where(codes < 0, codes + 16, codes))
        ),
        Mutant(
            "weight's codes read as a number less 8, not as two's complement",
            _other_codes(lambda codes: codes % 16 - 8),
        ),
        Mutant("weight's lowest code -7, not -8", _other_codes(lambda codes: np.maximum(codes, -7))),
        Mutant("weight's scales of the next group", other_input("group_scale", _next_group)),
        Mutant("weight's scales of groups transposed", other_input("group_scale", read_as_transposed)),
        Mutant("weight read as its transpose", other_input("weight", read_as_transposed)),
        Mutant("last columns left out", other_input("x", without_tail)),
        Mutant("row i read from number i on, not from i K", other_input("x", shifted_rows)),
        NO_BIAS,
        BATCH,
        F16_INPUT,
    ),
    cases=(
        _case("tokens", (77, 320), 33),
        _case("batch", (2, 9, 128), 20),
        _case("row", (1, 192), 77, bias=False),
        _case("outliers", (9, 256), 20, x_data="outliers"),
        _case("rows", (20, 192), 33, x_data="rows", n=6),
        _case("one-group", (7, 64), 33, rank=1),
        _case("wide-branch", (9, 128), 48, rank=96),
        _case("unsigned", (20, 128), 33, unsigned=True, x_data="positive", exponent=-17, offset=-0.17),
    ),
    params={"unsigned": False},
    fits=lambda shapes, params: shapes["x"][-1] % _GROUP == 0 and isinstance(params["unsigned"], bool),
)

OPERATIONS = (LINEAR_SVDQUANT,)
