"""Names of a network's modules in adapter files."""

from typing import NamedTuple


class Naming(NamedTuple):
    """A module's name in an adapter file is `prefix` + its name in `layout`, with each "." replaced by `dot`."""

    prefix: str
    layout: str
    dot: str


def namings(layouts: tuple[str, ...], flat: tuple[str, ...], dotted: tuple[str, ...]) -> tuple[Naming, ...]:
    prefixes = [(prefix, "_") for prefix in flat] + [(prefix, ".") for prefix in dotted]
    return tuple(Naming(prefix, layout, dot) for prefix, dot in prefixes for layout in layouts)


_FLAT = "lora_unet_", "lora_transformer_", "lycoris_"
_DOTTED = (
    "",
    "unet.",
    "transformer.",
    "diffusion_model.",
    "model.diffusion_model.",
    "base_model.model.",
    "base_model.model.unet.",
    "base_model.model.transformer.",
    "unet.base_model.model.",
    "transformer.base_model.model.",
)


def denoiser_namings(*layouts: str) -> tuple[Naming, ...]:
    """Return the names that trainers give a denoiser's modules, with those of further layouts."""
    return namings(("diffusers", "original", *layouts), _FLAT, _DOTTED)


DENOISER_NAMINGS = denoiser_namings()
ENCODER_LAYOUTS = ("original", "headless")
