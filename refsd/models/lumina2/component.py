"""The component of Lumina 2's transformer."""

from refsd.models.lumina2 import AXES_DIM, EPS, lumina2
from refsd.models.zimage.component import caption_fits, lengths_of
from refsd.module import Module
from refsd.networks.component import MASK, POSITION, VALUE, Argument, Component


def _run(m: Module, x, timesteps, context, context_mask=None, **given):
    return lumina2(m, x, timesteps, context, None if context_mask is None else lengths_of(context_mask), **given)


COMPONENTS = {
    "lumina2": Component(
        "lumina2",
        _run,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            "timesteps": Argument("N", POSITION, "1 - sigma: 0 pure noise, 1 clean"),
            "context": Argument("N J E", VALUE, "Gemma 2's hidden states before the last layer"),
            "context_mask": Argument("N J", MASK, "ones, then zeros where the caption is over", optional=True),
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM], "eps": EPS},
        caption_fits,
    ),
}
