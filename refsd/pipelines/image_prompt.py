"""The image prompt of an IP-Adapter: what CLIP's vision tower sees of a picture, and the tokens made of it."""

import numpy as np

from refsd.families.editing import MEAN, STD, resized
from refsd.numerics.errors import BadInput
from refsd.pipelines.guided_network import Conditioning
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.pipeline import Pipeline

_LONGEST = 16  # times the shorter side


def with_image_prompt(pipe: Pipeline, conditioning: Conditioning, pictures: tuple[np.ndarray, ...]) -> Conditioning:
    """Add the tokens of pictures, [1, 3, H, W], 0..1 each, to the prompt, and those of none to the negative prompt.

    The tokens of several pictures follow one another. Source: diffusers pipeline_stable_diffusion.py, encode_image.
    """
    if not pictures:
        return conditioning
    tower, adapter = pipe.image_encoders["clip-vision"], pipe.image_encoders["ip-adapter"]
    seen = [seen_by_clip(picture, tower.fits["H"].n) for picture in pictures]
    cond = conditioning.cond._replace(ip_tokens=_tokens(tower, adapter, seen))
    uncond = conditioning.uncond
    if uncond is not None:
        uncond = uncond._replace(ip_tokens=_tokens(tower, adapter, seen, negative=True))
    return Conditioning(cond, uncond)


def _tokens(
    tower: LoadedComponent, adapter: LoadedComponent, seen: list[np.ndarray], negative: bool = False
) -> np.ndarray:
    """Return the tokens of the pictures, [1, T, E].

    negative: those of no picture: an embedding of zeros; for plus and full-face hidden states of pixels that are
              zeros after normalising
    """
    parts = []
    for pixels in seen:
        if adapter.fits["embeds"].holds(1):
            embeds = tower({"x": pixels}, "--ip-image")["embeds"]
            inputs = {"embeds": np.zeros_like(embeds) if negative else embeds}
        else:
            x = np.zeros_like(pixels) if negative else pixels
            inputs = {"penultimate": tower({"x": x}, "--ip-image")["penultimate"]}
        parts.append(adapter(inputs, "--ip-image")["ip_tokens"])
    return np.concatenate(parts, axis=1)


def seen_by_clip(picture: np.ndarray, side: int) -> np.ndarray:
    """Resize the shorter side, cut the middle, and normalise the colours. [1, 3, H, W], 0..1 -> [1, 3, side, side]

    Source: transformers image_processing_pil_clip.py.
    """
    H, W = picture.shape[2:]
    short, long = sorted((H, W))
    if long > _LONGEST * short:
        raise BadInput(f"--ip-image: {W}x{H} pixels: CLIP sees a square of it; cut it")
    longer = side * long // short
    size = (side, longer) if H <= W else (longer, side)
    whole = resized(picture, size, "BICUBIC")
    top, left = ((edge - side) // 2 for edge in size)
    middle = whole[:, :, top : top + side, left : left + side]
    return (middle - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
