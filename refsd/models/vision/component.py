"""The components of CLIP's and SigLIP's vision towers."""

import math

from refsd.models.vision import clip_vision, siglip_vision
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, divisor_of


def _fits(m: Module) -> dict[str, Fit]:
    tower = m["vision_model"]["embeddings"]
    D, _, patch, _ = tower.shape("patch_embedding.weight")
    side = patch * math.isqrt(tower.shape("position_embedding.weight")[0])
    pixels = Fit(side, f"{side} to {side + patch - 1}", lambda size: side <= size < side + patch)
    return {"num_heads": divisor_of(D), "H": pixels, "W": pixels}


COMPONENTS = {
    "clip-vision": Component(
        "clip-vision",
        clip_vision,
        {"x": Argument("N 3 H W", VALUE, "picture, normalised by CLIP's mean and deviation")},
        {"last_hidden_state": "N L D", "penultimate": "N L D", "embeds": "N P"},
        {"num_heads": 16, "hidden_act": "gelu", "eps": 1e-5},
        _fits,
    ),
    "siglip": Component(
        "siglip",
        siglip_vision,
        {"x": Argument("N 3 H W", VALUE, "picture, -1..1")},
        {"last_hidden_state": "N L D"},
        {"num_heads": 16, "eps": 1e-6},
        _fits,
    ),
}
