"""Adapters by torch, applied factor by factor without forming the delta."""

from refsd.engines.torch.ops.function import Function
from refsd.golden.operations.adapter import lokr_ranks
from refsd.kernels.adapters.scales import alpha_over_rank, lokr_scale


def _convolve(torch, x, weight, params):
    top, bottom, left, right = params["padding"]
    padded = torch.nn.functional.pad(x, (left, right, top, bottom))
    return torch.nn.functional.conv2d(padded, weight, stride=params["stride"])


def _lora(torch, x, params):
    linear = torch.nn.functional.linear
    return linear(linear(x["x"], x["down"]), x["up"]) * alpha_over_rank(params["alpha"], len(x["down"]))


def _lora_conv2d(torch, x, params):
    h = _convolve(torch, x["x"], x["down"], params)
    return torch.nn.functional.conv2d(h, x["up"][:, :, None, None]) * alpha_over_rank(
        params["alpha"], len(x["down"])
    )


def _factors(torch, x):
    w1 = x["w1"] if "w1" in x else x["w1_a"] @ x["w1_b"]
    return w1, x["w2"] if "w2" in x else torch.tensordot(x["w2_a"], x["w2_b"], 1)


def _lokr(torch, x, params):
    w1, w2 = _factors(torch, x)
    h = x["x"].unflatten(-1, (w1.shape[1], w2.shape[1]))
    return (w1 @ (h @ w2.T)).flatten(-2) * lokr_scale(params["alpha"], lokr_ranks(x)[0])


def _lokr_conv2d(torch, x, params):
    w1, w2 = _factors(torch, x)
    h = _convolve(torch, x["x"].unflatten(1, (w1.shape[1], w2.shape[1])).flatten(0, 1), w2, params)
    y = torch.tensordot(h.unflatten(0, (-1, w1.shape[1])), w1, ((1,), (1,)))  # [N, O2, P, Q, O1]
    return y.movedim(-1, 1).flatten(1, 2).contiguous() * lokr_scale(params["alpha"], lokr_ranks(x)[0])


FUNCTIONS: dict[str, Function] = {
    "lora": _lora,
    "lora_conv2d": _lora_conv2d,
    "lokr": _lokr,
    "lokr_conv2d": _lokr_conv2d,
}
