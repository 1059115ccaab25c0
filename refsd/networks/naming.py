"""What adapter files call a network's modules."""

from typing import NamedTuple


class Naming(NamedTuple):
    """Modules are called `prefix` and their name in a layout, its dots as `dot`."""

    prefix: str
    layout: str
    dot: str


def namings(layouts: tuple[str, ...], flat: tuple[str, ...], dotted: tuple[str, ...]) -> tuple[Naming, ...]:
    prefixes = [(prefix, "_") for prefix in flat] + [(prefix, ".") for prefix in dotted]
    return tuple(Naming(prefix, layout, dot) for prefix, dot in prefixes for layout in layouts)


DENOISER_NAMINGS = namings(
    ("diffusers", "original"),
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
