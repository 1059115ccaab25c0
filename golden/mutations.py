"""Ways to answer an operation wrongly: parameters, inputs or bytes replaced, wrong formulas, in float32."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.numerics import FLOAT32
from refsd.golden.operations import run
from refsd.golden.recipe import SCALE_FIELDS
from refsd.golden.tensor import SCALAR_TYPES, StoredTensor, stored
from refsd.kernels.quant import BLOCK_TYPES

Inputs = Mapping[str, StoredTensor]
Params = Mapping[str, Any]
# The wrong answer; None where the bug makes no difference to the question.
Wrong = Callable[[str, Inputs, Params], np.ndarray | None]


def answer(op: str, inputs: Inputs, params: Params) -> np.ndarray:
    return run(op, Arithmetic(FLOAT32), inputs, params)["y"]


def other_params(**changes: Callable[[Any], Any]) -> Wrong:
    """Parameters replaced by functions of themselves."""

    def wrong(op, inputs, params):
        return answer(op, inputs, {k: changes[k](v) if k in changes else v for k, v in params.items()})

    return wrong


def other_input(name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Wrong:
    """One input's values replaced; a block type becomes the float32 that it holds."""

    def wrong(op, inputs, params):
        if name not in inputs:
            return None
        before = inputs[name].values()
        after = change(before)
        if after is None or (after.shape == before.shape and np.array_equal(after, before)):
            return None
        dtype = before.dtype if before.dtype.kind in "iu" else np.float32
        return answer(op, {**inputs, name: stored(np.ascontiguousarray(after, dtype))}, params)

    return wrong


def without(name: str) -> Wrong:
    def wrong(op, inputs, params):
        return answer(op, {k: v for k, v in inputs.items() if k != name}, params) if name in inputs else None

    return wrong


def other_op(other: str) -> Wrong:
    return lambda op, inputs, params: answer(other, inputs, {})


def other_output(change: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    return lambda op, inputs, params: change(answer(op, inputs, params))


def other_blocks(name: str, change: Callable[[str, np.ndarray], np.ndarray | None]) -> Wrong:
    """The bytes [n, block bytes] of a block type's tensor replaced."""

    def wrong(op, inputs, params):
        tensor = inputs[name]
        if tensor.type in SCALAR_TYPES:
            return None
        blocks = tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes).copy()
        changed = change(tensor.type, blocks)
        if changed is None:
            return None
        return answer(op, {**inputs, name: tensor._replace(data=changed.reshape(-1))}, params)

    return wrong


# --- changes of arrays ------------------------------------------------------------------------------------------


def read_as_transposed(w: np.ndarray) -> np.ndarray | None:
    """The same memory taken for the transposed matrix."""
    return np.ascontiguousarray(w.reshape(w.shape[::-1]).T) if w.ndim == 2 and 1 not in w.shape else None


