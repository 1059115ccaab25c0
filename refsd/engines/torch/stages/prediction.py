"""A network's input, its timestep, and the denoised picture from its output, by diffusers' schedulers."""

from collections.abc import Set
from typing import Any

from refsd.engines.torch.stages.torch_stage import SD, Params, TorchStage

_TYPES = {"eps": "epsilon", "v": "v_prediction"}


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["engine"] not in ("diffusers", "k-diffusion"):
        return f"diffusers does not follow {p['engine']}'s convention"
    of_levels = p["prediction"] in _TYPES and p["levels"] in ("sd", "sd-zero-snr", "edm")
    if "extra" in inputs and p["prediction"] != "eps":
        return "only eps models have channels behind x here"
    if "reference" in inputs:
        return "diffusers' schedulers see no picture to edit: its pipelines join it and take it out"
    if p["time"] not in (None, "sigma", "1000 sigma"):
        return f"diffusers' schedulers have no timestep {p['time']}"
    others = ("flow", "flow"), ("edm", "edm"), ("flow", "flux")
    known = of_levels or (p["prediction"], p["levels"]) in others
    return None if known else f"diffusers has no scheduler of {p['levels']} levels for {p['prediction']}"


def _flow(torch, t, p: Params) -> dict[str, Any]:
    """Take the last step, to sigma 0: it ends at the denoised picture."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    scheduler.set_timesteps(sigmas=[p["sigma"]])
    (time,) = scheduler.timesteps
    denoised = scheduler.step(t["answer"], time, t["x"]).prev_sample
    time_ = time / 1000 if (p["time"] or {"flux": "sigma"}.get(p["levels"])) == "sigma" else time
    return {"shown": t["x"], "control": t["x"], "t": time_[None], "denoised": denoised}


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import EDMEulerScheduler, EulerDiscreteScheduler

    if p["prediction"] == "flow":
        return _flow(torch, t, p)
    if p["prediction"] == "edm":
        scheduler = EDMEulerScheduler(sigma_data=0.5)
        sigma = torch.tensor(p["sigma"])
        shown = scheduler.precondition_inputs(t["x"], sigma)
        denoised = scheduler.precondition_outputs(t["x"], t["answer"], sigma)
        time = scheduler.precondition_noise(sigma)
        return {"shown": shown, "control": shown, "t": time[None], "denoised": denoised}
    continuous = {"timestep_type": "continuous", "sigma_min": 0.002, "sigma_max": 120.0}
    scheduler = EulerDiscreteScheduler(
        **SD,
        prediction_type=_TYPES[p["prediction"]],
        rescale_betas_zero_snr=p["levels"] == "sd-zero-snr",
        **(continuous if p["levels"] == "edm" else {}),
    )
    scheduler.set_timesteps(sigmas=[p["sigma"], 0.0])
    time = scheduler.timesteps[0]
    shown = scheduler.scale_model_input(t["x"], time)
    denoised = scheduler.step(t["answer"], time, t["x"]).pred_original_sample
    # StableDiffusionInpaintPipeline joins the mask and the masked picture to the scaled latent.
    joined = torch.cat([shown, t["extra"]], dim=1) if "extra" in t else shown
    return {"shown": joined, "control": shown, "t": time[None], "denoised": denoised}


STAGES = {"stage/prediction": TorchStage("diffusers", _refuses, _run)}
