"""Dump what each part of an adopted torch module gives: python dump.py FOLDER writes dump.safetensors."""

import sys
from pathlib import Path

import torch
from mymodel import build
from safetensors.torch import load_file, save_file

from refsd.adoption.capture import module_outputs, outputs_of

folder = Path(sys.argv[1])
model, _ = build()
model.load_state_dict(load_file(folder / "weights.safetensors"))
inputs = load_file(folder / "inputs.safetensors")
with torch.no_grad(), module_outputs(model.eval()) as taps:
    outputs = outputs_of(model(**inputs), inputs, taps)
save_file({name: y.contiguous().clone() for name, y in (taps | outputs).items()}, "dump.safetensors")
