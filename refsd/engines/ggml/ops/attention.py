"""Softmax and attention as ggml graphs."""

import numpy as np

from refsd.engines.ggml.graph import SCALAR_IDS, Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params
from refsd.kernels.attention import causal_mask
from refsd.numerics.tensor import stored


def _softmax(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    mask = None
    if "mask" in inputs:
        mask = g.put(stored(np.ascontiguousarray(np.broadcast_to(inputs["mask"].values(), shape), np.float32)))
    y = g.soft_max_ext(g.floats(inputs["x"]), mask, params["scale"], 0.0)
    if "sinks" in inputs:
        g.ggml.ggml_soft_max_add_sinks(y, g.floats(inputs["sinks"]))
    return Result(y, shape)


def _mask(inputs: Inputs, params: Params) -> np.ndarray | None:
    """Combine the mask and the causal mask as [B or 1, H or 1, L, J] in float32; None without either."""
    L, J = inputs["q"].shape[1], inputs["k"].shape[1]
    causal = causal_mask(L, np.float32, J, params["diagonal"]) if params.get("causal") else None
    if "mask" not in inputs:
        return None if causal is None else causal[None, None]
    mask = np.asarray(inputs["mask"].values(), np.float32) + (0 if causal is None else causal)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:2], L, J)))


def _scale(inputs: Inputs, params: Params) -> float:
    return inputs["q"].shape[-1] ** -0.5 if params["scale"] is None else params["scale"]


def _output(inputs: Inputs) -> tuple[int, ...]:
    return (*inputs["q"].shape[:3], inputs["v"].shape[3])


def _attention(g: Graph, inputs: Inputs, params: Params) -> Result:
    q, k, v = (g.floats(inputs[name]) for name in ("q", "k", "v"))
    mask = _mask(inputs, params)
    by_head = [g.cont(g.permute(t, 0, 2, 1, 3)) for t in (q, k)]
    scores, scale = g.mul_mat(by_head[1], by_head[0]), _scale(inputs, params)
    if "cap" in params:
        scores, scale = g.scale(g.tanh(g.scale(scores, scale / params["cap"])), params["cap"]), 1.0
    weights = g.soft_max_ext(scores, None if mask is None else g.put(stored(mask)), scale, 0.0)
    if "sinks" in inputs:
        g.ggml.ggml_soft_max_add_sinks(weights, g.floats(inputs["sinks"]))
    y = g.mul_mat(g.cont(g.permute(v, 1, 2, 0, 3)), weights)
    return Result(g.cont(g.permute(y, 0, 2, 1, 3)), _output(inputs))


def _flash_attention(g: Graph, inputs: Inputs, params: Params) -> Result:
    q, k, v = (g.permute(g.floats(inputs[name]), 0, 2, 1, 3) for name in ("q", "k", "v"))
    mask = _mask(inputs, params)
    half = None if mask is None else g.put(stored(mask.astype(np.float16)))
    k, v = (g.cast(g.cont(t), SCALAR_IDS["f16"]) for t in (k, v))
    y = g.flash_attn_ext(g.cont(q), k, v, half, _scale(inputs, params), 0.0, params.get("cap", 0.0))
    if "sinks" in inputs:
        g.ggml.ggml_flash_attn_ext_add_sinks(y, g.floats(inputs["sinks"]))
    return Result(y, _output(inputs))


BUILDERS: dict[str, Builder] = {
    "softmax": Builder(_softmax, ("ggml_soft_max_ext", "ggml_soft_max_add_sinks")),
    "attention": Builder(_attention, ("ggml_soft_max_ext", "ggml_soft_max_add_sinks")),
    "attention_softcap": Builder(_attention, ("ggml_soft_max_ext", "ggml_tanh")),
}
FLASH_BUILDERS: dict[str, Builder] = {
    "attention": Builder(_flash_attention, ("ggml_flash_attn_ext", "ggml_flash_attn_ext_add_sinks")),
    "attention_softcap": Builder(_flash_attention, ("ggml_flash_attn_ext",)),
}
