"""Merge adapter files into a layer by LyCORIS."""

import importlib
from collections.abc import Set
from typing import Any

from refsd.engines.torch.stages.torch_stage import Params, TorchStage

_NAME = "lora_unet_layer"


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["rule"] != "trainer":
        return f"LyCORIS does not follow {p['rule']}'s rule"
    if p["tag"] or p["rows"]:
        return "LyCORIS reads no prompts, and knows no fused layers"
    if p["elsewhere"]:
        return "LyCORIS is asked for one layer, which another one's modules do not reach"
    if not all(name == "weight" or name.startswith(f"{_NAME}.") for name in inputs):
        return "LyCORIS does not read PEFT's names"
    if f"{_NAME}.oft_blocks" in inputs:
        return "LyCORIS chooses the size of OFT's blocks, whatever the file's is"
    if f"{_NAME}.scalar" in inputs:
        return "LyCORIS keeps no scalar in a file: it is multiplied into the factors"
    return None if f"{_NAME}.alpha" in inputs else "LyCORIS reads no file without an alpha"


def _run(torch, t, p: Params) -> dict[str, Any]:
    """Return the merged weight: the layer's outputs for unit inputs are its columns."""
    lycoris = importlib.import_module("lycoris.modules")
    weight = t["weight"]
    rows, columns, *filters = weight.shape
    kind = torch.nn.Conv2d if filters else torch.nn.Linear
    layer = kind(columns, rows, *([filters] if filters else []), bias=False)
    layer.weight.data = weight
    state = {key: value for key, value in t.items() if key != "weight"}
    module = lycoris.make_module(*lycoris.get_module(state, _NAME), _NAME, layer)
    module.multiplier = p["strength"]
    module.apply_to()
    alone = torch.eye(weight[0].numel())
    # Without oneDNN torch convolves by NNPACK's Winograd transform, whose roundings are not the weight's.
    with torch.backends.nnpack.flags(enabled=False):
        answers = layer(alone.reshape(-1, columns, *filters) if filters else alone)
    return {"merged": answers.reshape(-1, rows).T.reshape(weight.shape)}


STAGES = {"stage/adapter": TorchStage("lycoris", _refuses, _run)}
