"""The components of Qwen-Image: its transformer as text to image and Edit call it, and as Layered does."""

from refsd.models.flux2.component import REFERENCES
from refsd.models.qwen_image import AXES_DIM, qwen_image, qwen_image_layered
from refsd.module import Module
from refsd.networks.component import (
    MASK,
    POSITION,
    VALUE,
    Argument,
    Component,
    Fit,
    Stack,
    exactly,
    multiple_of,
    rotary_axes,
)

PATCH = 2
_NORMS = ("transformer_blocks.0.attn.norm_q.weight", "transformer_blocks.0.attn.norm_added_q.weight")


def _run(m: Module, zero_cond_t=False, **given):
    references = [given.pop(name) for name in REFERENCES if name in given]
    return qwen_image(m, **given, reference=references, zero_cond_t=zero_cond_t)


def _fits(m: Module) -> dict[str, Fit]:
    sides = {letter for shape in REFERENCES.values() for letter in shape.split()[2:]}
    return _layered_fits(m) | dict.fromkeys(sides, multiple_of(PATCH))


def _layered_fits(m: Module) -> dict[str, Fit]:
    sizes = {"axes_dim": rotary_axes(m, "img_in.weight", _NORMS)}
    sizes |= {"C": exactly(m.shape("img_in.weight")[1] // PATCH**2), "E": exactly(m.shape("txt_in.weight")[1])}
    return sizes | dict.fromkeys("HW", multiple_of(PATCH))


def _picture(name: str) -> str:
    return "the latent of a picture to edit" if name == "reference" else "of another, in their order"


_TEXT = {
    "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
    "context": Argument("N J E", VALUE, "Qwen2.5-VL's last hidden states"),
    "context_mask": Argument("N J", MASK, "0 for tokens that the attention ignores", optional=True),
}
COMPONENTS = {
    "qwen-image": Component(
        "qwen-image",
        _run,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            **_TEXT,
            **{name: Argument(shape, VALUE, _picture(name), optional=True) for name, shape in REFERENCES.items()},
        },
        {"out": "N C H W"},
        {"zero_cond_t": False, "axes_dim": [*AXES_DIM]},
        _fits,
        stack=Stack(("transformer_blocks",), picture=1),
    ),
    "qwen-image-layered": Component(
        "qwen-image-layered",
        qwen_image_layered,
        {
            "x": Argument("N T C H W", VALUE, "noisy latents: the whole picture, then its layers"),
            **_TEXT,
            "condition": Argument("N C H W", VALUE, "the latent of the picture to take apart"),
        },
        {"out": "N T C H W"},
        {"axes_dim": [*AXES_DIM]},
        _layered_fits,
    ),
}
