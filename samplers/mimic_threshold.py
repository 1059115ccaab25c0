"""Dynamic thresholding of latents: reduce strong guidance to the range of weak ("mimicked") guidance."""

import math
from collections.abc import Callable

import numpy as np

# name -> (share of the steps done, 0 .. 1; the curve's parameter) -> factor of the scale
CURVES: dict[str, Callable[[float, float], float]] = {
    "Constant": lambda t, value: 1.0,
    "Linear Down": lambda t, value: 1 - t,
    "Cosine Down": lambda t, value: math.cos(t * 1.5707),
    "Half Cosine Down": lambda t, value: math.cos(t),
    "Linear Up": lambda t, value: t,
    "Cosine Up": lambda t, value: 1 - math.cos(t * 1.5707),
    "Half Cosine Up": lambda t, value: 1 - math.cos(t),
    "Power Up": lambda t, value: t**value,
    "Power Down": lambda t, value: 1 - t**value,
    "Linear Repeating": lambda t, value: abs(0.5 - t * value % 1) * 2,
    "Cosine Repeating": lambda t, value: math.cos(t * 6.28318 * value) * 0.5 + 0.5,
    "Sawtooth": lambda t, value: t * value % 1,
}


def scale_at(scale: float, lowest: float, curve: str, step: int, steps: int, value: float = 4.0) -> float:
    """Compute a step's scale: lowest + (scale - lowest) curve(step / (steps - 1)).

    Source: interpret_scale, whose pi is 3.1414.
    """
    return lowest + (scale - lowest) * CURVES[curve](step / (steps - 1), value)


def mimic_threshold(
    cond: np.ndarray,
    uncond: np.ndarray,
    scale: float,
    mimic_scale: float,
    percentile: float = 1.0,
    by_channel: bool = True,
    from_zero: bool = False,
    phi: float = 1.0,
) -> np.ndarray:
    """Guide by `scale`, then clip and shrink the result to the range of guidance by `mimic_scale`.

        g = guided - mean,  m = mimic - mean_m;  r = max |m|,  q = quantile of |g|,  top = max(r, q)
        mean + clip(g, -top, top) r / top;  from_zero: guided r / q

    cond, uncond: [N, C, H, W], denoised; means are each channel's
    by_channel:   True: r and q are each channel's; False: the whole batch's
    phi:          weight of the result; the plain guidance has 1 - phi
    Source: mcmonkeyprojects/sd-dynamic-thresholding dynthres_core.py, variability "AD".
    """
    guided, mimic = (uncond + s * (cond - uncond) for s in (scale, mimic_scale))
    mean, centered, mimicked = _centered(guided, mimic)
    axes = (2, 3) if by_channel else (0, 1, 2, 3)
    r = np.abs(mimicked).max(axis=axes, keepdims=True)
    q = np.quantile(np.abs(centered), percentile, axis=axes, keepdims=True)
    top = np.maximum(r, q)
    y = guided * (r / q) if from_zero else np.clip(centered, -top, top) * (r / top) + mean
    return (phi * y + (1 - phi) * guided).astype(cond.dtype)


def mimic_deviation(
    cond: np.ndarray,
    uncond: np.ndarray,
    scale: float,
    mimic_scale: float,
    by_channel: bool = True,
    from_zero: bool = False,
    phi: float = 1.0,
) -> np.ndarray:
    """Guide by `scale`, then match the standard deviation (n - 1) without clipping: mean + g std(m) / std(g).

    Arguments and source: as in mimic_threshold, variability "STD".
    """
    guided, mimic = (uncond + s * (cond - uncond) for s in (scale, mimic_scale))
    mean, centered, mimicked = _centered(guided, mimic)
    axes = (2, 3) if by_channel else (0, 1, 2, 3)
    ratio = mimicked.std(axis=axes, ddof=1, keepdims=True) / centered.std(axis=axes, ddof=1, keepdims=True)
    y = guided * ratio if from_zero else centered * ratio + mean
    return (phi * y + (1 - phi) * guided).astype(cond.dtype)


def _centered(guided: np.ndarray, mimic: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean = guided.mean(axis=(2, 3), keepdims=True)
    return mean, guided - mean, mimic - mimic.mean(axis=(2, 3), keepdims=True)
