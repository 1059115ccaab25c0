"""Adapters as ONNX nodes, through their factors."""

from refsd.golden.operations.adapter import lokr_ranks
from refsd.kernels.adapters.scales import alpha_over_rank, lokr_scale
from refsd.onnx.operations.convolution import convolve
from refsd.onnx.operations.function import Function
from refsd.onnx.operations.products import linear


def _lora(b, x, params):
    y = linear(b, linear(b, x["x"], x["down"]), x["up"])
    return b.node("Mul", y, alpha_over_rank(params["alpha"], x["down"].shape[0]))


def _lora_conv2d(b, x, params):
    h = convolve(b, x["x"], x["down"], None, params["stride"], params["padding"])
    y = convolve(b, h, b.reshape(x["up"], (*x["up"].shape, 1, 1)), None)
    return b.node("Mul", y, alpha_over_rank(params["alpha"], x["down"].shape[0]))


def _factors(b, x):
    w1 = x["w1"] if "w1" in x else b.node("MatMul", x["w1_a"], x["w1_b"])
    if "w2" in x:
        return w1, x["w2"]
    K, *shape = x["w2_b"].shape
    w2 = b.node("MatMul", x["w2_a"], b.reshape(x["w2_b"], (K, -1)))
    return w1, b.reshape(w2, (w2.shape[0], *shape))


def _lokr(b, x, params):
    w1, w2 = _factors(b, x)
    *rows, _ = x["x"].shape
    h = linear(b, b.reshape(x["x"], (*rows, w1.shape[1], w2.shape[1])), w2)
    y = b.reshape(b.node("MatMul", w1, h), (*rows, -1))
    return b.node("Mul", y, lokr_scale(params["alpha"], lokr_ranks(x)[0]))


def _lokr_conv2d(b, x, params):
    w1, w2 = _factors(b, x)
    N, _, H, W = x["x"].shape
    O1, I1 = w1.shape
    h = convolve(b, b.reshape(x["x"], (N * I1, -1, H, W)), w2, None, params["stride"], params["padding"])
    _, O2, P, Q = h.shape
    y = b.node("MatMul", w1, b.reshape(h, (N, I1, O2 * P * Q)))
    return b.node("Mul", b.reshape(y, (N, O1 * O2, P, Q)), lokr_scale(params["alpha"], lokr_ranks(x)[0]))


FUNCTIONS: dict[str, Function] = {
    "lora": _lora,
    "lora_conv2d": _lora_conv2d,
    "lokr": _lokr,
    "lokr_conv2d": _lokr_conv2d,
}
