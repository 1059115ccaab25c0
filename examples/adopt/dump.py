"""Dump what each part of an adopted torch module gives: python dump.py FOLDER writes dump.safetensors."""

import json
import sys
from pathlib import Path

import torch
from mymodel import build
from safetensors.torch import load_file, save_file

from refsd.adoption.capture import module_outputs, outputs_of

folder = Path(sys.argv[1])
arguments = json.loads((folder / "case.json").read_text())["arguments"]
tensors = load_file(folder / "inputs.safetensors")
inputs = {name: tensors.pop(name) for name in arguments}
drawn = folder / "weights.safetensors"  # of a folder of --own-weights the other inputs are the weights
model, _ = build()
assert not model.load_state_dict(
    tensors | (load_file(drawn) if drawn.exists() else {}), strict=False
).unexpected_keys
with torch.no_grad(), module_outputs(model.eval()) as taps:
    outputs = outputs_of(model(**inputs), inputs, taps)
save_file({name: y.contiguous().clone() for name, y in (taps | outputs).items()}, "dump.safetensors")
