"""Ernie-Image: a transformer conditioned on Ministral 3's hidden states, with FLUX.2's autoencoder.

stable-diffusion.cpp and ComfyUI leave out two things that diffusers computes: Ministral's YaRN, and the latents'
own eps. ComfyUI's conventions here do so, stable-diffusion.cpp's have diffusers'.
"""

from refsd.families.family import Family, TextEncoder, Variant, only_hidden
from refsd.families.flow import Flow, unit_time
from refsd.families.text_encoders import DIFFUSERS
from refsd.models.ernie_image.network import ERNIE_IMAGE as SIZE
from refsd.models.mistral.network import MINISTRAL_3B
from refsd.models.vae_flux2 import EPS
from refsd.networks.recipe import alone
from refsd.tokenizers.text_rules import TextRule, as_long_as_it_is

# The prompt as it is, without a template. diffusers cuts at the tokenizer's own length, which no prompt reaches.
RULE = TextRule(None, as_long_as_it_is, bos=True, mask=True, source=DIFFUSERS + "ernie_image, encode_prompt")
COMFYUI = RULE._replace(plain=True, source="ComfyUI comfy/text_encoders/ernie.py")

# The pipeline undoes the autoencoder's batch norm with the eps of its training, not of its config.
ERNIE_IMAGE = Variant(
    "ernie-image",
    "Ernie-Image",
    {
        "mistral": TextEncoder(
            {"diffusers": RULE, "sdcpp": RULE, "comfyui": COMFYUI},
            "penultimate",
            params={"sdcpp": {}, "comfyui": {"factor": 1.0, "query_beta": 0.0}},
        )
    },
    only_hidden,
    {"sdcpp": "discrete", "diffusers": "flow_uniform", "comfyui": "simple"},
    Flow(
        {"sdcpp": lambda tokens, steps: 4.0, **dict.fromkeys(("diffusers", "comfyui"), lambda tokens, steps: 3.0)},
        levels=unit_time,
    ),
    steps=50,
    cfg_scale=4.0,
    latent_format="flux2",
    decoding={"sdcpp": {"eps": 1e-5}, "comfyui": {"eps": EPS}},
    other_engines=("comfyui",),
)
_TINY = SIZE._replace(hidden=256, layers=2, mlp=384, channels=16, context_dim=128)
FAMILIES = (
    Family(
        "ernie-image",
        "2026-04",
        "ernie-image",
        lambda shapes: ("ernie-image", "its blocks share one modulation, and its norms are named adaLN_sa_ln"),
        (ERNIE_IMAGE,),
        sizes={"Ernie-Image": {"ernie-image": SIZE, "mistral": MINISTRAL_3B}},
        recipes={"ernie-image": alone("ernie-image", SIZE, _TINY, "ernie_image")},
    ),
)
