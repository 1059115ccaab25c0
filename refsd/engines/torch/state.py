"""The weights and the config of a living torch module, as those of a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.checkpoint import component_of
from refsd.weights.component import Component
from refsd.weights.stored import Header, Weights, shown

_TYPES = {
    "torch.float64": "f64",
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.int64": "i64",
}
# Before their names in a file of transformers stands the model's own, which the module's own names lack.
_PREFIXES = ("", "text_model.", "model.")


class StateDict(Weights):
    """A module's tensors, copied to NumPy when asked for.

    prefix: is put before the names
    """

    def __init__(self, title: str, state: Mapping[str, Any], prefix: str = ""):
        self.path, self.format, self.metadata = Path(title), "state_dict", {}
        self._state = {prefix + name: tensor for name, tensor in state.items()}
        self.headers = {
            name: Header(_TYPES.get(str(t.dtype), str(t.dtype)), tuple(t.shape), 0, t.numel() * t.element_size())
            for name, t in self._state.items()
        }

    def __getitem__(self, name: str) -> StoredTensor:
        header = self.headers[name]
        if header.type not in _TYPES.values():
            raise BadInput(f"{self.path}: weight {shown(name)}: refsd cannot read {header.type} from a module")
        return StoredTensor(header.type, header.shape, array(self._state[name]))


def array(tensor) -> np.ndarray:
    """A torch tensor's values in NumPy, contiguous; those of bfloat16 as ml_dtypes has them."""
    import torch

    y = tensor.detach().cpu().contiguous()
    if y.dtype == torch.bfloat16:
        return y.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return y.numpy()


def living_component(module) -> Component:
    """What a diffusers or transformers module is. Raises BadInput where it is nothing that refsd runs."""
    title = type(module).__name__
    state, config = module.state_dict(), module.config
    given = dict(config) if isinstance(config, Mapping) else config.to_dict()
    first: BadInput | None = None
    for prefix in _PREFIXES:
        try:
            return component_of(StateDict(title, state, prefix), given)
        except BadInput as error:
            first = first or error
    assert first is not None
    raise first
