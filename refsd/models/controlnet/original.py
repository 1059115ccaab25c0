"""Diffusers' ControlNet, called as its pipelines call it."""

from refsd.models.unet.original import UNREAD, added_condition, latent_and_text
from refsd.networks.original import Arguments, Given, Reader, diffusers, refuse


def _run(model, x, params):
    down, middle = model(
        x["x"],
        x["timesteps"],
        x["context"],
        x["hint"],
        conditioning_scale=params.get("strength", 1.0),
        added_cond_kwargs=added_condition(model, x),
        return_dict=False,
    )
    return {f"control.{i}": part for i, part in enumerate([*down, middle])}


def _read(model, given: Given) -> Arguments:
    refuse(given, *UNREAD, "guess_mode")
    inputs = {**latent_and_text(model, given), "hint": given["controlnet_cond"]}

    def outputs(y):
        down, middle = y if isinstance(y, tuple) else (y.down_block_res_samples, y.mid_block_res_sample)
        return {f"control.{i}": part for i, part in enumerate([*down, middle])}

    return Arguments(inputs, {"strength": float(given["conditioning_scale"])}, outputs)


ORIGINALS = {
    "controlnet": diffusers("", "ControlNetModel", _run),
}
# Name of the module's class -> readers of its calls.
READERS = {
    "ControlNetModel": (Reader("controlnet", _read),),
}
