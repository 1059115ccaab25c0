"""The component of Qwen-Image 2.1's transformer."""

from refsd.models.flux2.component import REFERENCES, picture
from refsd.models.qwen_image21 import AXES_DIM, EPS, qwen_image21
from refsd.models.qwen_image21.network import TEXT_NORM
from refsd.module import Module
from refsd.networks.component import MASK, POSITION, VALUE, Argument, Component, Stack
from refsd.networks.fits import Fit, exactly, multiple_of, rotary_axes

_NORMS = tuple(f"transformer_blocks.0.attn.norm_{which}.weight" for which in "qk")


def _run(m: Module, places=(), **given):
    references = [given.pop(name) for name in REFERENCES if name in given]
    return qwen_image21(m, **given, reference=references, places=places)


def _fits(m: Module) -> dict[str, Fit]:
    return {
        "axes_dim": rotary_axes(m, "img_in.weight", _NORMS),
        "C": exactly(m.shape("img_in.weight")[1]),
        "E": exactly(m.shape(TEXT_NORM)[0]),
        **dict.fromkeys("HW", multiple_of(2)),
        **dict.fromkeys((letter for shape in REFERENCES.values() for letter in shape.split()[2:]), multiple_of(2)),
    }


COMPONENTS = {
    "qwen-image21": Component(
        "qwen-image21",
        _run,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
            "context": Argument("N J E", VALUE, "the output of Qwen3-VL's last layer, before the norm"),
            "context_mask": Argument("N J", MASK, "0 for words that nobody sees", optional=True),
            **{name: Argument(shape, VALUE, picture(name), optional=True) for name, shape in REFERENCES.items()},
        },
        {"out": "N C H W"},
        {"places": [], "axes_dim": [*AXES_DIM], "eps": EPS},
        _fits,
        stack=Stack(("transformer_blocks",)),
    ),
}
