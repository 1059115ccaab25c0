"""LoRA and LoKr through their factors, by a library's products and convolutions."""

from collections.abc import Callable
from typing import Any

from refsd.engines.arrays.function import Function
from refsd.golden.operations.adapter import lokr_ranks
from refsd.kernels.adapters.scales import alpha_over_rank, lokr_scale

# library, x [N, C, H, W], weight [K, C, R, S], stride, padding (top, bottom, left, right) -> [N, K, P, Q]
Convolve = Callable[[Any, Any, Any, Any, Any], Any]


def _lora(lib, x, params):
    return (x["x"] @ x["down"].T @ x["up"].T) * alpha_over_rank(params["alpha"], len(x["down"]))


def _factors(x):
    w1 = x["w1"] if "w1" in x else x["w1_a"] @ x["w1_b"]
    if "w2" in x:
        return w1, x["w2"]
    a, b = x["w2_a"], x["w2_b"]
    return w1, (a @ b.reshape(b.shape[0], -1)).reshape(a.shape[0], *b.shape[1:])


def _lokr(lib, x, params):
    w1, w2 = _factors(x)
    h = x["x"].reshape(*x["x"].shape[:-1], w1.shape[1], w2.shape[1])
    y = w1 @ (h @ w2.T)
    return y.reshape(*y.shape[:-2], -1) * lokr_scale(params["alpha"], lokr_ranks(x)[0])


def adapters(convolve: Convolve) -> dict[str, Function]:
    """Return the operations, of a library that convolves by `convolve`."""

    def lora_conv2d(lib, x, params):
        h = convolve(lib, x["x"], x["down"], params["stride"], params["padding"])
        y = convolve(lib, h, x["up"][:, :, None, None], 1, (0, 0, 0, 0))
        return y * alpha_over_rank(params["alpha"], len(x["down"]))

    def lokr_conv2d(lib, x, params):
        w1, w2 = _factors(x)
        N, C, H, W = x["x"].shape
        I1 = w1.shape[1]
        h = convolve(lib, x["x"].reshape(N * I1, C // I1, H, W), w2, params["stride"], params["padding"])
        _, O2, P, Q = h.shape
        y = w1 @ h.reshape(N, I1, O2 * P * Q)
        return y.reshape(N, -1, P, Q) * lokr_scale(params["alpha"], lokr_ranks(x)[0])

    return {"lora": _lora, "lora_conv2d": lora_conv2d, "lokr": _lokr, "lokr_conv2d": lokr_conv2d}
