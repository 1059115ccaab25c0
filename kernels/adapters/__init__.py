"""Adapters (LoRA and its variants): add a small file's contribution to a layer without merging the weight.

Every adapter is a NamedTuple of its arrays, with two methods that agree:

    delta(weight, strength)                      the difference that it adds to the weight: the definition
    forward(x, base, layer, out, strength)       adds the output of that difference for input x to `out`, in place

base is the layer's own output; out may be the same array. x, base, out and the factors have one dtype, and out is
C-contiguous. Trainers and engines disagree about strengths other than 1: see strengths.py.
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
