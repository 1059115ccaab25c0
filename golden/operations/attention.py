"""Softmax and attention."""

from refsd.golden.operations.operation import Operation, entry, optional, values


def _softmax(a, inputs, params):
    mask = values(a, inputs["mask"]) if "mask" in inputs else None
    return a.softmax(values(a, inputs["x"]), params["scale"], mask, optional(a, inputs, "sinks"))


def _attention(a, inputs, params):
    q, k, v = (values(a, inputs[name]) for name in ("q", "k", "v"))
    mask = inputs["mask"].values().astype(a.numerics.compute_dtype) if "mask" in inputs else None
    diagonal = params["diagonal"] if params["causal"] else None
    return a.attention(q, k, v, params["scale"], mask, diagonal, optional(a, inputs, "sinks"))


OPERATIONS: dict[str, Operation] = {
    "softmax": entry(
        _softmax,
        "Softmax over the last axis of scale * x + mask; -inf masks. A sink is one more score, left out again.",
        {"x": "[..., L]", "mask?": "broadcastable to x", "sinks?": "[H], x being [B, H, L, J]"},
        "[..., L]",
        scale=1.0,
    ),
    "attention": entry(
        _attention,
        "softmax(scale q.k + mask) v; scale None is 1/sqrt(D); causal hides j > l + diagonal: 0 aligns the first "
        "query with the first key, J - L the last with the last. H/G neighbouring heads share keys and values. "
        "A query that sees no key gives zeros. A sink is one more score of a head, without a value.",
        {
            "q": "[B, L, H, D]",
            "k": "[B, J, G, D]",
            "v": "[B, J, G, E]",
            "mask?": "broadcastable to [B, H, L, J]",
            "sinks?": "[H]",
        },
        "[B, L, H, E]",
        scale=None,
        causal=False,
        diagonal=0,
    ),
}
