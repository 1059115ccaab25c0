"""What an adapter adds to a layer's output: LoRA and LoKr, through their factors."""

import numpy as np

from refsd.golden.errors import BadInput
from refsd.golden.operations.operation import IMAGE, Operation, entry, values
from refsd.kernels.adapters import Conv2d, Linear, LoKr, LoRA
from refsd.kernels.adapters.layer import convolve
from refsd.kernels.adapters.scales import alpha_over_rank, lokr_rank, lokr_scale, lokr_scale_sdcpp, rank_sdcpp


def lokr_ranks(inputs) -> tuple[int | None, int]:
    """The rank that divides alpha, and how many columns the part has that tells it."""
    rank = lokr_rank(*(inputs[part].shape[0] if part in inputs else None for part in ("w1_b", "w2_b")))
    part = "w2_b" if "w2_b" in inputs else "w1_b"
    return rank, int(np.prod(inputs[part].shape[1:])) if rank else 0


def lora_scale(a, inputs, params) -> float:
    rank, columns = inputs["down"].shape[:2]
    counted = rank_sdcpp(rank, columns) if _columns_count(a) else rank
    return alpha_over_rank(params["alpha"], counted or rank)


def _lokr_scale(a, inputs, params) -> float:
    rank, columns = lokr_ranks(inputs)
    if _columns_count(a):
        return lokr_scale_sdcpp(params["alpha"], rank_sdcpp(rank, columns))
    return lokr_scale(params["alpha"], rank)


def _columns_count(a) -> bool:
    return a.parameter("adapter", "rank_one_is_columns", False)


def _lora_of(a, inputs, params) -> LoRA:
    return LoRA(a.expand(inputs["down"]), a.expand(inputs["up"]), None, lora_scale(a, inputs, params))


def _lokr_of(a, inputs, params) -> LoKr:
    for w in ("w1", "w2"):
        if (w in inputs) == (f"{w}_a" in inputs) or (f"{w}_a" in inputs) != (f"{w}_b" in inputs):
            raise BadInput(f"lokr: inputs {sorted(inputs)}, expected {w}, or {w}_a and {w}_b")
    w1, w2 = (
        a.expand(inputs[w]) if w in inputs else (a.expand(inputs[f"{w}_a"]), a.expand(inputs[f"{w}_b"]))
        for w in ("w1", "w2")
    )
    return LoKr(w1, w2, _lokr_scale(a, inputs, params))


def _added(a, adapter, x, layer, shape):
    out = np.zeros(shape, a.numerics.compute_dtype)
    adapter.forward(x, out, layer, out)
    return a.store(out)


def _linear(adapter_of, part):
    def run(a, inputs, params):
        adapter = adapter_of(a, inputs, params)
        x = np.ascontiguousarray(values(a, inputs["x"]), a.numerics.compute_dtype)
        O, I = outputs_of(inputs), x.shape[-1]
        weight = np.broadcast_to(np.zeros((), x.dtype), (O, I))
        return _added(
            a, adapter, x, Linear(weight, None, a.activation(inputs[part(inputs)].type)), (*x.shape[:-1], O)
        )

    return run


def _conv2d(adapter_of):
    def run(a, inputs, params):
        adapter = adapter_of(a, inputs, params)
        x = np.ascontiguousarray(values(a, inputs["x"]), a.numerics.compute_dtype)
        O, kernel = outputs_of(inputs), filter_of(inputs)
        stride, (top, bottom, left, right) = params["stride"], params["padding"]

        def product(x, weight, stride, padding):
            x, weight = (a.round_as(t, a.numerics.conv) for t in (x, weight))
            return a.store(convolve(x, weight, stride, padding)).astype(x.dtype, copy=False)

        weight = np.broadcast_to(np.zeros((), x.dtype), (O, x.shape[1], *kernel))
        layer = Conv2d(weight, None, stride, (top, bottom, left, right), 1, product)
        P = (x.shape[2] + top + bottom - kernel[0]) // stride + 1
        Q = (x.shape[3] + left + right - kernel[1]) // stride + 1
        return _added(a, adapter, x, layer, (len(x), O, P, Q))

    return run


def outputs_of(inputs) -> int:
    """How many outputs the layer has."""
    if "up" in inputs:
        return inputs["up"].shape[0]
    first, second = (inputs[w] if w in inputs else inputs[f"{w}_a"] for w in ("w1", "w2"))
    return first.shape[0] * second.shape[0]


def filter_of(inputs) -> tuple[int, ...]:
    """(R, S), or () for a linear layer."""
    return next(inputs[part] for part in ("down", "w2", "w2_b") if part in inputs).shape[2:]


_LOKR = {"w1?": "[O1, I1]", "w1_a?": "[O1, K]", "w1_b?": "[K, I1]"}
OPERATIONS: dict[str, Operation] = {
    "lora": entry(
        _linear(_lora_of, lambda inputs: "down"),
        "What LoRA adds to a linear layer: alpha / K up down x; alpha None: K.",
        {"x": "[..., I]", "down": "[K, I]", "up": "[O, K]"},
        "[..., O]",
        alpha=None,
    ),
    "lora_conv2d": entry(
        _conv2d(_lora_of),
        "What LoRA adds to a convolution: down has the layer's geometry, up is 1x1.",
        {"x": IMAGE, "down": "[K, C, R, S]", "up": "[O, K]"},
        "[N, O, P, Q]",
        channel=1,
        alpha=None,
        stride=1,
        padding=(0, 0, 0, 0),
    ),
    "lokr": entry(
        _linear(_lokr_of, lambda inputs: "w2" if "w2" in inputs else "w2_b"),
        "What LoKr adds to a linear layer: scale kron(W1, W2) x; scale alpha / K, or 1 if no factor is in parts.",
        {"x": "[..., I1*I2]", **_LOKR, "w2?": "[O2, I2]", "w2_a?": "[O2, K]", "w2_b?": "[K, I2]"},
        "[..., O1*O2]",
        alpha=None,
    ),
    "lokr_conv2d": entry(
        _conv2d(_lokr_of),
        "The same of a convolution: the Kronecker product of W1 and each tap of W2.",
        {"x": "[N, I1*I2, H, W]", **_LOKR, "w2?": "[O2, I2, R, S]", "w2_a?": "[O2, K]", "w2_b?": "[K, I2, R, S]"},
        "[N, O1*O2, P, Q]",
        channel=1,
        alpha=None,
        stride=1,
        padding=(0, 0, 0, 0),
    ),
}
