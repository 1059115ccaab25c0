"""A package of functions on torch tensors, in a process of its own: products in few bits as tools have them."""

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from refsd.engines.arrays.array_engine import Library, array_engines
from refsd.engines.worker import Worker, serve
from refsd.golden.engine import EngineSearch
from refsd.golden.wording import how_to_install
from refsd.numerics.profiles import TORCH_BF16, TORCH_F16, TORCH_F32, Numerics
from refsd.numerics.tensor import StoredTensor, stored

_DTYPES = {"": ("float32", TORCH_F32), "-f16": ("float16", TORCH_F16), "-bf16": ("bfloat16", TORCH_BF16)}
FLOAT8 = {"f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}
TYPES = ("f32", "f16", "bf16", "i8", "u8", *FLOAT8)


def variants(name: str, **fields) -> dict[str, tuple[str, Numerics]]:
    """Return what follows an engine's name -> the dtype of activations and results, and its rounding."""
    return {
        end: (dtype, replace(numerics, name=name + (end or "-f32"), **fields))
        for end, (dtype, numerics) in _DTYPES.items()
    }


def package_engines(library: Library, module: str, timeout: float, how: dict, *words: str) -> list[EngineSearch]:
    """The engines of an installed package.

    module: its name, and that of the engine's; how: as `variants` gives it; words: arguments of the process
    """
    for package in ("torch", module):
        if importlib.util.find_spec(package) is None:
            return [EngineSearch(library.name, None, how_to_install(library.name))]
    worker = Worker(["-m", f"refsd.engines.{module}", *words], timeout)
    version = importlib.metadata.version(library.name.removesuffix("-openvino"))
    return array_engines(library, library.name, version, how, worker, on_cpu=True)


def answered(
    library: Library, torch, op: str, params: Mapping, dtype: str, inputs: Mapping[str, StoredTensor]
) -> np.ndarray:
    """Answer one case. dtype: of activations, bias and result; codes and scales keep theirs"""
    tensors = {name: _tensor(torch, name, tensor, getattr(torch, dtype)) for name, tensor in inputs.items()}
    with torch.inference_mode():
        return library.functions[op](torch, tensors, params).float().numpy()


def _tensor(torch, name: str, tensor: StoredTensor, dtype):
    if tensor.type in ("i8", "u8"):
        return torch.from_numpy(tensor.data.reshape(tensor.shape).copy())
    if tensor.type in FLOAT8:
        codes = torch.from_numpy(tensor.data.reshape(tensor.shape).view(np.uint8).copy())
        return codes.view(getattr(torch, FLOAT8[tensor.type]))
    wide = torch.from_numpy(tensor.values().astype(np.float32))
    return wide if name.endswith(("_scale", "codebook")) else wide.to(dtype)


def serve_package(library: Library) -> None:
    """Answer the requests of this process."""
    import torch

    torch.set_num_threads(1)

    def answer(header, inputs):
        y = answered(library, torch, header["op"], header["params"], header["dtype"], inputs)
        return {}, {"y": stored(y)}

    serve(answer)
