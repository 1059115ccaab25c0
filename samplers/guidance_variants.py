"""Variants of guidance, and guidance in other parameterisations. All arrays are [N, ...]; see guidance.py."""

import numpy as np

from refsd.samplers.guidance import guide, rescale


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the inner product a . b of each picture, in float64. -> [N, 1, ...]"""
    axes = tuple(range(1, a.ndim))
    return (a.astype(np.float64) * b).sum(axis=axes, keepdims=True)


def zero_star(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    """Guide by CFG-Zero*: scale uncond to be as near as possible to cond.

        s uncond + scale (cond - s uncond),  s = cond . uncond / (|uncond|^2 + 1e-8)

    cond, uncond: velocities. The caller must do CFG-Zero*'s zero-init (velocity 0 in the first steps).
    Source: Fan et al. 2025 (CFG-Zero*), eq. 8; diffusers ClassifierFreeZeroStarGuidance.
    """
    near = (_dot(cond, uncond) / (_dot(uncond, uncond) + 1e-8) * uncond).astype(cond.dtype)
    return near + scale * (cond - near)


def zero_star_denoised(x: np.ndarray, cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    """Guide by ComfyUI's CFG-Zero*: compute s from x - denoised, but scale uncond's denoised by it.

    x: the latents; cond, uncond: denoised
    Source: ComfyUI comfy_extras/nodes_cfg.py, CFGZeroStar.
    """
    a, b = x - cond, x - uncond
    s = _dot(a, b) / (_dot(b, b) + 1e-8)
    return (cond * scale + uncond * (s * (1 - scale))).astype(cond.dtype)


def perpendicular_negative(
    cond: np.ndarray, negative: np.ndarray, empty: np.ndarray, scale: float, negative_scale: float = 1.0
) -> np.ndarray:
    """Guide by Perp-Neg: use only the part of the negative prompt that is orthogonal to the prompt.

        empty + scale (p - negative_scale (n - (n . p / |p|^2) p)),  p = cond - empty,  n = negative - empty

    empty: prediction for an empty prompt. ComfyUI computes n . p and |p|^2 over the whole batch, which is the same
           for a single picture.
    Source: Armandpour et al. 2023 (Perp-Neg), eq. 8; ComfyUI comfy_extras/nodes_perpneg.py.
    """
    p, n = cond - empty, negative - empty
    across = n - (_dot(n, p) / _dot(p, p)) * p
    return (empty + scale * (p - negative_scale * across)).astype(cond.dtype)


def tangential(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    """Guide by TCFG: first project uncond on the direction that it and cond have most in common.

        u <- (u . v) v,  v the first right singular vector of [cond; uncond];  u + scale (cond - u)

    Source: Kwon et al. 2025 (TCFG), algorithm 1; diffusers TangentialClassifierFreeGuidance.
    """
    flat = [a.reshape(len(a), -1).astype(np.float64) for a in (cond, uncond)]
    v = np.linalg.svd(np.stack(flat, axis=1), full_matrices=False)[2][:, 0]
    near = ((flat[1] * v).sum(axis=1, keepdims=True) * v).reshape(cond.shape).astype(cond.dtype)
    return near + scale * (cond - near)


def nested(cond: np.ndarray, middle: np.ndarray, uncond: np.ndarray, scale: float, outer: float) -> np.ndarray:
    """Guide twice: from `middle` to cond by `scale`, then from uncond to that result by `outer`.

        uncond + outer (middle + scale (cond - middle) - uncond)

    Source: ComfyUI DualCFGGuider, style "nested"; its "regular" is guide_image.
    """
    return uncond + outer * (middle + scale * (cond - middle) - uncond)


def rescale_in_v(x: np.ndarray, sigma: float, cond: np.ndarray, uncond: np.ndarray, scale: float, phi: float):
    """Guide and rescale the velocities that correspond to denoised at x = data + sigma noise.

        v = (x / (sigma^2 + 1) - denoised) sqrt(sigma^2 + 1) / sigma

    cond, uncond: denoised -> denoised
    Source: Lin et al. 2023, section 3.4; ComfyUI RescaleCFG. Its branch for flows rescales denoised itself.
    """
    root = np.sqrt(sigma**2 + 1)
    v_cond, v_uncond = ((x / root**2 - denoised) * (root / sigma) for denoised in (cond, uncond))
    return x / root**2 - rescale(guide(v_cond, v_uncond, scale), v_cond, phi) * (sigma / root)


def hold_lengths(guided: np.ndarray, cond: np.ndarray, strength: float = 1.0) -> np.ndarray:
    """Shorten each pixel's channels to the length of cond's, where guidance made them longer: ComfyUI's CFGNorm.

        strength guided min(1, |cond| / (|guided| + 1e-8))

    guided, cond: [N, C, ...], denoised; lengths are over C. strength multiplies what is not shortened, too.
    Source: ComfyUI comfy_extras/nodes_cfg.py, CFGNorm.
    """
    return guided * (np.minimum(1.0, _length(cond) / (_length(guided) + 1e-8)) * strength).astype(guided.dtype)


def match_lengths(guided: np.ndarray, cond: np.ndarray, phi: float = 1.0) -> np.ndarray:
    """Bring each pixel's channels to the length of cond's, shorter ones too: ComfyUI's CFGNorm with pre_cfg.

        guided (phi |cond| / |guided| + 1 - phi);  where guided is 0 it stays 0

    guided, cond: [N, C, ...], noise or velocity; lengths are over C
    Source: ComfyUI comfy_extras/nodes_cfg.py, CFGNorm.
    """
    return guided * (phi * (_length(cond) / np.maximum(_length(guided), 1e-12)) + 1 - phi).astype(guided.dtype)


def _length(x: np.ndarray) -> np.ndarray:
    """[N, C, ...] -> [N, 1, ...], the length of each pixel's channels, in float64"""
    return np.sqrt((x.astype(np.float64) ** 2).sum(axis=1, keepdims=True))


def scale_schedule(text: str) -> list[float]:
    """Parse stable-diffusion.cpp's guidance_schedule: "7.5x10+1x5" means ten steps at scale 7.5 and five at 1.

    Raises ValueError if a piece is not a number, "x", and a count of at least 1.
    """
    scales = []
    for piece in text.split("+"):
        scale, x, count = piece.partition("x")
        try:
            scales += [float(scale)] * int(count)
        except ValueError:
            raise ValueError(f"expected SCALExSTEPS between the +, found {piece!r}") from None
        if not x or int(count) < 1:
            raise ValueError(f"expected one step or more, found {piece!r}")
    return scales
