"""Softmax and attention."""

from refsd.golden.operations.operation import Operation, entry, values
from refsd.kernels.attention import causal_mask


def _softmax(a, inputs, params):
    mask = values(a, inputs["mask"]) if "mask" in inputs else None
    return a.softmax(values(a, inputs["x"]), params["scale"], mask)


def _attention(a, inputs, params):
    q, k, v = (values(a, inputs[name]) for name in ("q", "k", "v"))
    mask = inputs["mask"].values().astype(a.numerics.compute_dtype) if "mask" in inputs else None
    if params["causal"]:
        mask = causal_mask(q.shape[1], a.numerics.compute_dtype)
    return a.attention(q, k, v, params["scale"], mask)


OPERATIONS: dict[str, Operation] = {
    "softmax": entry(
        _softmax,
        "Softmax over the last axis of scale * x + mask; -inf masks.",
        {"x": "[..., L]", "mask?": "broadcastable to x"},
        "[..., L]",
        scale=1.0,
    ),
    "attention": entry(
        _attention,
        "softmax(scale q.k + mask) v; scale None is 1/sqrt(D); causal hides j > l.",
        {"q": "[B, L, H, D]", "k": "[B, J, H, D]", "v": "[B, J, H, D]", "mask?": "broadcastable to [B, H, L, J]"},
        "[B, L, H, D]",
        scale=None,
        causal=False,
    ),
}
