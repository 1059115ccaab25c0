"""Diffusers' ControlNet and ControlNet Union, called as its pipelines call them."""

from pathlib import Path

from refsd.files.json_files import read_json
from refsd.models.unet.original import UNREAD, added_condition, latent_and_text
from refsd.networks.original import Arguments, Given, Original, Reader, diffusers, refuse
from refsd.numerics.errors import BadInput


def _load(path: Path, dtype):
    name = read_json(path / "config.json")["_class_name"]
    return diffusers("", name, _run).load(path, dtype)


def _told(model, x, params):
    """Return the hint and its kind as the class takes them: a union's are lists."""
    import torch

    if "Union" not in type(model).__name__:
        return (x["hint"],)
    kind = params.get("control_type", 0)
    marks = torch.zeros(len(x["x"]), model.config.num_control_type, dtype=x["x"].dtype)
    marks[:, kind] = 1
    return [x["hint"]], marks, [kind]


def _run(model, x, params):
    down, middle = model(
        x["x"],
        x["timesteps"],
        x["context"],
        *_told(model, x, params),
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


def _read_union(model, given: Given) -> Arguments:
    hints, kinds, marks = given["controlnet_cond"], given["control_type_idx"], given["control_type"]
    if len(hints) != 1 or len(kinds) != 1 or marks.sum() != len(marks) or not marks[:, kinds[0]].all():
        raise BadInput(f"the call has {len(hints)} control pictures; refsd computes one, of one kind")
    scale = given["conditioning_scale"]
    alone = {"controlnet_cond": hints[0], "conditioning_scale": scale[0] if isinstance(scale, list) else scale}
    read = _read(model, {**given, **alone})
    return read._replace(params={**read.params, "control_type": int(kinds[0])})


ORIGINALS = {
    "controlnet": Original("diffusers", "", _load, _run),
}
# Name of the module's class -> readers of its calls.
READERS = {
    "ControlNetModel": (Reader("controlnet", _read),),
    "ControlNetUnionModel": (Reader("controlnet", _read_union),),
}
