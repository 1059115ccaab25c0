"""Softmax and attention by torch."""

from refsd.golden.engines.torch_ops.function import Function


def _softmax(torch, x, params):
    scores = x["x"] * params["scale"]
    return torch.softmax(scores + x["mask"] if "mask" in x else scores, dim=-1)


def _attention(torch, x, params):
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=x.get("mask"), is_causal=params["causal"], scale=params["scale"]
    )
    return y.transpose(1, 2)


FUNCTIONS: dict[str, Function] = {
    "softmax": _softmax,
    "attention": _attention,
}
