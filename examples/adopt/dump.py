"""Dump what each part of an adopted torch module gives: python dump.py FOLDER writes dump.safetensors."""

import sys
from pathlib import Path

from mymodel import build
from safetensors.torch import load_file, save_file

folder = Path(sys.argv[1])
model, _ = build()
model.load_state_dict(load_file(folder / "weights.safetensors"))
taken = {}


def keep(name):
    calls = []

    def hook(module, inputs, output):
        # A module's second call is NAME.1; one that gives several tensors would have NAME.0, NAME.1.
        taken[f"{name}.{len(calls)}" if calls else name] = output.detach().clone()
        calls.append(None)

    return hook


for name, module in model.named_modules():
    if name:
        module.register_forward_hook(keep(name))
taken["out"] = model(**load_file(folder / "inputs.safetensors")).detach()
save_file(taken, "dump.safetensors")
