"""Softmax and attention as ONNX nodes. Attention itself is of opset 23."""

import numpy as np

from refsd.onnx.operations.function import Function

# Below every score that is seen: a row whose largest is less has none.
_UNSEEN = -3e38


def _softmax(b, x, params):
    scores = b.node("Mul", x["x"], params["scale"])
    return _with_sinks(b, b.node("Add", scores, x["mask"]) if "mask" in x else scores, x)


def _with_sinks(b, scores, x):
    """Softmax of scores [B, H, L, J], the sink a last column that is dropped again."""
    if "sinks" not in x:
        return b.node("Softmax", scores, axis=-1)
    B, H, L, J = scores.shape
    column = b.node("Expand", b.reshape(x["sinks"], (1, H, 1, 1)), [B, H, L, 1])
    return b.slice(b.node("Softmax", b.concat([scores, column], 3), axis=-1), 3, 0, J)


def _attention(b, x, params):
    q, k, v = (b.transpose(x[name], (0, 2, 1, 3)) for name in ("q", "k", "v"))
    k, v = (_for_each_head(b, t, q.shape[1]) for t in (k, v))
    scale = q.shape[-1] ** -0.5 if params["scale"] is None else params["scale"]
    scores = b.node("Mul", b.node("MatMul", q, b.transpose(k, (0, 1, 3, 2))), scale)
    if params.get("cap"):
        scores = b.node("Mul", b.node("Tanh", b.node("Div", scores, params["cap"])), params["cap"])
    if "mask" in x:
        scores = b.node("Add", scores, x["mask"])
    L, J = scores.shape[2:]
    if params["causal"]:
        seen = np.tri(L, J, params["diagonal"], bool)
        scores = b.node("Add", scores, b.constant(np.where(seen, 0, -np.inf).astype(scores.dtype)))
    p = _with_sinks(b, scores, x)
    if "sinks" not in x and ("mask" in x or params["diagonal"] < 0):
        # A query that sees no key gives zeros; softmax makes NaN of it.
        sees = b.node("Greater", b.node("ReduceMax", scores, [-1]), _UNSEEN)
        p = b.node("Where", sees, p, b.constant(np.zeros((), p.dtype)))
    return b.transpose(b.node("MatMul", p, v), (0, 2, 1, 3))


def _for_each_head(b, t, H):
    """[B, G, J, D] -> [B, H, J, D]: neighbouring heads share keys and values."""
    B, G, J, D = t.shape
    if G == H:
        return t
    return b.reshape(b.node("Expand", b.reshape(t, (B, G, 1, J, D)), [B, G, H // G, J, D]), (B, H, J, D))


FUNCTIONS: dict[str, Function] = {
    "softmax": _softmax,
    "attention": _attention,
    "attention_softcap": lambda b, x, params: _attention(b, x, {**params, "causal": False, "diagonal": 0}),
}
