"""A twenty-first fresh set, of models: from public trackers, drawn before a look at the judge."""

import math

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation
from twenty_first_operations import TWENTY_FIRST_OPERATIONS
from twenty_first_products import TWENTY_FIRST_PRODUCTS
from twenty_first_steps import TWENTY_FIRST_STEPS

from refsd.models import clip


def _of_yarn(factor):
    return 0.1 * math.log(factor) + 1


def _timesteps_in_bfloat16(values):
    rounded = np.asarray(values["timesteps"], np.float32).astype(ml_dtypes.bfloat16)
    return {**values, "timesteps": rounded.astype(values["timesteps"].dtype)}


def _windows_exchanged(params):
    """The list of blocks that see the whole picture is taken for that of blocks that see windows."""
    return {**params, "whole": [i for i in range(32) if i not in params["whole"]]}


def _heads_not_normed(a, right, x, weight, eps=1e-6):
    return x if np.ndim(x) == 4 else right(x, weight, eps)


_TABLE = {
    "to-te-01": (
        "model",
        "vllm-project/vllm#48621, sgl-project/sglang#22711, kekzl/imp#880",
        _model(
            wrong_operation(rope_halves=lambda a, right, x, angle: np.asarray(right(x, angle)) * _of_yarn(16)),
            "attn|attention|rope|layers|query|scale",
            "attention factor|YaRN|yarn|scale|log|ln",
            "ministral-3b/mistral/padded",
        ),
    ),
    "to-te-02": (
        "model",
        "sgl-project/sglang#33558",
        _model(
            Bug(
                params=lambda params: {
                    **params,
                    "attention_factor": params["attention_factor"] * _of_yarn(params["factor"]),
                }
            ),
            "attn|attention|rope|layers|query|scale",
            "attention factor|YaRN|yarn|scale|log|ln",
            "lone/ministral-3b/mistral/stretched",
        ),
    ),
    "to-te-03": (
        "model",
        "ml-explore/mlx-lm#1507",
        _model(
            Bug(params=lambda params: {**params, "attention_factor": _of_yarn(params["factor"])}),
            "attn|attention|rope|layers|query|scale",
            "attention factor|YaRN|yarn|scale|log|ln",
            "lone/ministral-3b/mistral/stretched",
        ),
    ),
    "to-te-04": (
        "model",
        "alibaba/Pai-Megatron-Patch#552",
        _model(
            Bug(params=_windows_exchanged),
            "attn|attention|blocks",
            "exchang|swap|other blocks|windows? (in|where|of the)|not in|which blocks",
            "qwen2.5-vl-mmproj/qwen2_5_vision/wide",
        ),
    ),
    "to-te-05": (
        "model",
        "ooples/AiDotNet#1218, what its review finds",
        _model(
            Bug(patched=_patch(clip, "end_of_prompt", lambda ids, eos: np.full(len(ids), ids.shape[1] - 1))),
            "pooled|projection",
            "last|end|eos|position|place|token",
            "clip-l/clip/ended",
            "clip-g/clip_g/ended",
            "sd15/clip/ended",
        ),
    ),
    "to-mod-01": (
        "model",
        "modelscope/DiffSynth-Studio#1025",
        _model(
            Bug(inputs=_timesteps_in_bfloat16),
            "time|embed",
            "bf16|bfloat16|round|half|whole|integer|8 bits|precision|timestep",
            "wan/wan/frames",
        ),
    ),
    "to-mod-02": (
        "model",
        "Cerebras/modelzoo#85",
        _model(
            wrong_operation(rms_norm=_heads_not_normed),
            "norm|attn|attention",
            "norm.*(left out|missing|not|skipped|without|ignored|input)|without.*norm|not normali[sz]ed|passes",
            "zimage/zimage/whole",
            "zimage/zimage/quiet",
        ),
    ),
    "to-te-06": ("model", "mlx-node/mlx-node#120, its first: a model without positions", None),
    "to-mod-03": ("model", "antirez/h3.c#6, sound on the film's grid", None),
    "to-mod-04": (
        "model",
        "Acelogic/LTX-2-MLX#17, its first: a mask of tokens that is read as one of channels",
        None,
    ),
    "to-vae-01": ("model", "Acelogic/LTX-2-MLX#17, its third: group norm over the frames of a film", None),
}
TWENTY_FIRST: dict[str, HeldOut] = {
    **TWENTY_FIRST_OPERATIONS,
    **TWENTY_FIRST_PRODUCTS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **TWENTY_FIRST_STEPS,
}
