"""Merge a Control-LoRA with the UNet that it was made from: a ControlNet whose layers are not in its file.

lora_controlnet            marks the file
<layer>.up, <layer>.down   [O, R], [R, I], those of convolutions with the filter's sides: the weight is the UNet's,
                           plus up down
<layer>.weight, .bias      as they are: the convolutions of the hint, those after each block, norms, biases

What neither has, the UNet's encoder has. The names are the original UNet's, of a ControlNet without its prefix.
Source: ComfyUI, comfy/controlnet.py, ControlLora and ControlLoraOps: from reading.
"""

import math
from collections.abc import Iterator

import numpy as np

from refsd.files.stored import Header, Weights, enough_memory, shown
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor, stored
from refsd.weights.component import ComponentWeights

TITLE = "Control-LoRA"
PREFIX = "control_model."  # of a ControlNet's file
_TRUNK = ("time_embed.", "label_emb.", "input_blocks.", "middle_block.")
_PARTS = ("up", "down")


class MergedControlNet(Weights):
    """The tensors of the ControlNet, merged on access, under the names that a ControlNet's file has.

    Raises BadInput for a layer that the UNet lacks, and for one whose parts do not fit.
    """

    def __init__(self, file: Weights, unet: ComponentWeights):
        self.path, self.format, self.metadata = file.path, file.format, {}
        self._file, self._unet = file, unet
        self._layers = {name.rpartition(".")[0] for name in file if name.rpartition(".")[2] in _PARTS}
        headers = {name: self._of_unet(name) for name in unet if name.startswith(_TRUNK)}
        headers |= {name: header for name, header in file.headers.items() if name.endswith((".weight", ".bias"))}
        for layer in self._layers:
            headers[f"{layer}.weight"] = self._merged_header(layer)
        self.headers = {f"{PREFIX}{name}": header for name, header in headers.items()}

    def __getitem__(self, name: str) -> StoredTensor:
        name = name.removeprefix(PREFIX)
        layer, _, last = name.rpartition(".")
        if last == "weight" and layer in self._layers:
            up, down = (self._file[f"{layer}.{part}"].values().astype(np.float64) for part in _PARTS)
            with enough_memory(self.path, name):
                weight = self._unet[name].values().astype(np.float64)
                weight += (up.reshape(len(up), -1) @ down.reshape(len(down), -1)).reshape(weight.shape)
                return stored(weight.astype(np.float32))
        return self._file[name] if name in self._file else self._unet[name]

    def is_readable(self, name: str) -> bool:
        name = name.removeprefix(PREFIX)
        return name not in self._file or self._file.is_readable(name)

    def has_scale(self, name: str) -> bool:
        name = name.removeprefix(PREFIX)
        parts = self._unet.sources[name].names if name in self._unet else ()
        return any(self._unet.file.has_scale(part) for part in parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def _of_unet(self, name: str) -> Header:
        of = self._unet.file.headers[self._unet.sources[name].names[0]]
        return of._replace(shape=self._unet.shapes[name])

    def _merged_header(self, layer: str) -> Header:
        at, name = f"{self.path}: layer {shown(layer)}", f"{layer}.weight"
        if name not in self._unet or name in self._file:
            raise BadInput(
                f"{at}: it adds to a weight that {'is its own' if name in self._file else 'its UNet lacks'}"
            )
        shape = self._unet.shapes[name]
        parts = [self._file.headers.get(f"{layer}.{part}") for part in _PARTS]
        up, down = (() if header is None else header.shape for header in parts)
        fits = up[:1] == shape[:1] and up[1:2] == down[:1] != () and math.prod(up[2:]) == 1
        if not fits or math.prod(down[1:]) != math.prod(shape[1:]):
            raise BadInput(f"{at}: up {list(up)} and down {list(down)} do not make the UNet's {list(shape)}")
        return Header("f32", shape, 0, 4 * math.prod(shape))
