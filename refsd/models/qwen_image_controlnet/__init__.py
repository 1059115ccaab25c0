"""Qwen-Image's ControlNet (InstantX Union): a shorter stack of its blocks; each adds to a run of Qwen-Image's.

It embeds words, time and the noisy picture by weights of its own, and adds the embedded hint to the picture.
Key names are diffusers', in InstantX's file too. One file follows edges, depth and poses, and is not told which.
"""

from typing import NamedTuple

import numpy as np

from refsd.models.flux import pack
from refsd.models.qwen_image import (
    THETA,
    centred_ids,
    rms_norm,
    text_ids,
    text_mask,
    time_text_embed,
    transformer_block,
)
from refsd.module import Module, block

EMBEDDER, OUTPUTS = "controlnet_x_embedder", "controlnet_blocks"


class Control(NamedTuple):
    """A ControlNet for one call.

    m:            its weights
    hint:         [N, G, H, W]
    context:      [N, J, E], the words that it sees, which need not be those of the call
    context_mask: [N, J], 0 for tokens that the attention ignores; None: all are seen
    strength:     factor of what it adds
    """

    m: Module
    hint: np.ndarray
    context: np.ndarray
    context_mask: np.ndarray | None = None
    strength: float = 1.0

    def __call__(self, x, timesteps, axes_dim) -> tuple[np.ndarray, ...]:
        """Return what the ControlNet's blocks add: [N, L, D] each."""
        m, hint, context, mask, strength = self
        return qwen_image_controlnet(m, x, timesteps, context, hint, mask, axes_dim, strength)


@block
def qwen_image_controlnet(m: Module, x, timesteps, context, hint, context_mask, axes_dim, strength=1.0):
    """Compute what joins Qwen-Image's blocks.

    x:        [N, C, H, W], the noisy latent
    hint:     [N, G, H, W], the control picture's latent; the inpainting one's has the mask behind it
    -> hints: [N, L, D] for each control block; other arguments as in `qwen_image`

    Source: diffusers controlnet_qwenimage.py.
    """
    H, W = x.shape[2:]
    pictures = centred_ids(H, W)
    ids = np.concatenate([text_ids(context.shape[1], pictures[:, 1:].max() + 1), pictures])
    vec = time_text_embed(m["time_text_embed"], timesteps)
    img = m.add(m.linear("img_in", pack(x)), m.linear(EMBEDDER, pack(hint)))
    txt = m.linear("txt_in", rms_norm(m, "txt_norm", context))
    angle, mask, hints = m.rope_angles(ids[None], axes_dim, THETA), text_mask(context_mask, img.shape[1]), []
    for i in range(m.count("transformer_blocks")):
        txt, img = transformer_block(m["transformer_blocks"][i], txt, img, vec, angle, sum(axes_dim), mask)
        hints.append(m.multiply(m.linear(f"{OUTPUTS}.{i}", img), strength))
    return tuple(hints)
