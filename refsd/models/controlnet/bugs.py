"""Known bugs of what a ControlNet reads and adds."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import controlnet as control
from refsd.models.controlnet import component as alone
from refsd.models.controlnet import union
from refsd.models.unet import component as unet
from refsd.networks.bugs import Change, changing, replacing, with_arguments

_CONTROL, _ATTENTION = alone.controlnet, union.attention
_COUNTED_FROM_1 = with_arguments(union.fused_hint, kind=lambda kind: max(0, kind - 1))


def _twice(*arguments, **named):
    return [2 * part for part in _CONTROL(*arguments, **named)]


def _without_kind(m, kind, kinds, N):
    return np.zeros((N, m.shape("linear_2.weight")[0]))


BUGS = (
    Mutant("the hint is not read", changing("hint", np.zeros_like)),
    *replacing(
        control,
        ("ControlNet Union's kind counts from 1", "fused_hint", _COUNTED_FROM_1),
        ("ControlNet Union's kind is not embedded with the time", "type_embed", _without_kind),
        ("ControlNet Union's hint is not shifted by its tokens", "fused_hint", lambda m, hint, x, kind: hint),
    ),
    *replacing(
        union,
        (
            "ControlNet Union's tokens attend to each other, as in ComfyUI, not the batch",
            "attention",
            lambda m, x: _ATTENTION(m, x.swapaxes(0, 1)).swapaxes(0, 1),
        ),
    ),
    Mutant(
        "what the ControlNet adds is added twice",
        Change(replaced=((alone, "controlnet", _twice), (unet, "controlnet", _twice))),
    ),
)
