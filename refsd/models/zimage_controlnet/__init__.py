"""Z-Image's Fun ControlNet (Union): a sparser stack of Z-Image's blocks, whose outputs join every n-th block.

Alibaba PAI, VideoX-Fun; key names as in its files, those within a block as Z-Image's. It embeds only the hint:
captions, time, positions and padding are Z-Image's own. Its versions differ in what refines the hint:

    1.0   two blocks of Z-Image's kind (`control_noise_refiner`)
    2.0   the control blocks themselves, which see the noisy picture
    2.1   control blocks of their own (`control_noise_refiner` with `before_proj`)

In 2.x what they give also joins the noisy picture's refiners, but only for the control blocks' view of it.
"""

from typing import NamedTuple

import numpy as np

from refsd.kernels.patchify import patchify_channels_last
from refsd.models.zimage import Streams, fill, transformer_block
from refsd.module import Module, block

EMBEDDER, LAYERS, REFINER = "control_all_x_embedder.2-1", "control_layers", "control_noise_refiner"


class Control(NamedTuple):
    """A ControlNet for one call. m: its weights; hint: [N, G, H, W]; strength: factor of what it adds"""

    m: Module
    hint: np.ndarray
    strength: float = 1.0

    def __call__(self, base: Module, streams: Streams) -> dict[int, np.ndarray]:
        """Return what joins the output of Z-Image's blocks, by their number: [N, L + J, D] each."""
        hints = zimage_controlnet(self.m, base, self.hint, streams, self.strength)
        return dict(zip(places(base.count("layers"), len(hints)), hints, strict=True))


def places(layers: int, n: int) -> list[int]:
    """Return the numbers of Z-Image's blocks that the n control blocks' outputs join: evenly spaced from 0."""
    return [layers // n * i for i in range(n)]


@block
def zimage_controlnet(m: Module, base: Module, hint, streams: Streams, strength=1.0):
    """Compute what joins Z-Image's blocks.

    base:     Z-Image's weights
    hint:     [N, G, H, W], the control picture's latent; in 2.x then mask and latent to fill in, or zeros
    streams:  Z-Image's tokens where its blocks begin
    -> hints: [N, L + J, D] for each control block
    """
    img_angle, c, eps = streams.img_angle, streams.c, streams.eps
    control = m.linear(EMBEDDER, patchify_channels_last(hint, 2))
    control = fill(base, "x_pad_token", control, np.full(len(control), control.shape[1]))
    if REFINER in m and "before_proj" not in m[REFINER]["0"]:
        for i in range(m.count(REFINER)):
            control = transformer_block(m[REFINER][i], control, img_angle, eps, c)
        both = streams.both
    else:
        control, added = control_blocks(refiner(m), control, streams.img, img_angle, None, c, eps)
        img = streams.img
        for i in range(base.count("noise_refiner")):
            img = transformer_block(base["noise_refiner"][i], img, img_angle, eps, c)
            img = m.add(img, m.multiply(added[i], strength))
        both = np.concatenate([img, streams.txt], axis=1)
    control = np.concatenate([control, streams.txt], axis=1)
    _, hints = control_blocks(m[LAYERS], control, both, streams.angle, streams.mask, c, eps)
    return tuple(m.multiply(hint, strength) for hint in hints)


def refiner(m: Module) -> Module:
    """Return the blocks that refine the hint in 2.x. 2.0's file has refiners that were never trained."""
    first = m.weights.get(f"{m.prefix}{REFINER}.0.before_proj.weight")
    return m[LAYERS] if first is None or not first.data.any() else m[REFINER]


def control_blocks(m: Module, control, x, angle, mask, c, eps):
    """Run Z-Image's blocks on the hint, to which x is added once.

    control, x: [N, L, D]
    -> control: [N, L, D]
       hints:   [N, L, D] for each block
    """
    control, hints = m.add(m.linear("0.before_proj", control), x), []
    for i in range(m.count()):
        control = transformer_block(m[i], control, angle, eps, c, mask)
        hints.append(m.linear(f"{i}.after_proj", control))
    return control, hints
