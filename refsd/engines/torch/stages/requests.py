"""Consecutive requests to one model: PEFT merges and unmerges adapters, torch's generators draw the noise."""

import importlib
from collections.abc import Set
from typing import Any

from refsd.engines.torch.stages.torch_stage import Params, TorchStage


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    return None if p["rng"] == "cpu" else f"torch on a CPU draws no {p['rng']} noise"


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import FluxPipeline
    from diffusers.utils.torch_utils import randn_tensor

    peft = importlib.import_module("peft")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(*reversed(t["weight"].shape), bias=False)
            self.layer.weight.data = t["weight"].clone()

    names = [name.removesuffix("_up") for name in t if name.endswith("_up")]
    rank = t[f"{names[0]}_up"].shape[1]
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=["layer"])
    network = peft.get_peft_model(Network(), config, names[0])
    for name in names[1:]:
        network.add_adapter(name, config)
    layer = network.base_model.model.layer
    for name in names:
        layer.lora_A[name].weight.data, layer.lora_B[name].weight.data = t[f"{name}_down"], t[f"{name}_up"]
    found = {}
    for i, request in enumerate(p["requests"], 1):
        layer.unmerge()
        for name, strength in request["adapters"].items():
            layer.set_scale(name, strength)
        if request["adapters"]:
            layer.merge(adapter_names=[*request["adapters"]])
        height, width = request["size"]
        generator = torch.Generator("cpu").manual_seed(request["seed"])
        shape = (1, 4, height // 8, width // 8)
        noise, later = (randn_tensor(shape, generator) for _ in range(2))
        ids = FluxPipeline._prepare_latent_image_ids(1, height // 16, width // 16, "cpu", torch.float32)
        found |= {
            f"weight_{i}": layer.base_layer.weight.data.clone(),
            f"mask_{i}": (torch.arange(16) < request["tokens"])[None].long(),
            f"positions_{i}": ids[:, 1:],
            f"noise_{i}": noise,
            f"step_noise_{i}": later,
            f"steps_{i}": torch.arange(request["steps"]),
        }
    return found


STAGES = {"stage/requests": TorchStage("peft", _refuses, _run)}
