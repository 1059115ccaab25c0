"""The component of Wan's transformer."""

from refsd.models.wan import AXES_DIM, EPS, wan
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, multiple_of, rotary_axes


def _fits(m: Module) -> dict[str, Fit]:
    patch = m.shape("patch_embedding.weight")
    return {
        "axes_dim": rotary_axes(m, "patch_embedding.weight"),
        "C": exactly(patch[1]),
        "K": exactly(m.shape("head.head.weight")[0] // (patch[3] * patch[4])),
        "E": exactly(m.shape("text_embedding.0.weight")[1]),
        "H": multiple_of(patch[3]),
        "W": multiple_of(patch[4]),
    }


COMPONENTS = {
    "wan": Component(
        "wan",
        wan,
        {
            "x": Argument("N C T H W", VALUE, "noisy latents of T frames"),
            "timesteps": Argument("N", POSITION, "0..1000"),
            "context": Argument("N J E", VALUE, "UMT5's hidden states"),
        },
        {"out": "N K T H W"},
        {"axes_dim": [*AXES_DIM], "eps": EPS},
        _fits,
    ),
}
