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


DENOISER_NAMINGS = namings(
    ("diffusers", "original", "krea"),
    ("lora_unet_", "lora_transformer_", "lycoris_"),
    (
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
    ),
)
ENCODER_LAYOUTS = ("original", "headless")
