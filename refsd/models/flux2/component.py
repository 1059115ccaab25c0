"""The component of FLUX.2."""

from refsd.models.flux.network import QUERY_NORMS
from refsd.models.flux2 import AXES_DIM, EPS, THETA, flux2
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component, Stack
from refsd.networks.fits import Fit, exactly, needed, refused, rotary_axes

# Reference images, name -> shape; each has its own height and width.
REFERENCES = {
    "reference": "N C h w",
    "reference_2": "N C p q",
    "reference_3": "N C r s",
    "reference_4": "N C t u",
}


def _flux2(m: Module, **given):
    references = [given.pop(name) for name in REFERENCES if name in given]
    return flux2(m, **given, reference=references or None)


def picture(name: str) -> str:
    return "the latent of a picture to edit" if name == "reference" else "of another, in their order"


def _fits(m: Module) -> dict[str, Fit]:
    fits = {"C": exactly(m.shape("img_in.weight")[1]), "E": exactly(m.shape("txt_in.weight")[1])}
    fits["axes_dim"] = rotary_axes(m, "txt_in.weight", QUERY_NORMS, len(AXES_DIM))
    if "guidance_in" in m:
        return fits | {"guidance": needed("the weights embed one; 4 is usual")}
    return fits | {"guidance": refused("the weights do not embed it, as klein's")}


COMPONENTS = {
    "flux2": Component(
        "flux2",
        _flux2,
        {
            "x": Argument("N C H W", VALUE, "noisy latent, packed and normalised: 128 channels"),
            "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
            "context": Argument("N J E", VALUE, "three hidden states of Mistral or Qwen3 side by side"),
            "guidance": Argument("N", POSITION, "distilled guidance, 4 or so", optional=True),
            **{name: Argument(shape, VALUE, picture(name), optional=True) for name, shape in REFERENCES.items()},
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM], "theta": THETA, "eps": EPS, "cached_references": False},
        _fits,
        stack=Stack(("double_blocks", "single_blocks"), picture=0),
    ),
}
