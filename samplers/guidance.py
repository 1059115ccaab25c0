"""Guidance: combine predictions under different conditions into one.

Unless a docstring says otherwise, the functions are linear in the predictions, and so apply to denoised, noise and
velocity alike.
"""

import numpy as np


def guide(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    """Classifier-free guidance: uncond + scale * (cond - uncond).

    Scale 1 gives cond. The paper's w is scale - 1, and so is Z-Image's guidance g: pos + g (pos - neg).
    Source: Ho & Salimans 2022, eq. 6.
    """
    return uncond + scale * (cond - uncond)


def guide_image(cond: np.ndarray, image: np.ndarray, uncond: np.ndarray, scale: float, image_scale: float):
    """Guide by text and by image separately: uncond + image_scale (image - uncond) + scale (cond - image).

    cond: text and image; image: the image alone; uncond: neither
    Source: Brooks et al. 2023 (InstructPix2Pix), eq. 3.
    """
    return uncond + image_scale * (image - uncond) + scale * (cond - image)


def rescale(guided: np.ndarray, cond: np.ndarray, phi: float) -> np.ndarray:
    """Rescale each picture towards the standard deviation of cond, which guidance changes.

        guided (phi std(cond) / std(guided) + 1 - phi)

    guided, cond: [N, ...], noise or velocity; standard deviations are each picture's, with n - 1
    Source: Lin et al. 2023, eq. 15 and 16; diffusers rescale_noise_cfg.
    """
    axes = tuple(range(1, cond.ndim))
    ratio = cond.std(axis=axes, ddof=1, keepdims=True) / guided.std(axis=axes, ddof=1, keepdims=True)
    return guided * (phi * ratio + (1 - phi))


def rescale_tokens(guided: np.ndarray, cond: np.ndarray, patch: int = 2) -> np.ndarray:
    """Rescale each token to the length of cond's: guided ||cond|| / ||guided||, Qwen-Image's true CFG.

    guided, cond: [N, C, H, W], velocities; a token is a patch x patch square of all channels
    Source: QwenLM/Qwen-Image; diffusers QwenImagePipeline.__call__.
    """
    return guided * (_token_norms(cond, patch) / _token_norms(guided, patch))


def rescale_rows(guided: np.ndarray, cond: np.ndarray) -> np.ndarray:
    """Rescale each row of each channel to the length of cond's: guided ||cond|| / ||guided||, Lumina 2's default.

    guided, cond: [N, C, H, W], velocities; norms over W alone, as the pipeline takes them
    Source: diffusers Lumina2Pipeline.__call__, cfg_normalization.
    """
    lengths = (np.sqrt((x**2).sum(axis=-1, keepdims=True)) for x in (cond, guided))
    return guided * np.divide(*lengths)


def _token_norms(x: np.ndarray, patch: int) -> np.ndarray:
    """[N, C, H, W] -> [N, 1, H, W], each token's norm on all of its positions"""
    N, _, H, W = x.shape
    squares = (x**2).sum(axis=1).reshape(N, H // patch, patch, W // patch, patch).sum(axis=(2, 4))
    return np.sqrt(squares.repeat(patch, axis=1).repeat(patch, axis=2))[:, None]


def project(v: np.ndarray, onto: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split v into its parts parallel and orthogonal to `onto`, picture by picture. -> two [N, ...], float64"""
    axes = tuple(range(1, v.ndim))
    v, onto = v.astype(np.float64), onto.astype(np.float64)
    unit = onto / np.maximum(np.sqrt((onto**2).sum(axis=axes, keepdims=True)), 1e-12)
    along = (v * unit).sum(axis=axes, keepdims=True) * unit
    return along, v - along


def projected_difference(
    cond: np.ndarray,
    uncond: np.ndarray,
    eta: float = 0.0,
    norm_threshold: float = 0.0,
    momentum: float = 0.0,
    average: np.ndarray | None = None,
    smoothing: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute APG's difference: the part of cond - uncond parallel to cond, which oversaturates, gets weight eta.

        average <- cond - uncond + momentum * average;  its norm is limited to norm_threshold (0: no limit)
        across + eta along

    cond, uncond: [N, ...], denoised
    average:      average of the previous step; None in the first
    smoothing:    0 limits the norm by the factor min(1, q), q = norm_threshold / norm; s > 0 by q / (1 + q^(1/s))^s
    -> across + eta along, and the average for the next step
    Source: Sadat et al. 2024 (Eliminating oversaturation), algorithm 1; stable-diffusion.cpp guidance.cpp.
    """
    difference = cond - uncond
    if average is not None and momentum:
        difference = difference + momentum * average
    average = difference
    if norm_threshold > 0:
        axes = tuple(range(1, cond.ndim))
        norm = np.sqrt((difference.astype(np.float64) ** 2).sum(axis=axes, keepdims=True))
        q = norm_threshold / norm
        held = np.minimum(1.0, q) if smoothing <= 0 else q / (1 + q ** (1 / smoothing)) ** smoothing
        difference = difference * held
    along, across = project(difference, cond)
    return (across + eta * along).astype(cond.dtype), average


def adaptive_projected(
    cond: np.ndarray,
    uncond: np.ndarray,
    scale: float,
    eta: float = 0.0,
    norm_threshold: float = 0.0,
    momentum: float = 0.0,
    average: np.ndarray | None = None,
    smoothing: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Guide by APG: cond + (scale - 1) projected_difference, as in the paper. -> guided, average for the next step

    stable-diffusion.cpp does the same. ComfyUI computes cond + scale projected_difference, which is not cond at
    scale 1; diffusers uncond + scale ..., or cond + scale ... with use_original_formulation.
    Arguments: as in projected_difference.
    """
    settings = (eta, norm_threshold, momentum, average, smoothing)
    difference, average = projected_difference(cond, uncond, *settings)
    return cond + (scale - 1) * difference, average


def sdcpp_norm_threshold(threshold: float, values: int) -> float:
    """Convert stable-diffusion.cpp's apg_norm_threshold to that of projected_difference.

    values: number of values in the latent. stable-diffusion.cpp scales norms to those of SDXL's latent at 1024
            pixels: * 256 / sqrt(values).
    """
    return threshold * np.sqrt(values) / 256


def skip_layer(guided: np.ndarray, cond: np.ndarray, skipped: np.ndarray, scale: float) -> np.ndarray:
    """Skip-layer guidance: guided + scale * (cond - skipped); skipped is predicted without some of the layers.

    Source: Stability-AI/sd3.5 sd3_impls.py, SkipLayerCFGDenoiser.
    """
    return guided + scale * (cond - skipped)


def dynamic_threshold(denoised: np.ndarray, percentile: float = 0.995, maximum: float = 1.0) -> np.ndarray:
    """Clip each picture at a percentile of its magnitudes and divide by it, so that pixels stay within -1 .. 1.

    percentile: 0 .. 1; the threshold is limited to 1 .. `maximum`
    Source: Saharia et al. 2022 (Imagen), section 2.3; diffusers DDIMScheduler._threshold_sample.
    """
    flat = np.abs(denoised.reshape(len(denoised), -1))
    s = np.clip(np.quantile(flat, percentile, axis=1), 1.0, maximum)
    s = s.astype(denoised.dtype).reshape(-1, *(1,) * (denoised.ndim - 1))
    return np.clip(denoised, -s, s) / s
