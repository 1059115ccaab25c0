"""A twentieth fresh set, of steps, guidance, caches and files: drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injected_files import modules_of, product_of
from injection import wrong_answer, wrong_parts

from refsd.caches import CACHES
from refsd.caches.magcache import MagCache
from refsd.caches.teacache import TeaCache
from refsd.samplers.levels import SD_LEVELS
from refsd.stages.textual_inversion import InversionRule

# --- steps -------------------------------------------------------------------------------------------------------


def _kept_before_each(case, values, y):
    """The list of the levels before is read in place of the levels: each is the trained step's below."""
    kept = np.append(1.0, 1 / (1 + np.asarray(SD_LEVELS.sigmas) ** 2))
    return {"kept": kept[y["timesteps"].astype(int)], "kept_before": kept[np.maximum(y["previous"].astype(int), 0)]}


# --- guidance and caches -----------------------------------------------------------------------------------------


def _shares_exchanged(guided, cond, phi):
    axes = tuple(range(1, cond.ndim))
    ratio = cond.std(axis=axes, ddof=1, keepdims=True) / guided.std(axis=axes, ddof=1, keepdims=True)
    return guided * ((1 - phi) * ratio + phi)


class _EachBlockAdds(MagCache):
    """Each of four blocks that are skipped adds the residual of all."""

    def reuse(self, call):
        y = super().reuse(call)
        return y if y is None else y + 3 * (y - call.start)


class _CountedFromOne(TeaCache):
    """The count of steps is one ahead, so the last step but one is computed for the last."""

    def protected(self, step):
        return super().protected(step + 1)


# --- files -------------------------------------------------------------------------------------------------------


def _first_vectors(file, tensors, encoders, engine):
    """Of several vectors the first stands for all."""
    one = {name: y[:1] if y.ndim == 2 else y for name, y in tensors.items()}
    return InversionRule().read(file, one, encoders, engine)


def _lengths_of_inputs(case, values, y):
    """Magnitudes are divided by the lengths of the other axis; both are as many in a square."""
    ((_, parts),) = modules_of(values).items()
    whole = values["weight"] + product_of(parts)
    return {"merged": whole * (parts["magnitude"] / np.linalg.norm(whole, axis=0))[:, None]}


def _ranks_exchanged(parts):
    """What exchanges the halves of the outputs exchanges those of the ranks, too."""
    return {
        name: np.concatenate(np.split(y, 2)[::-1]) if "down" in name and y.ndim == 2 else y
        for name, y in parts.items()
    }


_TABLE = {
    "ty-smp-01": (
        "sampler",
        "lucidrains/denoising-diffusion-pytorch#81 and #83",
        wrong_answer(
            "steps/*",
            "kept",
            r"below|before|one (timestep|trained|level|down)|t - 1|off by one|previous",
            _kept_before_each,
        ),
    ),
    "ty-smp-02": (
        "sampler",
        "Stability-AI/stablediffusion#345, rohitg00/ai-engineering-from-scratch#43",
        wrong_parts(
            "steps/*",
            "kept_before|deviation|kept",
            r"lowest|first level|alpha.*\b0\b|level 0|timestep 0|not 1|kept at the end|end above|remains",
            final=float(1 / (1 + SD_LEVELS.sigmas[0] ** 2)),
        ),
    ),
    "ty-smp-03": ("sampler", "huggingface/diffusers#1486 and #1788, a step's direction from a picture", None),
    "ty-cfg-01": (
        "pipeline",
        "lucidrains/classifier-free-guidance-pytorch#2",
        wrong_parts("guidance/rescale", "guided", r"1 - phi|phi|0\.3|share|rescal", rescaled=_shares_exchanged),
    ),
    "ty-cch-01": (
        "pipeline",
        "vllm-project/vllm-omni#5561",
        wrong_parts(
            "caches/magcache*",
            "out",
            "residual.*(times|twice|more|each|4|four)|(times|twice|4|four).*residual|each block|too often",
            kinds={**CACHES, "magcache": _EachBlockAdds},
        ),
    ),
    "ty-cch-02": (
        "pipeline",
        "sgl-project/sglang#24227",
        wrong_parts(
            "caches/teacache*",
            "reused|out",
            "last step|off by one|one (step )?(ahead|late|early|before)|first and last|count|protect|count",
            kinds={**CACHES, "teacache": _CountedFromOne},
        ),
    ),
    "ty-ti-01": (
        "tokens",
        "vladmandic/sdnext#4964, its first",
        wrong_parts(
            "textual_inversion/diffusers",
            "ids|clip|weights",
            "first|one (vector|token)|one for|single|only",
            read=_first_vectors,
        ),
    ),
    "ty-lora-01": (
        "loader",
        "huggingface/peft#1588",
        wrong_answer(
            "adapter/dora-peft-square",
            "merged",
            "axis|column|inputs|other|length|norm",
            _lengths_of_inputs,
        ),
    ),
    "ty-lora-02": (
        "loader",
        "huggingface/diffusers#13998, its third",
        wrong_parts(
            "adapter/lora-halves-exchanged",
            "merged",
            "down|rank|both|A\\b|halves",
            parts=_ranks_exchanged,
        ),
    ),
    "ty-cnd-01": (
        "pipeline",
        "bghira/SimpleTuner#179",
        wrong_parts(
            "conditioning/sdxl",
            "y",
            "width|height|order|swap|exchang|size",
            size=lambda size: size[::-1],
        ),
    ),
    "ty-inp-01": ("pipeline", "leejet/stable-diffusion.cpp#589, a grey mask", None),
    "ty-inp-02": ("pipeline", "AUTOMATIC1111/stable-diffusion-webui#10644, a grey mask", None),
    "ty-inp-03": ("pipeline", "ostris/ai-toolkit#707, a picture to edit that is resized", None),
    "ty-inp-04": ("pipeline", "kohya-ss/sd-scripts#2368, a picture to edit that is resized and cut", None),
}
TWENTIETH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
