"""An eighth fresh set, of samplers, schedules, guidance, tiles and adapters: drawn before a look at the judge."""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of, strength_of
from injection import wrong_answer, wrong_parts
from sixth_steps import _of_trajectory

from refsd.samplers.ancestral import ancestral_step
from refsd.stages.sigmas import RULE as SIGMAS

# --- samplers and schedules --------------------------------------------------------------------------------------


def _all_noise_of_now(kept, before):
    """Each step draws eta^2 (1 - abar) anew, whatever the level that it goes to."""
    return 1 - kept


def _exploding_cfg_pp(model, x, sigmas, draws, case):
    """CFG++ of a flow by the formulas of sigmas that add noise: uncond has the signal's weight 1."""
    for sigma, to in itertools.pairwise(sigmas):
        denoised, uncond = model(x, float(sigma))
        x = denoised + (x - uncond) / x.dtype.type(sigma) * x.dtype.type(to)
    return x


def _overwritten_uncond(model, x, sigmas, draws, case):
    """The second evaluation leaves its uncond where the first one's is read after it."""
    for sigma, to in itertools.pairwise(sigmas):
        denoised, uncond = model(x, float(sigma))
        down, up, _ = ancestral_step(float(sigma), float(to), case.params.get("eta", 1.0))
        if down == 0:
            x = denoised
        else:
            middle = math.sqrt(sigma * down)
            ratio = x.dtype.type(middle / sigma)
            _, later = model(ratio * x + (1 - ratio) * uncond, middle)
            ratio = x.dtype.type(down / sigma)
            x = ratio * x + (1 - ratio) * later + (denoised - later)
        if to > 0:
            x = x + next(draws) * x.dtype.type(up)
    return x


def _one_mu(levels, tokens, steps):
    return 2.02 if levels == "flux2" else SIGMAS.mu(levels, tokens, steps)


def _times_before_the_shift(levels, sigma):
    """The network is told 1000 times what sigma was before the shift."""
    return 1000 * sigma / (levels.shift + (1 - levels.shift) * sigma)


# --- guidance, tiles, masks, latents -----------------------------------------------------------------------------


