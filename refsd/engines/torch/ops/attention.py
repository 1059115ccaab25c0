"""Softmax and attention by torch."""

from refsd.engines.torch.ops.function import Function


def _softmax(torch, x, params):
    scores = x["x"] * params["scale"]
    return _with_sinks(torch, scores + x["mask"] if "mask" in x else scores, x)


def _with_sinks(torch, scores, x):
    """Softmax of scores [B, H, L, J] with sinks as an extra last column, which is then dropped. Source: gpt-oss."""
    if "sinks" not in x:
        return torch.softmax(scores, dim=-1)
    column = x["sinks"][:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


def _attention(torch, x, params):
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    mask = x.get("mask")
    if params["causal"]:
        L, J = q.shape[2], k.shape[2]
        seen = torch.ones(L, J, dtype=torch.bool, device=q.device).tril(params["diagonal"])
        mask = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, -torch.inf) + (0 if mask is None else mask)
    if "sinks" in x:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        scale = q.shape[-1] ** -0.5 if params["scale"] is None else params["scale"]
        scores = q @ k.transpose(2, 3) * scale + (0 if mask is None else mask)
        return (_with_sinks(torch, scores, x) @ v).transpose(1, 2)
    alone = params["causal"] and "mask" not in x and params["diagonal"] == 0
    y = torch.nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if alone else mask,
        is_causal=alone,
        scale=params["scale"],
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return y.transpose(1, 2)


def _attention_softcap(torch, x, params):
    """In the form of transformers' Gemma 2."""
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scale = q.shape[-1] ** -0.5 if params["scale"] is None else params["scale"]
    scores = torch.tanh(q @ k.transpose(2, 3) * scale / params["cap"]) * params["cap"]
    scores = scores + x["mask"] if "mask" in x else scores
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)


FUNCTIONS: dict[str, Function] = {
    "softmax": _softmax,
    "attention": _attention,
    "attention_softcap": _attention_softcap,
}
