"""An eleventh fresh set, of schedules, guidance, tokens, tiles and adapters: drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injected_files import modules_of
from injection import other_question, wrong_answer, wrong_parts

from refsd.samplers.levels import SD_LEVELS
from refsd.stages.noising import RULE as NOISING
from refsd.stages.sigmas import RULE as SIGMAS
from refsd.tokenizers.clip_bpe import EOS

# --- schedules and noise -----------------------------------------------------------------------------------------


def _ascending(params, card, levels):
    """The list is turned round once too often; its end, 0, is put behind it."""
    right = SIGMAS.spacing(params, card, levels)

    def list_of(n):
        sigmas = right(n)
        return np.concatenate([sigmas[:-1][::-1], sigmas[-1:]]) if sigmas[-1] == 0 else sigmas[::-1].copy()

    return list_of


def _level_of_the_timestep(share):
    """The step's noise is that of its timestep, which was rounded, not that of its sigma."""

    def of(sigma, space):
        return share(
            float(SD_LEVELS.sigmas[round(float(SD_LEVELS.to_t(sigma)))]) if space == "vp" else sigma, space
        )

    return of


def _time_of_bf16(levels, sigma):
    """The sigma is rounded to bf16 before it is multiplied by 1000."""
    return levels.to_t(float(np.float32(sigma).astype(ml_dtypes.bfloat16)))


def _all_scaled(shown, extra, c_in):
    """The given picture, too, is divided by the latent's deviation."""
    return np.concatenate([shown, extra * extra.dtype.type(c_in)], axis=1)


# --- guidance, tokens and adapters -------------------------------------------------------------------------------


def _from_cond(cond, uncond, scale):
    """cond + scale (cond - uncond)"""
    return cond + scale * (cond - uncond)


def _end_at_the_end(ids, rule):
    """Padding follows the words, and the end token is the last of all."""
    if rule.pad is None:
        return ids
    padded = np.where(np.arange(len(ids)) >= int(np.argmax(ids == EOS)), rule.pad, ids)
    padded[-1] = EOS
    return padded


def _alpha_not_read(case, values, y):
    """Every adapter is scaled as if its alpha were its rank."""
    modules = [parts for parts in modules_of(values).values() if "down" in parts]
    if len(modules) != 1 or "alpha" not in modules[0]:
        return None
    share = len(modules[0]["down"]) / float(modules[0]["alpha"])
    return {"merged": values["weight"] + share * (y["merged"] - values["weight"])}


_TABLE = {
    "e-smp-01": (
        "sampler",
        "huggingface/diffusers#9954",
        wrong_parts("sigmas/sd-[eb]*", "sigmas", "revers|ascend|order|turned|backwards", spacing=_ascending),
    ),
    "e-smp-02": (
        "sampler",
        "huggingface/diffusers#5158",
        wrong_parts(
            "noising/vp-*",
            "start|step_noise",
            "nearest|timestep|rounded|whole|level",
            factor=_level_of_the_timestep(NOISING.factor),
            kept=_level_of_the_timestep(NOISING.kept),
        ),
    ),
    "e-smp-03": (
        "sampler",
        "Tencent-Hunyuan/UniRL#438",
        wrong_parts("prediction/flow*", r"\bt\b", "bf16|bfloat16|rounded|precision|half", to_t=_time_of_bf16),
    ),
    "e-smp-04": (
        "sampler",
        "NVIDIA/physicsnemo#418",
        wrong_parts(
            "prediction/eps-inpaint",
            "shown",
            "mask|picture|extra|other channels|given",
            joined=_all_scaled,
        ),
    ),
    "e-cfg-01": (
        "pipeline",
        "hao-ai-lab/FastVideo#822",
        wrong_parts(
            "guidance/cfg*",
            "guided",
            r"cond \+|from cond|\+ 1|1 larger|1 more|one more|one too high",
            plain=_from_cond,
        ),
    ),
    "e-tok-01": (
        "tokenizer",
        "keras-team/keras-hub#2018",
        wrong_parts("clip_tokens/*padding-0*", "ids", "end token|EOS|last|endoftext", pad=_end_at_the_end),
    ),
    "e-vae-03": (
        "pipeline",
        "Comfy-Org/ComfyUI#6306, in a picture's tiles",
        other_question("tiles/diffusers-*", "tiles|picture", "overlap", overlap=lambda overlap: 1 / 8),
    ),
    "e-lora-01": (
        "loader",
        "sgl-project/sglang#16935",
        wrong_answer("adapter/lora-*", "merged", "alpha", _alpha_not_read),
    ),
}
ELEVENTH_STEPS = {id: HeldOut(*row) for id, row in _TABLE.items()}
