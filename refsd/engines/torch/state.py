"""Read the weights and config of a torch module in memory, as if they were a file's."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refsd.files import gguf_types
from refsd.files.scaled import find_scalings
from refsd.files.stored import Header, Weights, shown
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import LLM_ROWS, TORCHAO_ROWS
from refsd.numerics.quantization import Quantization
from refsd.weights.checkpoint import component_of
from refsd.weights.component import Component

_TYPES = {
    "torch.float64": "f64",
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "f8_e4m3",
    "torch.float8_e5m2": "f8_e5m2",
    "torch.float8_e8m0fnu": "f8_e8m0",
    "torch.int64": "i64",
    "torch.int32": "i32",
    "torch.int8": "i8",
    "torch.uint8": "u8",
}
# transformers' files put the model's name before each weight's; a module's own names lack it.
_PREFIXES = ("", "text_model.", "model.")


class StateDict(Weights):
    """A module's tensors, copied to NumPy on access; those that a tool keeps in few bits, as in its files.

    title:  stands for the file's path in messages
    prefix: put before all names
    """

    def __init__(self, title: str, state: Mapping[str, Any], prefix: str = ""):
        named = {prefix + name: tensor for name, tensor in state.items()}
        parts, metadata = _taken_apart(named)
        self._tensors = list(parts.values())
        headers = {name: _header(tensor, place) for place, (name, tensor) in enumerate(parts.items())}
        super().__init__(Path(title), "state_dict", headers, metadata, b"")
        find_scalings(self.path, headers, metadata, self._bytes).give_to(self)
        self.metadata = {}

    def _bytes(self, header: Header) -> np.ndarray:
        import torch

        tensor = self._tensors[header.offset].detach().cpu().contiguous()
        return tensor.reshape(-1).view(torch.uint8).numpy()


def _header(tensor, place: int) -> Header:
    nbytes = tensor.numel() * tensor.element_size()
    if type(tensor).__name__ == "GGUFParameter":  # diffusers': bytes of whole blocks
        return Header(gguf_types.TYPES[int(tensor.quant_type)].name, tuple(tensor.quant_shape), place, nbytes)
    return Header(_TYPES.get(str(tensor.dtype), str(tensor.dtype)), tuple(tensor.shape), place, nbytes)


def _taken_apart(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return plain tensors and metadata, as torchao writes its own tensors to files; others as they are."""
    plain, metadata = {}, {}
    for name, tensor in state.items():
        if not type(tensor).__module__.startswith("torchao."):
            plain[name] = tensor
            continue
        from torchao.prototype.safetensors.safetensors_utils import TensorSubclassAttributeJSONEncoder

        module, dot, last = name.rpartition(".")
        held = [*tensor.tensor_data_names, *getattr(tensor, "optional_tensor_data_names", ())]
        parts = {part: getattr(tensor, part) for part in held if getattr(tensor, part) is not None}
        plain |= {f"{module}{dot}_{last}_{part}": of for part, of in parts.items()}
        metadata[name] = json.dumps(tensor, cls=TensorSubclassAttributeJSONEncoder)
    metadata["tensor_names"] = json.dumps(list(metadata))
    return plain, metadata


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
            with warnings.catch_warnings():  # a file lacks layers by mistake, a living module has what it runs
                warnings.simplefilter("ignore", UserWarning)
                return component_of(StateDict(title, state, prefix), _as_json(given))
        except BadInput as error:
            first = first or error
    assert first is not None
    raise first


def activations_of(module) -> dict[str, Quantization]:
    """Return how a module's linear layers round their input: type of the weight -> few bits.

    Raises BadInput for a way of multiplying in few bits that no numerics of refsd describe.
    """
    import torch

    title = type(module).__name__
    rules = set()
    for name, layer in module.named_modules():
        if type(layer).__name__ == "Linear8bitLt":  # bitsandbytes' LLM.int8()
            if layer.weight.dtype != torch.int8:
                raise BadInput(f"{title}: {name} rounds its weight to int8 as it multiplies, {_NOT_DESCRIBED}")
            widens = layer.training and layer.weight.device.type in ("cpu", "xpu")
            rules.add(None if widens else replace(LLM_ROWS, outliers=layer.state.threshold))
    for name, tensor in module.named_parameters():
        how = getattr(tensor, "act_quant_kwargs", None) or getattr(tensor, "activation_quantization", None)
        if how is not None:
            rules.add(_rule(f"{title}: {shown(name)}, torchao's {type(tensor).__name__}", tensor, how))
        elif type(tensor).__name__ == "Int8Tensor":
            rules.add(None)
    if len(rules) > 1:
        raise BadInput(f"{title}: its int8 weights are multiplied in several ways, {_NOT_DESCRIBED}")
    rule = next(iter(rules), None)
    return {} if rule is None else {"i8": rule}


_NOT_DESCRIBED = 'which no numerics of refsd describe; by="operations" judges any module'


def _rule(what: str, tensor, how) -> Quantization:
    scale = {"PerRow": "row", "PerTensor": "tensor"}.get(type(how.granularity).__name__)
    symmetric = getattr(how, "mapping_type", None) is not None and how.mapping_type.name == "SYMMETRIC"
    plain = type(tensor).__name__ == "Int8Tensor" and symmetric and not how.reduce_range
    if scale is None or not plain or tensor.act_quant_scale is not None:
        raise BadInput(f"{what} rounds its input, {_NOT_DESCRIBED}")
    return replace(TORCHAO_ROWS, scale=scale)


def _as_json(value: Any) -> Any:
    """Return a config as config.json has it: a class's defaults are tuples, a file's are lists."""
    if isinstance(value, Mapping):
        return {name: _as_json(of) for name, of in value.items()}
    return [_as_json(of) for of in value] if isinstance(value, tuple | list) else value
