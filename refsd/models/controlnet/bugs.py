"""Known bugs of what a ControlNet reads and adds."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models.controlnet import component as alone
from refsd.models.unet import component as unet
from refsd.networks.bugs import Change, changing

_CONTROL = alone.controlnet


def _twice(*arguments, **named):
    return [2 * part for part in _CONTROL(*arguments, **named)]


BUGS = (
    Mutant("the hint is not read", changing("hint", np.zeros_like)),
    Mutant(
        "what the ControlNet adds is added twice",
        Change(replaced=((alone, "controlnet", _twice), (unet, "controlnet", _twice))),
    ),
)
