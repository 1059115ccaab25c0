"""The component of Krea 2's transformer."""

from refsd.models.krea2 import AXES_DIM, EPS, THETA, krea2
from refsd.models.krea2.network import PROJECTOR
from refsd.module import Module
from refsd.networks.component import MASK, POSITION, VALUE, Argument, Component, Stack
from refsd.networks.fits import Fit, exactly, multiple_of, rotary_axes, whole_heads

PATCH = 2
_STACKS = "transformer_blocks", "text_fusion.layerwise_blocks", "text_fusion.refiner_blocks"


def _fits(m: Module) -> dict[str, Fit]:
    for stack in _STACKS:
        if stack in m:
            at = f"{stack}.0.attn"
            norms = f"{at}.norm_q.weight", f"{at}.norm_k.weight"
            for name in ("to_q", "to_k"):
                whole_heads(m, f"{at}.{name}.weight", m.shape(norms[0])[0], norms)
    return {
        "axes_dim": rotary_axes(m, "img_in.weight", ("transformer_blocks.0.attn.norm_q.weight",)),
        "C": exactly(m.shape("img_in.weight")[1] // PATCH**2),
        "S": exactly(m.shape(PROJECTOR)[1]),
        "E": exactly(m.shape("txt_in.linear_1.weight")[1]),
        **dict.fromkeys("HW", multiple_of(PATCH)),
    }


COMPONENTS = {
    "krea2": Component(
        "krea2",
        krea2,
        {
            "x": Argument("N C H W", VALUE, "noisy latent"),
            "timesteps": Argument("N", POSITION, "0..1, the share of the noise"),
            "context": Argument("N J S E", VALUE, "S hidden states of Qwen3-VL for each token"),
            "context_mask": Argument("N J", MASK, "0 for tokens that the attention ignores", optional=True),
        },
        {"out": "N C H W"},
        {"axes_dim": [*AXES_DIM], "theta": THETA, "eps": EPS},
        _fits,
        stack=Stack(("transformer_blocks",)),
    ),
}
