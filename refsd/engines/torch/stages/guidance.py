"""Guidance by diffusers' guiders."""

from typing import Any

from refsd.engines.torch.stages.torch_stage import Params, TorchStage

_FORMS = "cfg", "rescale", "zero-star", "skip-layer"
_DENOISED = "tangential", "dynamic-threshold"


def _guided(guider, *predictions):
    """Guide at step 5 of 20: some guiders skip the first steps."""
    guider._step, guider._num_inference_steps, guider._enabled = 5, 20, True
    return guider.forward(*predictions).pred


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import guiders

    scale, predictions = p["scale"], [t["cond"], t["uncond"]]
    match p["form"]:
        case "zero-star":
            guider = guiders.ClassifierFreeZeroStarGuidance(scale, zero_init_steps=1)
        case "skip-layer":
            layers = {"skip_layer_guidance_layers": [1], "skip_layer_guidance_stop": 1.0}
            guider = guiders.SkipLayerGuidance(scale, p["other_scale"], **layers)
            predictions.append(t["other"])
        case form:
            guider = guiders.ClassifierFreeGuidance(scale, guidance_rescale=p["phi"] if form == "rescale" else 0.0)
    return {"guided": _guided(guider, *predictions)}


def _run_denoised(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import DDIMScheduler, guiders

    if p["form"] == "tangential":
        return {"guided": _guided(guiders.TangentialClassifierFreeGuidance(p["scale"]), t["cond"], t["uncond"])}
    limits = {"dynamic_thresholding_ratio": p["percentile"], "sample_max_value": p["maximum"]}
    guided = _guided(guiders.ClassifierFreeGuidance(p["scale"]), t["cond"], t["uncond"])
    return {"guided": DDIMScheduler(thresholding=True, **limits)._threshold_sample(guided)}


def _of(forms: tuple[str, ...]):
    return lambda p, inputs: None if p["form"] in forms else f"diffusers has no guider for {p['form']}"


STAGES = {
    "stage/denoised_guidance": TorchStage("diffusers", _of(_DENOISED), _run_denoised),
    "stage/guidance": TorchStage("diffusers", _of(_FORMS), _run),
}
