"""Fresh held-out bugs of blocks and models, drawn from public trackers on 2026-11-23 before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, Injection, wrong_operation

from refsd.models import chroma


def _slices_as_dense(a, right, q, k, v, *rest, **named):
    """q, k and v are slices of one [N, L, 3, H, D]; their rows are read one behind the other."""
    if q.shape != k.shape or k.shape != v.shape:
        return right(q, k, v, *rest, **named)
    N, L, H, D = q.shape
    memory = np.stack([q, k, v], axis=2).ravel()
    memory = np.append(memory, np.zeros(3 * H * D, memory.dtype))
    dense = [memory[i * H * D :][: N * L * H * D].reshape(q.shape) for i in range(3)]
    return right(*dense, *rest, **named)


def _counted(a, right, ids, axes_dim, theta):
    """The positions are 0 .. L - 1 whatever the ids."""
    ids = np.asarray(ids)
    return right(np.broadcast_to(np.arange(ids.shape[-2])[:, None], ids.shape), axes_dim, theta)


def _picture_first(mask, L):
    """The mask of [picture, text] for tokens of [text, picture]."""
    tokens = np.pad(np.asarray(mask) != 0, ((0, 0), (L, 0)), constant_values=True)
    return np.where(tokens[:, None, :, None] & tokens[:, None, None, :], 0.0, -np.inf)


def _one_more(values):
    """The first token of padding is attended to."""
    mask = np.array(values["attention_mask"])
    for row in mask:
        hidden = np.flatnonzero(row == 0)
        if len(hidden):
            row[hidden[0]] = 1
    return {**values, "attention_mask": mask}


def _inverted(values):
    return {**values, "attention_mask": 1 - np.asarray(values["attention_mask"])}


_TABLE: dict[str, tuple[str, str, Injection]] = {
    "f-mod-01": (
        "block",
        "pytorch/pytorch#180984, of slices of a fused qkv",
        _model(
            wrong_operation(attention=_slices_as_dense),
            "attn|attention",
            "stride|memory|fused|slices|q, k and v",
            "flux-dev/flux/between",
            "flux-dev/flux/quiet",
        ),
    ),
    "f-mod-02": (
        "block",
        "NVIDIA/Megatron-LM#453",
        _model(
            wrong_operation(rope_angles=_counted),
            "rope|angle|attn",
            "position|ids",
            "flux-dev/flux/between",
            "zimage/zimage/whole",
            "rope/*",
        ),
    ),
    "f-mod-03": (
        "model",
        "bghira/SimpleTuner#904",
        _model(
            Bug(patched=_patch(chroma, "pair_mask", _picture_first)),
            "attn|attention|mask",
            "mask.*(order|front|before|first|begin|shift|moved|roll|behind|turned|permut)",
            "chroma/chroma/masked",
        ),
    ),
    "f-mod-04": (
        "model",
        "Haoming02/sd-webui-forge-classic#804",
        _model(
            Bug(inputs=_one_more),
            "attn|attention|mask",
            "mask.*(one|more|first|longer|later)|padding",
            "qwen3-4b/qwen3/padded",
            "mistral-small/mistral/padded",
        ),
    ),
    "f-mod-05": (
        "model",
        "apple/ml-stable-diffusion#359",
        _model(
            Bug(inputs=_inverted),
            "attn|attention|Attention|mask|bias",
            "mask.*(invert|other way|opposite|exchanged|negat|reverse|1 -|turned)",
            "t5xxl/t5/padded",
        ),
    ),
    "f-mod-06": (
        "model",
        "sgl-project/sglang#22059",
        _model(
            Bug(inputs=lambda v: {**v, "guidance": 1000 * v["guidance"]}),
            "guidance|timestep_embedding",
            "guidance.*(1000|times|thousand)|1000",
            "flux-dev/flux/between",
            "flux-dev/flux/quiet",
        ),
    ),
    "f-mod-07": (
        "model",
        "ports of FLUX.2: hidden_states[0] is the embedding",
        _model(
            Bug(params=lambda p: {**p, "layers": [i - 1 for i in p["layers"]]} if p.get("layers") else p),
            "hidden|layer",
            "layer|one (too )?(early|before)",
            "mistral/flux2",
        ),
    ),
}
FRESH_MODELS = {id: HeldOut(*row) for id, row in _TABLE.items()}
