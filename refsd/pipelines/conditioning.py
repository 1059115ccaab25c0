"""What the text encoders say, joined as each family's network takes it: `context`, `y`, `context_mask`.

Lengths, padding and words around the prompt are text_rules.py's. Inputs are what `refsd forward` gives.
"""

from typing import NamedTuple

import numpy as np

from refsd.golden.errors import BadInput
from refsd.models.unet import size_condition
from refsd.module import Module

WITHOUT_T5 = 256, 4096  # tokens and channels of zeros that SD3 has in its place


class Conditioned(NamedTuple):
    """
    context: [N, J, E]
    y:       [N, V], or None
    mask:    [N, J], 0 where the network does not look; None: it looks everywhere
    """

    context: np.ndarray
    y: np.ndarray | None = None
    mask: np.ndarray | None = None


def sdxl(m: Module, penultimate_l, penultimate_g, pooled_g, sizes) -> Conditioned:
    """CLIP-L's and bigG's last layers but one side by side; y: bigG's pooled text and the sizes.

    m:     the UNet's
    sizes: [N, 6], see `size_condition`
    Source: Podell et al. 2023, section 2; diffusers StableDiffusionXLPipeline.encode_prompt.
    """
    return Conditioned(beside(penultimate_l, penultimate_g), size_condition(m, pooled_g, np.asarray(sizes)))


def sd3(penultimate_l, penultimate_g, pooled_l, pooled_g, t5=None) -> Conditioned:
    """CLIP-L and bigG side by side, widened by zeros to T5's channels, and T5 behind them along the tokens.

    pooled_l: [N, 768]; diffusers' is projected by CLIP-L's text_projection, stable-diffusion.cpp's is not
    t5:       [N, L, 4096]; None: 256 tokens of zeros, as diffusers does without the encoder
    Source: Esser et al. 2024, section B.3; diffusers StableDiffusion3Pipeline.encode_prompt.
    """
    clip = beside(penultimate_l, penultimate_g)
    if t5 is None:
        t5 = np.zeros((len(clip), *WITHOUT_T5), clip.dtype)
    if t5.shape[2] < clip.shape[2] or len(t5) != len(clip):
        raise BadInput(f"T5's hidden states are {list(t5.shape)}, CLIP's {list(clip.shape)}: they do not fit")
    clip = np.pad(clip, ((0, 0), (0, 0), (0, t5.shape[2] - clip.shape[2])))
    return Conditioned(np.concatenate([clip, t5], axis=1), beside(pooled_l, pooled_g))


def flux(t5, pooled_l) -> Conditioned:
    """T5's hidden states, padding too, and CLIP-L's pooled text. Source: diffusers FluxPipeline.encode_prompt."""
    return Conditioned(t5, pooled_l)


def chroma(t5, attention_mask, pads: int = 1) -> Conditioned:
    """T5's hidden states; of the padding the network sees the first `pads` tokens.

    attention_mask: [N, J], ones, then zeros: what the tokenizer padded, whether T5 was told or not
    Source: diffusers ChromaPipeline._get_t5_prompt_embeds; stable-diffusion.cpp modify_mask_to_attend_padding.
    """
    lengths = np.asarray(attention_mask).sum(axis=1, keepdims=True)
    return Conditioned(t5, mask=(np.arange(t5.shape[1]) < lengths + pads).astype(np.int64))


def zimage(penultimate, attention_mask) -> Conditioned:
    """Qwen3's last layer but one without the padding, the longest prompt's tokens wide; zeros behind the others.

    Source: diffusers ZImagePipeline._encode_prompt, which has a list of arrays.
    """
    seen = [row[mask != 0] for row, mask in zip(penultimate, np.asarray(attention_mask), strict=True)]
    context = np.zeros((len(seen), max(map(len, seen)), penultimate.shape[2]), penultimate.dtype)
    mask = np.zeros(context.shape[:2], np.int64)
    for i, row in enumerate(seen):
        context[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return Conditioned(context, mask=mask)


def flux2(context, length: int = 512) -> Conditioned:
    """Three layers' hidden states side by side (`stacked`); zeros behind them where the ids were not padded.

    Source: diffusers Flux2Pipeline, Flux2KleinPipeline; stable-diffusion.cpp hidden_states_min_length.
    """
    return Conditioned(np.pad(context, ((0, 0), (0, max(0, length - context.shape[1])), (0, 0))))


def beside(one, other) -> np.ndarray:
    """Along the last axis. Raises BadInput where the others differ."""
    if one.shape[:-1] != other.shape[:-1]:
        raise BadInput(f"hidden states of {list(one.shape)} and {list(other.shape)} do not stand side by side")
    return np.concatenate([one, other], axis=-1)
