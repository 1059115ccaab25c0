"""Adapters: what a small file adds to the layers of a large one, computed without the merged weight.

Every adapter is a NamedTuple of its arrays, with

    delta(weight, strength)                      what it adds to the weight: the definition
    forward(x, base, layer, out, strength)       adds to `out`, in place, what that delta makes of x

and the two agree. base is the layer's own output; out may be that array. x, base, out and the factors are of one
dtype, out C-contiguous. How a strength other than 1 enters, trainers and engines disagree on: strengths.py.
"""

from refsd.kernels.adapters.dora import CrossedDoRA, DoRA
from refsd.kernels.adapters.full import Full
from refsd.kernels.adapters.glora import GLoRA
from refsd.kernels.adapters.ia3 import IA3
from refsd.kernels.adapters.layer import Conv2d, Layer, Linear
from refsd.kernels.adapters.loha import LoHa
from refsd.kernels.adapters.lokr import LoKr
from refsd.kernels.adapters.lora import LoRA
from refsd.kernels.adapters.oft import InputRotation, OutputRotation

Adapter = LoRA | LoHa | LoKr | DoRA | CrossedDoRA | OutputRotation | InputRotation | GLoRA | IA3 | Full

__all__ = [
    "IA3",
    "Adapter",
    "Conv2d",
    "CrossedDoRA",
    "DoRA",
    "Full",
    "GLoRA",
    "InputRotation",
    "Layer",
    "Linear",
    "LoHa",
    "LoKr",
    "LoRA",
    "OutputRotation",
]
