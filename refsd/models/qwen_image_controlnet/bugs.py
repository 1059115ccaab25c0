"""Known bugs of what Qwen-Image's ControlNet reads and where it adds."""

import numpy as np

from refsd.models import qwen_image, qwen_image_controlnet
from refsd.networks.bugs import replacing, with_arguments

_JOINED = qwen_image.joined


def _first_blocks(hints, layers):
    return [hints[i] if i < len(hints) else None for i in range(layers)]


def _in_turn(hints, layers):
    return [hints[i % len(hints)] for i in range(layers)] if hints else _JOINED(hints, layers)


def _rounded_down(hints, layers):
    n = len(hints)
    return [hints[min(i // max(1, layers // n), n - 1)] for i in range(layers)] if n else _JOINED(hints, layers)


BUGS = (
    *replacing(
        qwen_image,
        ("Qwen-Image's ControlNet joins the first blocks alone", "joined", _first_blocks),
        ("Qwen-Image's ControlNet's outputs are taken in turn", "joined", _in_turn),
        ("Qwen-Image's ControlNet's runs of blocks are rounded down", "joined", _rounded_down),
    ),
    *replacing(
        qwen_image_controlnet,
        ("Qwen-Image's ControlNet sees the padding of its words", "text_mask", lambda mask, pictures: None),
        (
            "Qwen-Image's ControlNet is always at time 0",
            "time_text_embed",
            with_arguments(qwen_image_controlnet.time_text_embed, timesteps=np.zeros_like),
        ),
    ),
)
