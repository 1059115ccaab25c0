"""Softmax and attention by MLX."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.engines.hidden_rows import hides_rows
from refsd.golden.case import Case


def _softmax(mlx, x, params):
    scores = x["x"] * params["scale"]
    scores = scores + x["mask"] if "mask" in x else scores
    if "sinks" not in x:
        return mlx.core.softmax(scores, axis=-1, precise=True)
    column = mlx.core.broadcast_to(x["sinks"][:, None, None], (*scores.shape[:-1], 1))
    return mlx.core.softmax(mlx.core.concatenate([scores, column], axis=-1), axis=-1, precise=True)[..., :-1]


def _attention(mlx, x, params):
    """MLX's own "causal" aligns the last query with the last key: other diagonals are masks."""
    q, k, v = (x[name].transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    L, J = q.shape[2], k.shape[2]
    mask = x.get("mask")
    if params["causal"]:
        corner = mask is None and params["diagonal"] == J - L
        seen = mlx.core.tril(mlx.core.ones((L, J), mlx.core.bool_), params["diagonal"])
        if corner:
            mask = "causal"
        elif mask is None:
            mask = seen
        else:
            mask = mlx.core.where(seen, mask, mlx.core.array(-mlx.core.inf, mask.dtype))
    scale = q.shape[-1] ** -0.5 if params["scale"] is None else params["scale"]
    y = mlx.core.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=x.get("sinks"))
    return y.transpose(0, 2, 1, 3)


def _no_attention(case: Case) -> str | None:
    hidden = hides_rows(case)
    return "MLX's attention gives no zeros to a query that sees no key" if hidden else None


FUNCTIONS: dict[str, Function] = {"softmax": _softmax, "attention": _attention}
REFUSALS: dict[str, Refusal] = {"attention": _no_attention}
# Inferred from the answers: the fallback of mlx.core.fast.scaled_dot_product_attention (mlx/fast.cpp) was not read.
ROUNDED = {"attention": "on the CPU MLX rounds scores and weights to the dtype, which no profile declares"}
