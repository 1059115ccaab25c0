"""Known bugs of what Z-Image's ControlNet reads and where it adds."""

import numpy as np

from refsd.models import zimage_controlnet
from refsd.networks.bugs import replacing, with_arguments

_ALONE = with_arguments(zimage_controlnet.control_blocks, x=np.zeros_like)


def _zeros(m, name, x, lengths):
    return np.pad(x, ((0, 0), (0, -x.shape[1] % 32), (0, 0)))


BUGS = replacing(
    zimage_controlnet,
    ("Z-Image's ControlNet joins the first blocks, not every n-th", "places", lambda layers, n: [*range(n)]),
    ("Z-Image's ControlNet does not see the noisy picture", "control_blocks", _ALONE),
    ("Z-Image's ControlNet pads its hint with zeros, not with the learned token", "fill", _zeros),
    (
        "Z-Image's ControlNet refines its hint by its control blocks, as 2.0",
        "refiner",
        lambda m: m["control_layers"],
    ),
)
