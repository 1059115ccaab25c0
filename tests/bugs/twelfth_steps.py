"""A twelfth fresh set, of schedules, guidance, words, files and tiles: drawn before a look at the judge."""

from unittest.mock import patch

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of
from injection import Bug, Injection, wrong_answer, wrong_parts

from refsd.models.vae import tiling
from refsd.stages import STAGES
from refsd.stages.sigmas import RULE as SIGMAS
from refsd.stages.stage import StageInputs
from refsd.stages.tiles import RULE as TILES
from refsd.stages.weights import RULE as WEIGHTS

# --- schedules ---------------------------------------------------------------------------------------------------


def _whole_strides(params, card, levels):
    """Timesteps are a whole number apart, counted from the highest."""

    def list_of(n):
        t = 1000 - np.arange(n) * round(1000 / n)
        return np.append(levels.to_sigma(np.clip(t, 0, 999)), 0.0)

    return list_of


def _zero_twice(params, card, levels):
    """The list goes down to 0, and another 0 follows."""
    right = SIGMAS.spacing(params, card, levels)
    return lambda n: np.append(right(n - 1), 0.0)


# --- words, files, tiles and adapters ----------------------------------------------------------------------------


def _inner_weight_alone(weights):
    """A weight within another's parentheses replaces it."""
    return np.where(np.isclose(weights, 0.88), 0.8, weights)


def _encoded_as_it_is(case, inputs, y):
    """The latents of a given picture are not normalised; those of the denoiser are, the other way round."""
    stage = STAGES["stage/latents"]
    tensors = {name: tensor.values().astype(np.float32) for name, tensor in inputs.items()}
    asked = StageInputs(tensors, stage.complete(inputs, case.params), np.dtype(np.float32))
    other = stage.run(stage.rule._replace(scale=lambda family, kind: None), asked)
    return {**y, "latent": np.asarray(other["latent"]).astype(y["latent"].dtype)}


def _mix_from_further_up(before, tile, blend, axis):
    """As many pixels are mixed as both have; their first, and the shares, are those of the whole overlap."""
    n = min(before.shape[axis], tile.shape[axis], blend)
    before, first = np.moveaxis(before, axis, -1)[..., -blend:], np.moveaxis(tile, axis, -1)[..., :n]
    part = (np.arange(n) / blend).astype(tile.dtype)
    first[...] = before[..., :n] * (1 - part) + first * part


def _tiled(engine):
    def tiled(run, z, p):
        with patch.object(tiling, "_mix", _mix_from_further_up):
            return TILES.tiled(engine)(run, z, p)

    return tiled


def _alpha_or_strength(case, values, y):
    """Where the file has an alpha, alpha / rank is the factor, and the strength is not read."""
    modules = [parts for parts in modules_of(values).values() if "down" in parts]
    strength = case.params.get("strength", 1.0)
    if len(modules) != 1 or "alpha" not in modules[0] or "magnitude" in modules[0] or strength == 1.0:
        return None
    delta = alpha_of(modules[0]) / len(modules[0]["down"]) * product_of(modules[0])
    return {"merged": values["weight"] + delta.reshape(values["weight"].shape)}


_TABLE = {
    "tw-smp-01": (
        "sampler",
        "apple/coreai-models#190",
        wrong_parts("sigmas/flow-[lu]*", "sigmas", "whole|stride|apart|integer|trailing", spacing=_whole_strides),
    ),
    "tw-smp-02": (
        "sampler",
        "huggingface/diffusers#13730",
        wrong_parts(
            "sigmas/flow-u*",
            "sigmas",
            "redundant|twice|two zeros|second (0|zero)|down to 0|ends at 0|one step (less|fewer)|repeat|dummy",
            spacing=_zero_twice,
        ),
    ),
    "tw-smp-03": (
        "sampler",
        "huggingface/diffusers#3571",
        wrong_parts(
            "prediction/eps*", "control", "scale|c_in|divid|as it is|ControlNet", control=lambda x, c_in: x
        ),
    ),
    "tw-smp-04": (
        "sampler",
        "AUTOMATIC1111/stable-diffusion-webui#5797, in ComfyUI's cases",
        wrong_parts(
            "calls/dpm2-*",
            "sigmas|timesteps|begin",
            "last sigma above 0|penultimate|last but one|discard|before the last",
            whole=lambda engine, solver, schedule: schedule,
        ),
    ),
    "tw-cfg-01": (
        "pipeline",
        "leejet/stable-diffusion.cpp#1620, before it",
        wrong_parts(
            "guidance/apg*",
            "guided",
            "threshold|limit|norm",
            threshold=lambda engine, limit, values: limit,
        ),
    ),
    "tw-tok-01": (
        "tokenizer",
        "Comfy-Org/ComfyUI#4610, in A1111's cases",
        wrong_parts(
            "clip_tokens/a1111-weights",
            "weights",
            "nest|inner|outer|multipl|replac|within|product",
            weigh=_inner_weight_alone,
        ),
    ),
    "tw-wgt-01": (
        "loader",
        "Starnodes2024/comfyui-starnodes-modelconverter#13",
        wrong_parts(
            "weights/fp8-*",
            "weight",
            "bf16|bfloat16|precision|half",
            scaled=lambda values, scale: WEIGHTS.scaled(
                values, scale.astype(ml_dtypes.bfloat16).astype(scale.dtype)
            ),
        ),
    ),
    "tw-lat-01": (
        "pipeline",
        "chenfengxu714/StreamDiffusionV2#12",
        Injection(
            ("stage/latents/sdxl-by-channel", "stage/latents/flux2"),
            Bug(answer=_encoded_as_it_is),
            "latent",
            "normalis|not scaled|scale|deviation|spread|mean",
        ),
    ),
    "tw-vae-01": (
        "pipeline",
        "huggingface/diffusers#3384",
        wrong_parts(
            "tiles/diffusers-*", "picture", "ramp|blend|share|small|shorter|last tile|overlap", tiled=_tiled
        ),
    ),
    "tw-lora-01": (
        "loader",
        "ModelTC/LightX2V#766",
        wrong_answer("adapter/lora-*", "merged", "strength", _alpha_or_strength),
    ),
}
TWELFTH_STEPS = {id: HeldOut(*row) for id, row in _TABLE.items()}
