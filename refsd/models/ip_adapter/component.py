"""The component that makes an image prompt: the projection of an IP-Adapter."""

from refsd.models.ip_adapter import HEAD_DIM, image_prompt
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, needed, refused
from refsd.numerics.errors import BadInput


def _fits(m: Module) -> dict[str, Fit]:
    own = m["image_proj"]
    if "proj_in" in own:
        (D,), keys = own.shape("proj_in.weight")[1:], own.shape("layers.0.0.to_q.weight")[0]
        if keys % HEAD_DIM:
            raise BadInput(
                f'"{own.prefix}layers.0.0.to_q.weight" has {keys} rows: refsd computes whole heads of {HEAD_DIM} '
                "channels"
            )
    else:
        (D,) = own.shape("proj.0.weight" if "proj.0" in own else "proj.weight")[1:]
    if "norm" in own:
        return {
            "embeds": needed("this IP-Adapter projects it"),
            "penultimate": refused("this IP-Adapter reads the embedding"),
            "D": exactly(D),
        }
    return {
        "penultimate": needed("this IP-Adapter reads the hidden states"),
        "embeds": refused("this IP-Adapter reads the hidden states"),
        "D": exactly(D),
    }


COMPONENTS = {
    "ip-adapter": Component(
        "ip-adapter",
        lambda m, embeds=None, penultimate=None: image_prompt(m, penultimate if embeds is None else embeds),
        {
            "embeds": Argument("N D", VALUE, "embedding of CLIP's vision tower", optional=True),
            "penultimate": Argument("N L D", VALUE, "its hidden states, for plus and full-face", optional=True),
        },
        {"ip_tokens": "N T E"},
        {},
        _fits,
    ),
}