def _second_half_alone(case, values, y):
    """The second network's scale was not given, and its default is 1."""
    scales = y["scales"].copy()
    scales[len(scales) // 2 :] = 1
    return {"scales": scales}


def _longer_ramps(engine):
    """Tiles are mixed over `up` times as many pixels as they share: what is kept of a tile is as before."""

    def tiled(run, z, p):
        size, up = p["size"][0], p["up"]
        shared = int(size * up * p["overlap"])
        step, blend = int(size * (1 - p["overlap"])), shared * up
        rows, columns = (range(0, n, step) for n in z.shape[2:])
        tiles = [[run(z[:, :, i : i + size, j : j + size]).copy() for j in columns] for i in rows]
        for i, j in itertools.product(range(len(tiles)), range(len(tiles[0]))):
            for before, axis in ((tiles[i - 1][j] if i else None, 2), (tiles[i][j - 1] if j else None, 3)):
                if before is not None:
                    n = min(before.shape[axis], tiles[i][j].shape[axis], blend)
                    new, old = np.moveaxis(tiles[i][j], axis, -1)[..., :n], np.moveaxis(before, axis, -1)[..., -n:]
                    share = (np.arange(n) / n).astype(z.dtype)
                    new[...] = old * (1 - share) + new * share
        kept = size * up - shared
        return np.concatenate(
            [np.concatenate([t[:, :, :kept, :kept] for t in row], axis=3) for row in tiles], axis=2
        )

    return tiled


def _not_normalised(y, count):
    """The picture's latent is as the encoder gives it, the step's normalised by the batch norm."""
    channels = np.linspace(-0.1, 0.15, y.shape[1], dtype=y.dtype)[:, None, None]
    return (1.77 * y + channels)[np.arange(count) % len(y)]


def _still_normalised(case, values, y):
    """The decoder is shown the latent without the deviations and means of the batch norm."""
    latent = values["latent"]
    N, C, H, W = latent.shape
    squares = latent.reshape(N, C // 4, 2, 2, H, W).transpose(0, 1, 4, 2, 5, 3)
    return {"shown_latent": squares.reshape(N, C // 4, 2 * H, 2 * W)}


def _padding_is_zero(encoders):
    """Hidden states behind the text are set to zero."""
    return {name: one._replace(hidden=one.hidden * one.mask[..., None]) for name, one in encoders.items()}


# --- adapters ----------------------------------------------------------------------------------------------------


def _not_by_the_rank(case, values, y):
    """alpha times the product."""
    parts = next(iter(modules_of(values).values()))
    if "down" not in parts or "magnitude" in parts or "alpha" not in parts:
        return None
    return {"merged": values["weight"] + strength_of(case.params) * alpha_of(parts) * product_of(parts)}


def _without_magnitudes(case, values, y):
    """DoRA's vector is not read: a plain LoRA."""
    parts = next(iter(modules_of(values).values()))
    factor = strength_of(case.params) * alpha_of(parts) / len(parts["down"])
    return {"merged": values["weight"] + factor * product_of(parts)}


_TABLE = {
    "b-smp-01": (
        "sampler",
        "jsboige/CoursIA#16158",
        wrong_parts("steps/*", "deviation", r"1 - (kept|abar)|of the step|all noise", least=_all_noise_of_now),
    ),
    "b-smp-02": (
        "sampler",
        "Haoming02/sd-webui-forge-classic#1381, in euler_cfg_pp",
        _of_trajectory(
            "flow/euler_cfg_pp/simple",
            r"1 - sigma|alpha|weight 1|not the flow",
            _exploding_cfg_pp,
        ),
    ),
    "b-smp-03": (
        "sampler",
        "Comfy-Org/ComfyUI#14814",
        _of_trajectory("dpmpp2s_a_cfg_pp/karras", r"uncond", _overwritten_uncond),
    ),
    # The sigmas of one step, stretched to a terminal, are NaN. No case has one step and a terminal.
    "b-smp-04": ("sampler", "sgl-project/sglang#24708", None),
    "b-smp-05": (
        "sampler",
        "invoke-ai/InvokeAI#8838, of mu",
        wrong_parts("sigmas/flux2-*", "sigmas", r"mu\b|shift|2\.02", mu=_one_mu),
    ),
    "b-smp-06": (
        "sampler",
        "huggingface/diffusers#14036",
        wrong_parts("sigmas/flow-*", "timesteps", "shift", to_t=_times_before_the_shift),
    ),
    "b-cfg-01": (
        "pipeline",
        "huggingface/diffusers#13183",
        wrong_parts("guidance/zimage*", "guided", r"cond\b|1 or less|above 1|guidance", on=lambda scale: scale > 1),
    ),
    "b-cfg-02": (
        "pipeline",
        "vllm-project/vllm-omni#5615",
        wrong_answer("guidance_scales/linear-*", "scales", r"\b1\b|last|half|later", _second_half_alone),
    ),
    "b-tile-01": (
        "pipeline",
        "hao-ai-lab/FastVideo#1181, of a decoder",
        wrong_parts("tiles/diffusers-*", "picture", "mix|ramp|blend|overlap", tiled=_longer_ramps),
    ),
    "b-inp-01": (
        "pipeline",
        "invoke-ai/InvokeAI#8868",
        wrong_parts(
            "masked_step/diffusers-*", "left|latent", "scaled|factor|times|normal|latent", pictures=_not_normalised
        ),
    ),
    "b-vae-01": (
        "model",
        "invoke-ai/InvokeAI#8838, of the decoder's input",
        wrong_answer("latents/flux2", "shown_latent", "normal|mean|scale|as it is|statistics", _still_normalised),
    ),
    # No case joins UMT5's hidden states, which Wan has zero behind the text.
    "b-te-01": ("model", "starVLA/starVLA#433", None),
    "b-te-03": (
        "model",
        "NVIDIA/TensorRT-Model-Connect#801, of padded rows, in Chroma",
        wrong_parts("conditioning/chroma", "context", "zero|padding|mask", encoders=_padding_is_zero),
    ),
    "b-lora-01": (
        "loader",
        "Blaizzy/mlx-vlm#986",
        wrong_answer("adapter/lora-kohya", "merged", "by the rank", _not_by_the_rank),
    ),
    "b-lora-02": (
        "loader",
        "Nerogar/OneTrainer#1666",
        wrong_answer("adapter/dora*", "merged", "magnitude|dora|DoRA|plain", _without_magnitudes),
    ),
}
EIGHTH_STEPS = {id: HeldOut(*row) for id, row in _TABLE.items()}
