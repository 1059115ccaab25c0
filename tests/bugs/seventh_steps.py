"""A seventh fresh set, of guidance, schedules, samplers, caches and adapters: drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injected_files import modules_of, product_of, strength_of
from injection import Bug, Injection, wrong_answer, wrong_parts

from refsd.caches import CACHES
from refsd.caches.magcache import MagCache
from refsd.caches.teacache import TeaCache
from refsd.samplers.schedules.flow import flux_mu
from refsd.stages.sigmas import RULE as SIGMAS

# --- guidance, schedules, samplers -------------------------------------------------------------------------------


def _std_of_the_batch(guided, cond, phi):
    return guided * (phi * cond.std() / guided.std() + 1 - phi)


def _norm_along_the_width(guided, cond):
    """Norms along the last axis, which in a latent that is not packed is the width."""
    return guided * np.linalg.norm(cond, axis=-1, keepdims=True) / np.linalg.norm(guided, axis=-1, keepdims=True)


def _another_shift(levels, tokens, steps):
    return flux_mu(tokens, max_shift=1.16) if levels == "flux" else SIGMAS.mu(levels, tokens, steps)


def _logarithm_of_zero(case, inputs, y):
    """The last step is one of second order to sigma 0, through log 0."""
    return {**y, "latent": np.full_like(y["latent"], np.nan)}


# --- caches ------------------------------------------------------------------------------------------------------


class _Fading(TeaCache):
    """What was added up fades at each reused step."""

    def reuse(self, call):
        y = super().reuse(call)
        if y is not None:
            self.error[call.condition] *= 0.95
        return y


class _AtEveryBlock(MagCache):
    """A reused step adds the residual of all blocks at each of 57 blocks."""

    def reuse(self, call):
        y = super().reuse(call)
        return None if y is None else call.start + 57 * self.residuals[call.condition]


# --- adapters ----------------------------------------------------------------------------------------------------


def _one_for_no_alpha(case, values, y):
    """A file without alpha is stored with alpha 1."""
    parts = next(iter(modules_of(values).values()))
    if {"alpha", "magnitude"} & parts.keys() or "down" not in parts or len(parts["up"]) != len(values["weight"]):
        return None
    return {"merged": values["weight"] + strength_of(case.params) / len(parts["down"]) * product_of(parts)}


def _magnitudes_along_the_columns(case, values, y):
    """A vector of one axis over lengths of a column, [N] / [N, 1], is a square: magnitudes of the inputs."""
    parts = next(iter(modules_of(values).values()))
    if parts["magnitude"].ndim > 1 or len(set(values["weight"].shape)) > 1:
        return None
    merged = values["weight"] + product_of(parts)
    return {"merged": merged * (parts["magnitude"] / np.linalg.norm(merged, axis=1, keepdims=True))}


_TABLE = {
    "a-cfg-01": (
        "sampler",
        "Max-We/sf-zero-signal-to-noise#1",
        wrong_parts("guidance/rescale", "guided", "whole batch|over the batch", rescaled=_std_of_the_batch),
    ),
    "a-cfg-02": (
        "sampler",
        "verl-project/verl-omni#76, review, in Qwen-Image's form",
        wrong_parts("guidance/qwen-image", "guided", "row by row|width|last axis", tokens=_norm_along_the_width),
    ),
    "a-sig-01": (
        "sampler",
        "huggingface/diffusers#10675",
        wrong_parts("sigmas/flux-*", "sigmas", r"1\.16|shift|mu\b", mu=_another_shift),
    ),
    "a-smp-01": (
        "sampler",
        "huggingface/diffusers#9104",
        Injection(
            ("trajectory/dpmpp3s/karras",),
            Bug(answer=_logarithm_of_zero),
            "latent|last|step",
            "(last|final|end|latent).*(NaN|nan|not finite|log)|sigma.* 0|log",
        ),
    ),
    "a-cch-01": (
        "pipeline",
        "NVIDIA/TensorRT-LLM#11868",
        wrong_parts("caches/teacache", "reused", r"fade|decay|0\.95|forget", kinds={**CACHES, "teacache": _Fading}),
    ),
    "a-cch-02": (
        "pipeline",
        "vllm-project/vllm-omni#5560",
        wrong_parts(
            "caches/magcache",
            "out",
            r"(\b57\b|\d+|several|each block).*(residual|times|block)|residual.*(times|\d)",
            kinds={**CACHES, "magcache": _AtEveryBlock},
        ),
    ),
    "a-lora-01": (
        "loader",
        "Comfy-Org/ComfyUI#13011",
        wrong_answer("adapter/dora*", "merged", "column|broadcast|reshape left out", _magnitudes_along_the_columns),
    ),
    "a-lora-02": (
        "loader",
        "larsupb/LoRA-Merger-ComfyUI#17",
        wrong_answer("adapter/lora*", "merged", r"alpha.*1\b|1 / rank|rank", _one_for_no_alpha),
    ),
}
SEVENTH_STEPS = {id: HeldOut(*row) for id, row in _TABLE.items()}
