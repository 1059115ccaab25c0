"""A nineteenth fresh set, of prompts, guidance, requests and files: drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injected_files import modules_of, product_of, strength_of
from injection import wrong_answer, wrong_parts

from refsd.conventions import MASKS
from refsd.models.vae.latents import LATENT_SCALES
from refsd.tokenizers.byte_level import Cut

# --- guidance ----------------------------------------------------------------------------------------------------


def _in_bfloat16(cond, uncond, scale):
    """Both predictions, their difference, its product and the sum are bfloat16."""

    def rounded(t):
        return np.asarray(t, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)

    cond, uncond = rounded(cond), rounded(uncond)
    return rounded(uncond + rounded(rounded(scale) * rounded(cond - uncond)))


# --- files -------------------------------------------------------------------------------------------------------


def _rank_of_all_parts(case, values, y):
    """Parts of a fused layer are joined, and alpha is divided by the rank of all."""
    modules = modules_of(values)
    whole = sum(len(parts["down"]) for parts in modules.values())
    weight = values["weight"].copy()
    for name, parts in modules.items():
        first, count = case.params["rows"][name]
        weight[first : first + count] += (
            strength_of(case.params) * float(parts["alpha"]) / whole * product_of(parts)
        )
    return {"merged": weight}


# --- masks -------------------------------------------------------------------------------------------------------


def _mask_of_half_the_factor(engine):
    """The mask is made for an autoencoder of half the factor: it is twice as large, and what fits is taken."""

    def pooled(mask, pixels):
        large = MASKS[engine].pooled(mask, pixels // 2)
        return large[..., : mask.shape[-2] // pixels, : mask.shape[-1] // pixels]

    return pooled


_TABLE = {
    "nt-smp-01": (
        "sampler",
        "mflux-community/mflux#273, what its review finds",
        wrong_answer(
            "sigmas/qwen-image-*",
            "timesteps",
            r"(step|row|place)'?s? number|number of (the|each) step|0, 1, 2|index|count|arange|whole numbers",
            lambda case, values, y: {"timesteps": np.arange(len(y["timesteps"]))},
        ),
    ),
    "nt-cfg-01": (
        "pipeline",
        "utensils/mold#111, its first",
        wrong_parts(
            "guidance/qwen-image",
            "guided",
            "rescal|norm|length|plain|cfg",
            tokens=lambda guided, cond: guided,
        ),
    ),
    "nt-cfg-02": (
        "pipeline",
        "utensils/mold#111, its second",
        wrong_parts(
            "guidance/*",
            "guided",
            "bfloat16|bf16|few bits|rounded|precision",
            plain=_in_bfloat16,
        )._replace(cases=("stage/guidance/cfg", "stage/guidance/qwen-image")),
    ),
    "nt-lat-01": (
        "pipeline",
        "NewBieAI-Lab/NewbieLoraTrainer#3",
        wrong_parts(
            "latents/flux",
            "latent",
            r"shift|0\.1159",
            scale=lambda family, kind: None if kind == "tae" else LATENT_SCALES[family]._replace(shift=0.0),
        ),
    ),
    "nt-lora-01": (
        "loader",
        "WalkingMeatAxolotl/AnimaLoraStudio#241, a rank of the network beside a module's",
        None,
    ),
    "nt-ld-01": (
        "loader",
        "vllm-project/vllm#47515, and #41769, what its review finds",
        wrong_parts(
            "weights/fp8-fused-own",
            "weight",
            r"(one|same|smallest|least|first|third|last|single)( one's)? scale|own scale"
            r"|scale.*(all parts|of the|is the|smallest|0\.1875|min)",
            own=lambda scales: [min(scales, key=np.max)] * len(scales),
        ),
    ),
    "nt-smp-02": ("sampler", "ModelTC/LightX2V#1129, what its review finds: given sigmas that are shifted", None),
    "nt-lora-02": (
        "loader",
        "modelscope/DiffSynth-Engine#202, what its review finds",
        wrong_answer(
            "adapter/lora-fused",
            "merged",
            r"rank|alpha.*(divided|multipl|14|/)|\b14\b",
            _rank_of_all_parts,
        ),
    ),
    "nt-lora-03": (
        "loader",
        "Lightning-AI/litgpt#2201, a fused layer whose inputs are not as many as a part's outputs",
        None,
    ),
    "nt-te-04": (
        "tokens",
        "1bit-MONSTER/1bit-MONSTER#92",
        wrong_parts(
            "language_tokens/zimage-rare",
            "ids",
            "(not|never) (cut|split)|whole text|across|together|no words",
            cut=lambda cut: Cut(r"\p{N}{1,3}|\P{N}+", cut.nfc, cut.whole),
        )._replace(cases=("stage/language_tokens/zimage-rare", "stage/language_tokens/flux2")),
    ),
    "nt-inp-01": (
        "pipeline",
        "princepainter/Comfyui-PainterFluxImageEdit#8, its first",
        wrong_parts(
            "inpaint/*",
            "mask|kept|cond",
            "half|twice|factor|2 times|resiz|corner|scale|larger|enlarged|zoom|stretch",
            pooled=_mask_of_half_the_factor,
        )._replace(cases=("stage/inpaint/inpaint-diffusers", "stage/inpaint/inpaint-sdcpp")),
    ),
}
NINETEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
