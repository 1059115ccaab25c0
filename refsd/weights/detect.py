"""What a set of tensor names is: whose components, in which layout, and what refsd cannot run yet."""

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from refsd.weights import keymaps
from refsd.weights.keymaps import Keymap
from refsd.weights.sizes import count


class Place(NamedTuple):
    """A component's tensors stand under `prefix`; some name goes on with one of `witnesses`."""

    component: str
    layout: str
    prefix: str
    witnesses: tuple[str, ...]
    keymap: Callable[[Collection[str]], Keymap]


def _same(_: Collection[str]) -> Keymap:
    return Keymap((), rest_same=True)


def _diffusers_unet(names: Collection[str]) -> Keymap:
    places = {tuple(name.split(".", 3)[:3]) for name in names}
    levels = count(names, "down_blocks.", 4)
    attention = [n for n in range(levels) if ("down_blocks", str(n), "attentions") in places]
    return keymaps.unet(levels, count(names, "down_blocks.0.resnets.", 2), attention)


def _diffusers_vae(names: Collection[str]) -> Keymap:
    return keymaps.vae(count(names, "encoder.down_blocks.", 4), count(names, "encoder.down_blocks.0.resnets.", 2))


_LDM_UNET = ("input_blocks.", "middle_block.", "output_blocks.")
_DIFFUSERS_UNET = ("down_blocks.", "mid_block.", "up_blocks.")
_LDM_VAE = ("encoder.down.", "encoder.mid.", "decoder.up.", "decoder.mid.")
_DIFFUSERS_VAE = ("encoder.down_blocks.", "encoder.mid_block.", "decoder.up_blocks.", "decoder.mid_block.")
_CLIP = ("text_model.", "embeddings.token_embedding.", "encoder.layers.")

# In this order; the first place of a component that has a witness is taken.
PLACES = (
    Place("unet", "ldm", "model.diffusion_model.", _LDM_UNET, _same),
    Place("unet", "diffusers", "model.diffusion_model.", _DIFFUSERS_UNET, _diffusers_unet),
    Place("unet", "diffusers", "unet.", _DIFFUSERS_UNET, _diffusers_unet),
    Place("unet", "ldm", "", _LDM_UNET, _same),
    Place("unet", "diffusers", "", _DIFFUSERS_UNET, _diffusers_unet),
    Place("vae", "ldm", "first_stage_model.", _LDM_VAE, lambda _: keymaps.vae_original()),
    Place("vae", "diffusers", "first_stage_model.", _DIFFUSERS_VAE, _diffusers_vae),
    Place("vae", "diffusers", "vae.", _DIFFUSERS_VAE, _diffusers_vae),
    Place("vae", "ldm", "", _LDM_VAE, lambda _: keymaps.vae_original()),
    Place("vae", "diffusers", "", _DIFFUSERS_VAE, _diffusers_vae),
    Place("clip", "ldm", "cond_stage_model.transformer.", _CLIP, lambda _: keymaps.clip()),
    Place("clip", "diffusers", "text_encoder.", _CLIP, lambda _: keymaps.clip()),
    Place("clip", "diffusers", "", _CLIP, lambda _: keymaps.clip()),
)

_PREFIXES = tuple({place.prefix for place in PLACES if place.prefix})

# A part of some name -> what the file is. In this order.
FOREIGN = (
    ("distilled_guidance_layer.", "Chroma"),
    ("double_stream_modulation_img.", "Flux.2"),
    ("double_blocks.", "Flux"),
    ("single_transformer_blocks.", "Flux"),
    ("joint_blocks.", "SD3"),
    (".attn.add_q_proj.", "SD3"),
    ("cap_embedder.", "Z-Image"),
    ("conditioner.embedders.", "SDXL"),
    ("label_emb.", "SDXL"),
    ("add_embedding.", "SDXL"),
    ("text_model_2.", "SDXL"),
    ("cond_stage_model.model.", "SD2"),
    ("control_model.", "ControlNet"),
    ("controlnet_", "ControlNet"),
    ("lora_up.", "LoRA"),
    ("lora_down.", "LoRA"),
    (".lora_A.", "LoRA"),
    (".hada_w1_a", "LoHa"),
    (".lokr_w", "LoKr"),
    ("encoder.block.0.layer.0.SelfAttention.", "T5"),
    ("model.layers.0.self_attn.", "an LLM"),
    ("vision_model.", "CLIP vision"),
    ("resblocks.", "OpenCLIP"),
)

# What real SD 1.x files hold besides the model; refsd does not read it.
KNOWN_EXTRAS = (
    "model_ema.*",
    "betas",
    "alphas_cumprod*",
    "sqrt_*",
    "log_one_minus_alphas_cumprod",
    "posterior_*",
    "ddim_*",
    "logvar",
    "lvlb_weights",
    "scale_factor",
    "global_step",
    "*.position_ids",
    "position_ids",
    "cond_stage_model.logit_scale",
    "*logit_scale",
    "*text_projection",
    "*text_projection.weight",
    "*visual_projection.weight",
    "first_stage_model.loss.*",
    "loss.*",
    "embedding_manager.*",
    "safety_checker.*",
    "*.text_model.encoder.layers.*.self_attn.causal_mask",
)


class Found(NamedTuple):
    """A component in a file: its place, and the rest of each name -> the name in the file."""

    place: Place
    names: dict[str, str]


def foreign_family(names: Iterable[str]) -> str | None:
    """The family that a name gives away, if refsd does not run it."""
    names = [name for name in names if not is_known_extra(name)]
    return next((family for part, family in FOREIGN if any(part in name for name in names)), None)


def find_components(names: Iterable[str]) -> tuple[dict[str, Found], list[str]]:
    """The components, and the names that stand in none. Names without prefix go to the first that is bare."""
    names = list(names)
    found: dict[str, Found] = {}
    taken: set[str] = set()
    for place in PLACES:
        if place.component in found or (place.prefix == "" and _is_bare(found)):
            continue
        starts = tuple(place.prefix + witness for witness in place.witnesses)
        if any(name.startswith(starts) for name in names if name not in taken):
            inside = [name for name in names if name not in taken and _stands_under(place.prefix, name)]
            found[place.component] = Found(place, {name[len(place.prefix) :]: name for name in inside})
            taken.update(inside)
    return found, [name for name in names if name not in taken]


def is_known_extra(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in KNOWN_EXTRAS)


def _stands_under(prefix: str, name: str) -> bool:
    return name.startswith(prefix) if prefix else not name.startswith(_PREFIXES)


def _is_bare(found: dict[str, Found]) -> bool:
    return any(component.place.prefix == "" for component in found.values())
