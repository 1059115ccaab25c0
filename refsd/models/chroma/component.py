"""The component of Chroma."""

from refsd.models.chroma import chroma
from refsd.models.flux import AXES_DIM
from refsd.models.flux.component import CONTEXT, TIMESTEPS, X, latent_fits
from refsd.networks.component import MASK, Argument, Component, Stack

CONTEXT_MASK = Argument("N J", MASK, "1 where a token of the text is seen", optional=True)


COMPONENTS = {
    "chroma": Component(
        "chroma",
        chroma,
        {
            "x": X._replace(what="noisy latent, unpacked"),
            "timesteps": TIMESTEPS,
            "context": CONTEXT,
            "context_mask": CONTEXT_MASK,
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM]},
        latent_fits,
        stack=Stack(("double_blocks", "single_blocks"), picture=0),
    ),
}
