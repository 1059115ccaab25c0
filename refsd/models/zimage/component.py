"""The component of Z-Image's transformer."""

import numpy as np

from refsd.models.zimage import AXES_DIM, EPS, THETA, zimage
from refsd.module import Module
from refsd.networks.component import (
    MASK,
    POSITION,
    VALUE,
    Argument,
    Component,
    Fit,
    exactly,
    multiple_of,
    rotary_axes,
)
from refsd.numerics.errors import BadInput

PATCH = 2


def _run(m: Module, x, timesteps, context, context_mask=None, **given):
    return zimage(m, x, timesteps, context, None if context_mask is None else lengths_of(context_mask), **given)


def lengths_of(mask) -> np.ndarray:
    """Return each caption's length, [N, J] -> [N]. Raises BadInput unless all padding follows the caption."""
    seen = np.asarray(mask) != 0
    if (seen[:, 1:] & ~seen[:, :-1]).any() or not seen[:, 0].all():
        raise BadInput("context_mask: expected ones, then zeros in every row: captions stand first")
    return seen.sum(axis=1)


_NORMS = tuple(f"{stack}.0.attention.q_norm.weight" for stack in ("layers", "noise_refiner", "context_refiner"))


def caption_fits(m: Module) -> dict[str, Fit]:
    """Constrain a denoiser of captions and pictures: Z-Image, Lumina 2."""
    fits = {
        "axes_dim": rotary_axes(m, "x_embedder.weight", _NORMS),
        "C": exactly(m.shape("x_embedder.weight")[1] // PATCH**2),
        "E": exactly(m.shape("cap_embedder.1.weight")[1]),
    }
    return fits | dict.fromkeys("HW", multiple_of(PATCH))


COMPONENTS = {
    "zimage": Component(
        "zimage",
        _run,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            "timesteps": Argument("N", POSITION, "1 - sigma: 0 pure noise, 1 clean"),
            "context": Argument("N J E", VALUE, "Qwen3's hidden states before the last layer"),
            "context_mask": Argument("N J", MASK, "ones, then zeros where the caption is over", optional=True),
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM], "theta": THETA, "eps": EPS},
        caption_fits,
    ),
}
