"""What a prompt's encoders said, as each family's network takes it: `conditioning`'s joins by component name."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from refsd.models.unet import size_condition
from refsd.module import Module
from refsd.pipelines import conditioning
from refsd.pipelines.conditioning import Conditioned

AESTHETIC = 6.0, 2.5  # what SDXL's refiner is told of a picture that is wanted, and of one that is not


class Said(NamedTuple):
    """
    hidden, pooled: component -> array, [1, J, E] and [1, P]; `hidden` after the prompt's weights
    mask:           component -> [1, J], 1 where a token is no padding
    network:        the denoiser's weights
    size:           height, width in pixels
    like:           an engine
    negative, empty: of the prompt
    """

    hidden: Mapping[str, np.ndarray]
    pooled: Mapping[str, np.ndarray]
    mask: Mapping[str, np.ndarray]
    network: Module
    size: tuple[int, int]
    like: str
    negative: bool = False
    empty: bool = False


Join = Callable[[Said], Conditioned]


def clip(said: Said) -> Conditioned:
    return Conditioned(said.hidden["clip"])


def sdxl(said: Said) -> Conditioned:
    """An empty negative prompt is zeros: hidden states in stable-diffusion.cpp, in diffusers the pooled text too.

    Source: stable-diffusion.cpp zero_out_masked; diffusers StableDiffusionXLPipeline, zero_out_negative_prompt.
    """
    hidden, pooled = dict(said.hidden), said.pooled["clip_g"]
    if said.negative and said.empty:
        hidden = {name: np.zeros_like(h) for name, h in hidden.items()}
        pooled = np.zeros_like(pooled) if said.like == "diffusers" else pooled
    sizes = [[*said.size, 0, 0, *said.size]]
    return conditioning.sdxl(said.network, hidden["clip"], hidden["clip_g"], pooled, sizes)


def refiner(said: Said) -> Conditioned:
    sizes = np.array([[*said.size, 0, 0, AESTHETIC[said.negative]]])
    hidden = said.hidden["clip_g"]
    blank = said.negative and said.empty and said.like == "sdcpp"
    return Conditioned(
        np.zeros_like(hidden) if blank else hidden, size_condition(said.network, said.pooled["clip_g"], sizes)
    )


def sd3(said: Said) -> Conditioned:
    """Without T5 there are zeros in its place, as many as it has tokens."""
    t5 = said.hidden.get("t5")
    if t5 is None:
        tokens = {"sdcpp": 77, "diffusers": 256}[said.like]
        width = said.network.shape("context_embedder.weight")[1]
        t5 = np.zeros((1, tokens, width), said.hidden["clip"].dtype)
    hidden, pooled = said.hidden, said.pooled
    return conditioning.sd3(hidden["clip"], hidden["clip_g"], pooled["clip"], pooled["clip_g"], t5)


def flux(said: Said) -> Conditioned:
    return conditioning.flux(said.hidden["t5"], said.pooled["clip"])


def chroma(said: Said) -> Conditioned:
    return conditioning.chroma(said.hidden["t5"], said.mask["t5"])


def zimage(said: Said) -> Conditioned:
    return conditioning.zimage(said.hidden["qwen3"], said.mask["qwen3"])


def flux2(said: Said) -> Conditioned:
    (hidden,) = said.hidden.values()
    return conditioning.flux2(hidden)
