"""An eighteenth fresh set, of prompts, guidance, requests and files: drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_question, wrong_parts

from refsd.samplers.schedules.flow import flux_mu


def _shifted_the_other_way(levels, tokens, steps):
    """FLUX.1 schnell's schedule is shifted, dev's is not."""
    return flux_mu(tokens or 4096) if levels == "flux-schnell" else 0.0


def _images_scale_is_the_texts(right):
    return right._replace(params={**right.params, "other_scale": right.params["scale"]})


_TABLE = {
    "eh-smp-01": (
        "sampler",
        "ml-explore/mlx-examples#1131",
        wrong_parts(
            "sigmas/flux-*",
            "sigmas",
            r"shift|\bmu\b|not shifted|uniform",
            mu=_shifted_the_other_way,
        )._replace(cases=("stage/sigmas/flux-n5", "stage/sigmas/flux-schnell-n4")),
    ),
    "eh-nse-01": (
        "pipeline",
        "utensils/mold#34, its second",
        other_question(
            "noising/flow-few",
            "start",
            r"sigma|level|strength|share|0\.4\b|noise.*(more|times)",
            sigma=lambda sigma: sigma + 0.05,
        ),
    ),
    "eh-pix-01": (
        "pipeline",
        "utensils/mold#34, its third",
        wrong_parts(
            "pixels/vae",
            "shown",
            r"0\.\.1|range|0 to 1|half",
            shown=lambda pixels, range_: pixels / 255,
        ),
    ),
    "eh-cfg-01": (
        "pipeline",
        "chairc/Integrated-Design-Diffusion-Model#189, its first: a solver's first call",
        None,
    ),
    "eh-smp-02": ("sampler", "chairc/Integrated-Design-Diffusion-Model#189, its second: an end above 0", None),
    "eh-te-02": (
        "tokens",
        "WalkingMeatAxolotl/AnimaLoraStudio#169, its third",
        wrong_parts(
            "language_tokens/anima-t5-weights",
            "weight",
            "weights?.*(ignored|missing|left out|not|all|1|dropped)|all (weights )?1",
            weigh=np.ones_like,
        ),
    ),
    "eh-lora-01": (
        "loader",
        "WalkingMeatAxolotl/AnimaLoraStudio#169, its first",
        wrong_parts(
            "adapter/dora",
            "merged",
            "magnitude|dora|DoRA|plain|length",
            parts=lambda parts: {name: part for name, part in parts.items() if name != "dora_scale"},
        ),
    ),
    "eh-lora-02": (
        "loader",
        "WalkingMeatAxolotl/AnimaLoraStudio#169, its second",
        other_question(
            "adapter/lora-peft-rslora",
            "merged",
            "root|rslora|sqrt|rank",
            settings=lambda settings: {**settings, "use_rslora": False},
        ),
    ),
    "eh-lat-01": (
        "pipeline",
        "huggingface/diffusers#11639",
        other_question(
            "latents/pix2pix",
            "latent",
            "draw|noise|sampl|mean|posterior|mode",
            draw=lambda draw: True,
        ),
    ),
    "eh-smp-03": ("sampler", "modular/modular#5922, its second: a step for the references, too", None),
    "eh-lora-03": ("loader", "huggingface/diffusers#9348, an adapter of two streams", None),
    "eh-ld-01": (
        "loader",
        "invoke-ai/InvokeAI#9478, what its review finds",
        wrong_parts(
            "weights/fp8-scaled",
            "weight",
            "scale.*(ignored|missing|left out|not|without)|without.*scale|no scale",
            scaled=lambda values, scale: values,
        ),
    ),
    "eh-ld-02": ("loader", "sgl-project/sglang#28546, one scale for parts that are joined", None),
    "eh-cfg-02": (
        "pipeline",
        "vllm-project/vllm-omni#6954",
        Injection(
            ("stage/guidance/pix2pix",),
            Bug(asked=_images_scale_is_the_texts),
            "guided",
            "image.*scale|other_scale|scale.*(image|both|text|of)|7.5",
        ),
    ),
    "eh-cfg-03": (
        "pipeline",
        "sgl-project/sglang#16377",
        wrong_parts(
            "guidance/qwen-image",
            "guided",
            "rescal|norm|length|plain|cfg",
            tokens=lambda guided, cond: guided,
        ),
    ),
}
EIGHTEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
