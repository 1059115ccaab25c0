"""Softmax and attention by Tensor.scaled_dot_product_attention."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.engines.hidden_rows import hides_rows
from refsd.golden.case import Case


def _softmax(tinygrad, x, params):
    scores = x["x"] * params["scale"]
    scores = scores + x["mask"] if "mask" in x else scores
    if "sinks" not in x:
        return scores.softmax(-1)
    column = x["sinks"][:, None, None].expand(*scores.shape[:-1], 1)
    return scores.cat(column, dim=-1).softmax(-1)[..., :-1]


def _attention(tinygrad, x, params):
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    corner = params["causal"] and params["diagonal"] == 0 and "mask" not in x
    mask = x.get("mask")
    if params["causal"] and not corner:
        shape = (q.shape[2], k.shape[2])
        seen = tinygrad.Tensor.ones(*shape, dtype=tinygrad.dtypes.bool).tril(params["diagonal"])
        mask = seen if mask is None else seen.where(mask, -float("inf"))
    y = q.scaled_dot_product_attention(k, v, mask, is_causal=corner, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2)


def _no_attention(case: Case) -> str | None:
    if "sinks" in case.inputs:
        return "Tensor.scaled_dot_product_attention has no sinks"
    if case.params.get("scale") is not None:
        return "Tensor.scaled_dot_product_attention takes no scale"
    hidden = hides_rows(case)
    return "Tensor.scaled_dot_product_attention gives no zeros to a query that sees no key" if hidden else None


FUNCTIONS: dict[str, Function] = {"softmax": _softmax, "attention": _attention}
REFUSALS: dict[str, Refusal] = {"attention": _no_attention}
