"""A twenty-first fresh set, of steps, guidance, tokens and files: drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import wrong_answer, wrong_parts

# --- tokens and files --------------------------------------------------------------------------------------------


def _shows_one_more(case, values, y):
    """The first token of the padding is seen, too."""
    seen = np.array(y["mask"])
    seen.ravel()[np.argmax(seen.ravel() == 0)] = 1
    return {"mask": seen}


def _codes_of_scales(case, values, y):
    """Scales of blocks are themselves in 8 bits; their codes are the scales."""
    codes = values["absmax"]
    outer = np.repeat(values["nested_absmax"], 256)[: len(codes)]
    scale = values["nested_map"][codes.astype(int)] * outer + case.params["offset"]
    (name,) = y
    blocks = np.asarray(y[name], np.float64).reshape(-1, case.params["each"])
    return {name: (blocks / scale[:, None] * codes[:, None]).reshape(y[name].shape)}


_TABLE = {
    "to-tok-01": (
        "tokens",
        "huggingface/diffusers#12508",
        wrong_answer(
            "language_tokens/chroma-t5-mask",
            "mask",
            "padding|one (more|too|token)|first pad|two|shown|seen|count",
            _shows_one_more,
        ),
    ),
    "to-q-01": (
        "loader",
        "bitsandbytes-foundation/bitsandbytes#1549",
        wrong_answer(
            "weights/nf4-nested",
            "weight|nf4|expanded|values|data",
            "nested|codes?.*scale|scales?.*(code|8 bit|not (decoded|widened))|absmax|map",
            _codes_of_scales,
        ),
    ),
    "to-lora-01": (
        "loader",
        "wochenlong/lora-scripts-next#330",
        wrong_answer(
            "adapter/lo[hk]*",
            "merged",
            "not (applied|merged|added)|left out|ignored|dropped|without|skipped|unchanged",
            lambda case, values, y: {"merged": values["weight"]},
        ),
    ),
    "to-cfg-01": (
        "pipeline",
        "huggingface/diffusers#13377",
        wrong_parts(
            "guidance/qwen-image",
            "guided",
            "cond|off|no guidance|not guided|unguided|without guidance|scale.*1",
            on=lambda scale: False,
        ),
    ),
    "to-smp-01": (
        "sampler",
        "Tencent-Hunyuan/HunyuanVideo#277, a rescale of a prediction, not of the picture",
        None,
    ),
    "to-smp-02": ("sampler", "huggingface/diffusers#14213, betas that are a cosine's", None),
    "to-smp-03": ("sampler", "huggingface/diffusers#14569, a variance whose logarithm is fixed", None),
    "to-cfg-02": ("pipeline", "huggingface/diffusers#13796, the layers of a negative prompt", None),
    "to-ip-01": ("pipeline", "huggingface/diffusers#13584, its first: masks of an IP-Adapter", None),
    "to-cnt-01": ("pipeline", "Kosinkadink/ComfyUI-Advanced-ControlNet#257, an effect's mask over tokens", None),
    "to-lora-02": (
        "loader",
        "axolotl-ai-cloud/axolotl#3771, mflux-community/mflux#440: an adapter on a float8 weight",
        None,
    ),
}
TWENTY_FIRST_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
