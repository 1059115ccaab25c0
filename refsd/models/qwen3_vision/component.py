"""The component of Qwen3-VL's vision tower."""

import math

from refsd.models.qwen3_vision import DEEPSTACK, qwen3_vision
from refsd.models.qwen3_vision.network import deepstack_fits
from refsd.models.qwen_vision import MERGED
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, divisor_of, exactly, multiple_of


def _fits(m: Module) -> dict[str, Fit]:
    D, values = m.shape("patch_embed.proj.weight")
    patch = math.isqrt(values // 6)
    layers, mergers = m.count("blocks"), m.count("deepstack_merger_list")
    stack = f"{mergers} numbers of blocks below {layers}, in ascending order"
    return {
        "patch": exactly(patch),
        "num_heads": divisor_of(D),
        "deepstack": Fit(mergers, stack, lambda found: deepstack_fits(found, mergers, layers), alone=True),
        "H": multiple_of(MERGED * patch),
        "W": multiple_of(MERGED * patch),
    }


COMPONENTS = {
    "qwen3_vision": Component(
        "qwen3_vision",
        qwen3_vision,
        {"x": Argument("N 3 H W", VALUE, "picture, -1..1")},
        {"tokens": "N L E", "deepstack": "N K L E"},
        {"num_heads": 16, "patch": 16, "deepstack": [*DEEPSTACK]},
        _fits,
    ),
}
