"""The component of Z-Image's transformer."""

from collections.abc import Mapping

import numpy as np

from refsd.models.zimage import AXES_DIM, EPS, THETA, zimage
from refsd.models.zimage_controlnet import EMBEDDER, Control
from refsd.module import Module
from refsd.networks.component import MASK, POSITION, VALUE, Argument, Component, Stack
from refsd.networks.dimensions import Shape
from refsd.networks.fits import Fit, exactly, multiple_of, refused, rotary_axes
from refsd.numerics.errors import BadInput

PATCH = 2


CONTROL = "control_model"


def _run(m: Module, x, timesteps, context, context_mask=None, hint=None, control_strength=1.0, **given):
    """Run Z-Image; with a hint, its ControlNet too, whose weights are under the prefix CONTROL."""
    control = None if hint is None else Control(m[CONTROL], hint, control_strength)
    lengths = None if context_mask is None else lengths_of(context_mask)
    return zimage(m, x, timesteps, context, lengths, **given, control=control)


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


def _fits(m: Module) -> dict[str, Fit]:
    if CONTROL not in m:
        return caption_fits(m) | {"hint": refused("no ControlNet was given; name one with --control-net")}
    return caption_fits(m) | {"G": exactly(m[CONTROL].shape(f"{EMBEDDER}.weight")[1] // PATCH**2)}


def _controlnet_beside(own: Mapping[str, Shape], other: Mapping[str, Shape], file: object) -> dict[str, str]:
    embedder = other.get(f"{EMBEDDER}.weight", (0, 0))
    hidden, channels = own["x_embedder.weight"]
    if embedder[0] != hidden or embedder[1] < channels:
        raise BadInput(
            f'{file}: tensor "{EMBEDDER}.weight" has shape {list(embedder)}; Z-Image takes [{hidden}, {channels}] '
            "or more columns: this ControlNet was trained for another model"
        )
    return {f"{CONTROL}.{name}": name for name in other}


COMPONENTS = {
    "zimage": Component(
        "zimage",
        _run,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            "timesteps": Argument("N", POSITION, "1 - sigma: 0 pure noise, 1 clean"),
            "context": Argument("N J E", VALUE, "Qwen3's hidden states before the last layer"),
            "context_mask": Argument("N J", MASK, "ones, then zeros where the caption is over", optional=True),
            "hint": Argument("N G H W", VALUE, "latent of the picture for a ControlNet", optional=True),
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM], "theta": THETA, "eps": EPS, "control_strength": 1.0},
        _fits,
        beside={"zimage-controlnet": _controlnet_beside},
        stack=Stack(("layers",)),
    ),
}
