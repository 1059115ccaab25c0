"""The component of FLUX.3's transformer."""

from refsd.models.flux2.component import REFERENCES, picture
from refsd.models.flux3 import AXES_DIM, EPS, THETA, flux3
from refsd.module import Module
from refsd.networks.component import POSITION, VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, needed, refused, rotary_axes

_NORMS = "txt_mode_blocks.0.norm.query_norm.scale", "single_blocks.0.norm.query_norm.scale"


def _flux3(m: Module, **given):
    references = [given.pop(name) for name in REFERENCES if name in given]
    return flux3(m, **given, reference=references or None)


def _fits(m: Module) -> dict[str, Fit]:
    fits = {
        "C": exactly(m.shape("emb_in.image.weight")[1]),
        "K": exactly(m.shape("emb_in.image_cond.weight")[1]),
        "E": exactly(m.shape("txt_in.weight")[1]),
        "axes_dim": rotary_axes(m, "txt_in.weight", _NORMS, len(AXES_DIM)),
    }
    if "ref_time_in" in m:
        return fits | {"target_timesteps": needed("the weights embed the time at which a step ends")}
    return fits | {"target_timesteps": refused("only the distilled model embeds it")}


COMPONENTS = {
    "flux3": Component(
        "flux3",
        _flux3,
        {
            "x": Argument("N C H W", VALUE, "noisy latent, packed and normalised: 128 channels"),
            "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
            "context": Argument("N J E", VALUE, "eight hidden states of Qwen3-VL side by side"),
            "target_timesteps": Argument("N", POSITION, "0..1, the time at which the step ends", optional=True),
            **{
                name: Argument(shape.replace("C", "K"), VALUE, picture(name), optional=True)
                for name, shape in REFERENCES.items()
            },
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM], "theta": THETA, "eps": EPS},
        _fits,
    ),
}
