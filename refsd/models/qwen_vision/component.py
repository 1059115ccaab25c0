"""The component of Qwen2.5-VL's vision tower."""

import math

from refsd.models.qwen_vision import MERGED, WHOLE, qwen2_5_vision
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, divisor_of, exactly, multiple_of


def _fits(m: Module) -> dict[str, Fit]:
    D, values = m.shape("patch_embed.proj.weight")
    patch = math.isqrt(values // 6)
    return {
        "patch": exactly(patch),
        "num_heads": divisor_of(D),
        "H": multiple_of(MERGED * patch),
        "W": multiple_of(MERGED * patch),
    }


COMPONENTS = {
    "qwen2_5_vision": Component(
        "qwen2_5_vision",
        qwen2_5_vision,
        {"x": Argument("N 3 H W", VALUE, "picture, normalised by CLIP's mean and deviation")},
        {"tokens": "N L E"},
        {"num_heads": 16, "window": 4, "patch": 14, "whole": [*WHOLE]},
        _fits,
    ),
}
