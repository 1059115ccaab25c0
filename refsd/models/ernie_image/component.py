"""The component of Ernie-Image's transformer."""

from refsd.models.ernie_image import AXES_DIM, EPS, THETA, ernie_image
from refsd.models.zimage.component import lengths_of
from refsd.module import Module
from refsd.networks.component import MASK, POSITION, VALUE, Argument, Component, Stack
from refsd.networks.fits import Fit, exactly, rotary_axes

_NORMS = tuple(f"layers.0.self_attention.norm_{which}.weight" for which in "qk")


def _run(m: Module, x, timesteps, context, context_mask=None, **given):
    lengths = None if context_mask is None else lengths_of(context_mask)
    return ernie_image(m, x, timesteps, context, lengths, **given)


def _fits(m: Module) -> dict[str, Fit]:
    return {
        "axes_dim": rotary_axes(m, "x_embedder.proj.weight", _NORMS),
        "C": exactly(m.shape("x_embedder.proj.weight")[1]),
        "E": exactly(m.shape("text_proj.weight")[1]),
    }


COMPONENTS = {
    "ernie-image": Component(
        "ernie-image",
        _run,
        {
            "x": Argument("N C H W", VALUE, "noisy latent, packed and normalised: 128 channels"),
            "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
            "context": Argument("N J E", VALUE, "Ministral's hidden states before the last layer"),
            "context_mask": Argument("N J", MASK, "ones, then zeros where the prompt is over", optional=True),
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM], "theta": THETA, "eps": EPS},
        _fits,
        stack=Stack(("layers",)),
    ),
}
