"""The component of Chroma-Radiance."""

from refsd.models.chroma.component import CONTEXT_MASK
from refsd.models.chroma_radiance import chroma_radiance
from refsd.models.flux import AXES_DIM
from refsd.models.flux.component import CONTEXT, TIMESTEPS, X
from refsd.models.flux.network import QUERY_NORMS
from refsd.module import Module
from refsd.networks.component import Component
from refsd.networks.fits import Fit, exactly, multiple_of, whole_heads


def _fits(m: Module) -> dict[str, Fit]:
    _, C, patch, _ = m.shape("img_in_patch.weight")
    side = patch * (2 if "__32x32__" in m.weights else 1)
    whole_heads(m, "txt_in.weight", sum(AXES_DIM), QUERY_NORMS)
    return {"C": exactly(C), "E": exactly(m.shape("txt_in.weight")[1])} | dict.fromkeys("HW", multiple_of(side))


COMPONENTS = {
    "chroma-radiance": Component(
        "chroma-radiance",
        chroma_radiance,
        {
            "x": X._replace(what="noisy picture"),
            "timesteps": TIMESTEPS,
            "context": CONTEXT,
            "context_mask": CONTEXT_MASK,
        },
        {"out": "N C H W"},
        {},
        _fits,
    ),
}