def to_float16(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def first_of_batch(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x[:1], x.shape)


def without_tail(x: np.ndarray) -> np.ndarray:
    """What a loop over whole vectors of 32 leaves out."""
    K = x.shape[-1]
    y = x.copy()
    y[..., K - (K % 32 or 32) :] = 0
    return y


def read_as_transposed_image(x: np.ndarray) -> np.ndarray:
    N, C, H, W = x.shape
    return x.reshape(N, C, W, H).swapaxes(2, 3)


def channels_interleaved(w: np.ndarray) -> np.ndarray | None:
    """Filters stored [K, R, S, C] taken for [K, C, R, S]."""
    K, C, R, S = w.shape
    return w.reshape(K, R, S, C).transpose(0, 3, 1, 2) if R * S > 1 and C > 1 else None


def swapped_nibbles(type: str, blocks: np.ndarray) -> np.ndarray | None:
    quants = {"q4_0": 2, "q4_1": 4, "q5_0": 6, "q5_1": 8, "q4_k": 16, "q5_k": 48}.get(type)
    if quants is None:
        return None
    blocks[:, quants:] = blocks[:, quants:] << 4 | blocks[:, quants:] >> 4
    return blocks


def neighbours_scale(type: str, blocks: np.ndarray) -> np.ndarray:
    at = SCALE_FIELDS[type][0].offset
    blocks[:, at : at + 2] = np.roll(blocks[:, at : at + 2], 1, axis=0)
    return blocks


def added_min(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """The sign of the second scale, which is that of the mins."""
    if len(SCALE_FIELDS[type]) < 2:
        return None
    blocks[:, SCALE_FIELDS[type][1].offset + 1] ^= 0x80
    return blocks


def missing_high_bits(type: str, blocks: np.ndarray) -> np.ndarray | None:
    at = {"q5_0": (2, 6), "q5_1": (4, 8), "q3_k": (0, 32), "q5_k": (16, 48), "q6_k": (128, 192)}.get(type)
    if at is None:
        return None
    blocks[:, slice(*at)] = 0
    return blocks


def unsigned(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """int8 quants read without their sign."""
    if type != "q8_0":
        return None
    blocks[:, 2:] &= 0x7F
    return blocks


def packed_scales(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """6-bit scales 4 to 7 without their two upper bits."""
    if type not in ("q4_k", "q5_k"):
        return None
    blocks[:, 4:12] &= 0x3F
    return blocks


# --- wrong formulas ---------------------------------------------------------------------------------------------


def padding_repeated(op, inputs, params):
    """The border's pixels repeated where zeros belong."""
    top, bottom, left, right = params["padding"]
    if not any(params["padding"]):
        return None
    x = np.pad(inputs["x"].values(), ((0, 0), (0, 0), (top, bottom), (left, right)), "edge")
    return answer(op, {**inputs, "x": stored(x)}, {**params, "padding": (0, 0, 0, 0)})


def padding_mirrored(op, inputs, params):
    top, bottom, left, right = params["padding"]
    if top == bottom and left == right:
        return None
    return answer(op, inputs, {**params, "padding": (bottom, top, right, left)})


def padding_transposed(op, inputs, params):
    top, bottom, left, right = params["padding"]
    if (top, bottom) == (left, right):
        return None
    return answer(op, inputs, {**params, "padding": (left, right, top, bottom)})


def normalised(x, axis, eps, ddof=0, one_pass=False):
    x = x.astype(np.float32)
    mean = x.mean(axis=axis, keepdims=True)
    if one_pass:
        variance = np.maximum((x * x).mean(axis=axis, keepdims=True) - mean * mean, 0)
    else:
        variance = x.var(axis=axis, keepdims=True, ddof=ddof)
    return (x - mean) / np.sqrt(variance + np.float32(eps))


def wrong_norm(**how) -> Wrong:
    def wrong(op, inputs, params):
        x = inputs["x"].values()
        if op == "group_norm":
            y = normalised(x.reshape(x.shape[0], params["num_groups"], -1), 2, params["eps"], **how).reshape(
                x.shape
            )
            return y * inputs["weight"].values()[:, None, None] + inputs["bias"].values()[:, None, None]
        y = normalised(x, -1, params["eps"], **how)
        if "weight" in inputs:
            y = y * inputs["weight"].values() + inputs["bias"].values()
        return y

    return wrong


def centred_rms(op, inputs, params):
    return normalised(inputs["x"].values(), -1, params["eps"]) * inputs["weight"].values()


def gate_times_gelu_of_value(op, inputs, params):
    value, gate = np.split(inputs["x"].values(), 2, axis=-1)
    return answer(op, {"x": stored(np.concatenate([gate, value], axis=-1))}, params)


def gated_by(activation: str) -> Wrong:
    def wrong(op, inputs, params):
        value, gate = np.split(inputs["x"].values(), 2, axis=-1)
        return value * answer(activation, {"x": stored(np.ascontiguousarray(gate))}, {})

    return wrong


def mask_before_scale(op, inputs, params):
    if "mask" not in inputs or params["scale"] == 1:
        return None
    mask = inputs["mask"].values().astype(np.float32) * params["scale"]
    return answer(op, {**inputs, "mask": stored(mask)}, params)


def softmax_over_columns(op, inputs, params):
    x = inputs["x"].values() * np.float32(params["scale"])
    x = x + (inputs["mask"].values().astype(np.float32) if "mask" in inputs else 0)
    e = np.exp(x - x.max(axis=-2, keepdims=True))
    return e / e.sum(axis=-2, keepdims=True)


def scale_by(power: float) -> Wrong:
    def wrong(op, inputs, params):
        return answer(op, inputs, {**params, "scale": inputs["q"].shape[-1] ** power})

    return wrong


def causal_with(k: int) -> Wrong:
    """The diagonal from which on keys are hidden, where it should be 1."""

    def wrong(op, inputs, params):
        if not params["causal"]:
            return None
        L = inputs["q"].shape[1]
        mask = np.triu(np.full((L, L), np.float16(-np.inf)), k)
        return answer(op, {**inputs, "mask": stored(mask)}, {**params, "causal": False})

    return wrong


def heads_as_tokens(x: np.ndarray) -> np.ndarray | None:
    """[B, H, L, D] taken for [B, L, H, D]."""
    B, L, H, D = x.shape
    return np.ascontiguousarray(x.reshape(B, H, L, D).transpose(0, 2, 1, 3)) if H > 1 else None


def exchanged(a: str, b: str) -> Wrong:
    return lambda op, inputs, params: answer(op, {**inputs, a: inputs[b], b: inputs[a]}, params)


def embedded(t, dim, max_period, last=0, interleaved=False):
    half = dim // 2
    f = np.exp(-np.log(max_period) * np.arange(half) / (half - last))
    angle = t.astype(np.float64)[:, None] * f
    y = [np.cos(angle), np.sin(angle)]
    flat = np.stack(y, axis=2).reshape(len(t), -1) if interleaved else np.concatenate(y, axis=1)
    return np.pad(flat, ((0, 0), (0, dim % 2))).astype(np.float32)


def wrong_embedding(**how) -> Wrong:
    def wrong(op, inputs, params):
        return embedded(inputs["t"].values(), params["dim"], params["max_period"], **how)

    return wrong


def sines_first(op, inputs, params):
    y, half = answer(op, inputs, params), params["dim"] // 2
    return np.concatenate([y[:, half : 2 * half], y[:, :half], y[:, 2 * half :]], axis=1)


def patches_channel_last(op, inputs, params):
    y = answer(op, inputs, params)
    N, CRS, PQ = y.shape
    C = inputs["x"].shape[1]
    return y.reshape(N, C, CRS // C, PQ).swapaxes(1, 2).reshape(y.shape)


def bilinear(op, inputs, params):
    x, factor = inputs["x"].values(), params["factor"]
    y = answer(op, inputs, params)
    return (y + np.roll(np.repeat(np.repeat(x, factor, 2), factor, 3), 1, axis=3)) / 2


def sigmoid_gelu(x: np.ndarray, a: float) -> np.ndarray:
    return x / (1 + np.exp(np.float32(-a) * x))
