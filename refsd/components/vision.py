"""The components that encode pictures: CLIP's, SigLIP's and Qwen2.5-VL's vision towers, FLUX.1 Redux."""

import math

from refsd.components.component import VALUE, Argument, Component, Fit, divisor_of, exactly, multiple_of
from refsd.models.qwen_vision import MERGED, WHOLE, qwen2_5_vision
from refsd.models.redux import redux
from refsd.models.vision import clip_vision, siglip_vision
from refsd.module import Module


def _fits(m: Module) -> dict[str, Fit]:
    tower = m["vision_model"]["embeddings"]
    D, _, patch, _ = tower.shape("patch_embedding.weight")
    side = patch * math.isqrt(tower.shape("position_embedding.weight")[0])
    pixels = Fit(side, f"{side} to {side + patch - 1}", lambda size: side <= size < side + patch)
    return {"num_heads": divisor_of(D), "H": pixels, "W": pixels}


def _qwen_fits(m: Module) -> dict[str, Fit]:
    D, values = m.shape("patch_embed.proj.weight")
    patch = math.isqrt(values // 6)
    return {
        "patch": exactly(patch),
        "num_heads": divisor_of(D),
        "H": multiple_of(MERGED * patch),
        "W": multiple_of(MERGED * patch),
    }


COMPONENTS = {
    "clip-vision": Component(
        "clip-vision",
        clip_vision,
        {"x": Argument("N 3 H W", VALUE, "picture, normalised by CLIP's mean and deviation")},
        {"last_hidden_state": "N L D", "penultimate": "N L D", "embeds": "N P"},
        {"num_heads": 16, "hidden_act": "gelu"},
        _fits,
    ),
    "siglip": Component(
        "siglip",
        siglip_vision,
        {"x": Argument("N 3 H W", VALUE, "picture, -1..1")},
        {"last_hidden_state": "N L D"},
        {"num_heads": 16},
        _fits,
    ),
    "qwen2_5_vision": Component(
        "qwen2_5_vision",
        qwen2_5_vision,
        {"x": Argument("N 3 H W", VALUE, "picture, normalised by CLIP's mean and deviation")},
        {"tokens": "N L E"},
        {"num_heads": 16, "window": 4, "patch": 14, "whole": [*WHOLE]},
        _qwen_fits,
    ),
    "redux": Component(
        "redux",
        redux,
        {"x": Argument("N L D", VALUE, "SigLIP's last hidden states")},
        {"out": "N L E"},
        {},
        lambda m: {"D": exactly(m.shape("redux_up.weight")[1])},
    ),
}
