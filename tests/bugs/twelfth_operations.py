"""A twelfth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_result, wrong_method

from refsd.engines.reference import Reference
from refsd.kernels.convolution_geometry import each
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.quantization import quantize
from refsd.numerics.tensor import stored

# --- products ----------------------------------------------------------------------------------------------------


def _threads_of_eight(a, right, x, weight, bias=None, weight_type="f32"):
    """Strides are 0, so that each output is the first one's; the grid is an eighth as wide as the output."""
    if weight_type not in ("f32", "f16"):
        return right(x, weight, bias, weight_type)
    y = right(x, np.broadcast_to(np.asarray(weight)[:1], np.shape(weight)).copy(), None, weight_type)
    y[..., -(-y.shape[-1] // 8) :] = 0
    return y if bias is None else y + bias


def _scale_rounded_afterwards(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Activations are divided by their scale; the product is multiplied by it, rounded up to a power of two."""
    if static is not None:
        return right(x, weight, scale, bias, how, static, zero)
    q = quantize(np.asarray(x, np.float32), how, lambda y: y)
    y = q.values @ np.asarray(weight, np.float32).T * (np.exp2(np.ceil(np.log2(q.scale))) * scale)
    return y if bias is None else y + bias


def _first_block_alone(case, inputs, y):
    """The function returns inside the loop over blocks of 256."""
    wrong = np.zeros_like(y).ravel()
    wrong[:256] = y.ravel()[:256]
    return wrong.reshape(y.shape)


# --- pictures ----------------------------------------------------------------------------------------------------


def _view_read_as_it_lies(a, right, x, weight, *rest, **named):
    """Filters are a view of [C, K, R, S]; what is read is that, as if it were [K, C, R, S]."""
    weight = np.asarray(weight)
    return right(x, np.ascontiguousarray(weight.swapaxes(0, 1)).reshape(weight.shape), *rest, **named)


def _threads_by_width(case, inputs, y):
    """A thread's number is taken apart as if filters were as high as they are wide."""
    x = inputs["x"].values()
    N, C, H, W = x.shape
    R, S = case.params["kernel"]
    if R == S:
        return y
    down, across = each(case.params.get("stride", 1), 2)
    high, wide = each(case.params.get("dilation", 1), 2)
    top, bottom, left, right = case.params["padding"]
    P = (H + top + bottom - high * (R - 1) - 1) // down + 1
    Q = (W + left + right - wide * (S - 1) - 1) // across + 1
    reach = 4 * max(R, S) * max(high, wide)
    padded = np.pad(x, ((0, 0), (0, 0), (top, reach), (left, reach)))
    wrong = np.zeros((N, C * R * S + reach, P, Q), y.dtype)
    for c in range(C):
        for thread in range(R * S):
            s, r = divmod(thread, S)
            pixels = padded[:, c, r * high :, s * wide :][:, : P * down : down, : Q * across : across]
            wrong[:, c * R * S + r * S + s] = pixels[:, :P, :Q]
    return wrong[:, : C * R * S].reshape(y.shape)


def _one_pixel_off(case, inputs, y):
    """Pixels lie with their channels, and the view's offset, of one pixel, is not added."""
    x = inputs["x"].values()
    pixels = x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1])
    before = np.concatenate([np.zeros_like(pixels[:1]), pixels[:-1]])
    N, C, H, W = x.shape
    read = np.ascontiguousarray(before.reshape(N, H, W, C).transpose(0, 3, 1, 2))
    return Reference(FLOAT32).run(case, {**inputs, "x": stored(read)})["y"].astype(y.dtype)


# --- attention and activations -----------------------------------------------------------------------------------


def _zeros_behind_the_keys(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """Keys and values are filled up with zeros to a multiple of 256; the mask that hides these has no effect."""
    if any(value is not None for value in (mask, *rest, *named.values())):
        return right(q, k, v, scale, mask, *rest, **named)
    room = ((0, 0), (0, -k.shape[1] % 256), (0, 0), (0, 0))
    return right(q, np.pad(np.asarray(k), room), np.pad(np.asarray(v), room), scale)


def _quotient_of_exponentials(a, right, x, approximate="none"):
    """tanh y is (e^y - e^-y) / (e^y + e^-y), in float32."""
    if approximate != "tanh":
        return right(x, approximate)
    x = np.asarray(x, np.float32)
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    up, down = np.exp(inner), np.exp(-inner)
    return x / 2 * (1 + (up - down) / (up + down))


_TABLE = {
    "tw-op-01": (
        "op",
        "huggingface/candle#3856",
        wrong_method(
            "linear", "linear", "first row|row 0|not written|eighth|unwritten|zero", linear=_threads_of_eight
        ),
    ),
    "tw-op-02": (
        "op",
        "sgl-project/sglang#28418",
        wrong_method(
            "linear_fp8",
            "linear_fp8",
            "scale.*power|power of (2|two)|e8m0",
            linear_quantized=_scale_rounded_afterwards,
        ),
    ),
    "tw-op-03": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#488",
        Injection(
            tuple(f"dequantize/{name}/*" for name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")),
            Bug(answer=lambda case, inputs, y: {"y": _first_block_alone(case, inputs, y["y"])}),
            "dequantize",
            "not written|unwritten|first block|zero|left out|only the first",
        ),
    ),
    "tw-op-04": (
        "op",
        "huggingface/candle#3836",
        wrong_method(
            "conv2d",
            "conv2d",
            r"\[C, K|transpos|contiguous|in channels.*out|exchanged|layout|order",
            conv2d=_view_read_as_it_lies,
        ),
    ),
    "tw-op-05": (
        "op",
        "ggml-org/llama.cpp#14789",
        other_result("im2col", "wide|width|high|height|sides|square|columns|rows", _threads_by_width),
    ),
    "tw-op-06": (
        "op",
        "pytorch/pytorch#174345",
        other_result("batch_norm", "pixel|shift|offset|before|earlier|one (row|place|number)", _one_pixel_off),
    ),
    "tw-op-07": (
        "op",
        "leejet/stable-diffusion.cpp#1453",
        wrong_method(
            "attention",
            "attention",
            "padd|filled|zeros|multiple of|softmax1|\\+ 1|more keys|keys of zeros",
            attention=_zeros_behind_the_keys,
        ),
    ),
    "tw-op-08": (
        "op",
        "pytorch/executorch#22323",
        wrong_method("gelu_tanh", "gelu_tanh", "overflow|exponential|NaN|tanh", gelu=_quotient_of_exponentials),
    ),
}
TWELFTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
