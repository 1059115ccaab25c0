"""The component of ESRGAN's upscaler."""

import math

from refsd.models.esrgan import rrdbnet
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, multiple_of


def _fits(m: Module) -> dict[str, Fit]:
    """Constrain H and W to multiples of the pixel unshuffle p (1, 2, 4); conv_first takes p^2 C channels."""
    C = m.shape("conv_last.weight")[0]
    p = max(1, math.isqrt(m.shape("conv_first.weight")[1] // C))
    return {"C": exactly(C), "H": multiple_of(p), "W": multiple_of(p)}


COMPONENTS = {
    "esrgan": Component(
        "esrgan",
        rrdbnet,
        {"x": Argument("N C H W", VALUE, "picture, 0..1")},
        {"out": "N C P Q"},
        {},
        _fits,
    ),
}
