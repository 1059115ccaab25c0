"""Read the weights and config of a torch module in memory, as if they were a file's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refsd.files.stored import Header, Weights, shown
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.checkpoint import component_of
from refsd.weights.component import Component

_TYPES = {
    "torch.float64": "f64",
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.int64": "i64",
}
# transformers' files put the model's name before each weight's; a module's own names lack it.
_PREFIXES = ("", "text_model.", "model.")


class StateDict(Weights):
    """A module's tensors, copied to NumPy on access.

    title:  stands for the file's path in messages
    prefix: put before all names
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
    """Return a torch tensor's values as a contiguous NumPy array; bfloat16 as ml_dtypes.bfloat16."""
    import torch

    y = tensor.detach().cpu().contiguous()
    if y.dtype == torch.bfloat16:
        return y.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return y.numpy()


def living_component(module) -> Component:
    """Identify a diffusers or transformers module. Raises BadInput if refsd has no such component."""
    title = type(module).__name__
    state, config = module.state_dict(), module.config
    given = dict(config) if isinstance(config, Mapping) else config.to_dict()
    first: BadInput | None = None
    for prefix in _PREFIXES:
        try:
            return component_of(StateDict(title, state, prefix), _as_json(given))
        except BadInput as error:
            first = first or error
    assert first is not None
    raise first


def _as_json(value: Any) -> Any:
    """Return a config as config.json has it: a class's defaults are tuples, a file's are lists."""
    if isinstance(value, Mapping):
        return {name: _as_json(of) for name, of in value.items()}
    return [_as_json(of) for of in value] if isinstance(value, tuple | list) else value
