"""Apply tokens' weights to their hidden states: hidden [77, E] of one chunk, weights [77] -> [77, E]."""

import numpy as np


def multiplied(hidden: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return hidden * weight. Source: A1111 modules/sd_emphasis.py, "No norm"."""
    return hidden * weights[:, None].astype(hidden.dtype)


def mean_kept(hidden: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return hidden * weight, rescaled so that the mean over the whole chunk is that of `hidden`.

    If the mean of hidden * weight is 0, do not rescale (A1111 would divide by it).
    Source: A1111 modules/sd_emphasis.py, "Original"; stable-diffusion.cpp apply_token_weights.
    """
    y = multiplied(hidden, weights)
    before, after = hidden.mean(dtype=np.float64), y.mean(dtype=np.float64)
    return (y * float(before / after)).astype(hidden.dtype) if after else y


def from_the_empty_prompt(hidden: np.ndarray, weights: np.ndarray, empty: np.ndarray) -> np.ndarray:
    """Return empty + weight (hidden - empty).

    empty: hidden states of an empty prompt, [77, E]
    Source: ComfyUI comfy/sd1_clip.py, ClipTokenWeightEncoder.
    """
    return empty + weights[:, None].astype(hidden.dtype) * (hidden - empty)
