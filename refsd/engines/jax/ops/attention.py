"""Softmax and attention by jax.nn."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.engines.hidden_rows import hides_rows
from refsd.golden.case import Case


def _softmax(jax, x, params):
    scores = x["x"] * params["scale"]
    scores = scores + x["mask"] if "mask" in x else scores
    if "sinks" not in x:
        return jax.nn.softmax(scores, axis=-1)
    column = jax.numpy.broadcast_to(x["sinks"][:, None, None], (*scores.shape[:-1], 1))
    return jax.nn.softmax(jax.numpy.concatenate([scores, column], axis=-1), axis=-1)[..., :-1]


def _attention(jax, x, params):
    q, k = x["q"], x["k"]
    B, L, H, _ = q.shape
    J = k.shape[1]
    bias = jax.numpy.broadcast_to(x["mask"], (B, H, L, J)) if "mask" in x else None
    corner = params["causal"] and params["diagonal"] == 0
    seen = None
    if params["causal"] and not corner:
        seen = jax.numpy.tril(jax.numpy.ones((1, 1, L, J), bool), params["diagonal"])
    return jax.nn.dot_product_attention(q, k, x["v"], bias=bias, mask=seen, scale=params["scale"], is_causal=corner)


def _no_attention(case: Case) -> str | None:
    if "sinks" in case.inputs:
        return "jax.nn.dot_product_attention has no sinks"
    if case.inputs["k"].shape != case.inputs["v"].shape:
        return "jax.nn.dot_product_attention wants keys and values of one shape"
    return "jax.nn.dot_product_attention gives no zeros to a query that sees no key" if hides_rows(case) else None


FUNCTIONS: dict[str, Function] = {"softmax": _softmax, "attention": _attention}
REFUSALS: dict[str, Refusal] = {"attention": _no_attention}
