"""The loop of a worker process of an array library."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refsd.engines.worker import serve
from refsd.numerics.profiles import DTYPES
from refsd.numerics.tensor import StoredTensor, stored

# operation, params, NumPy arrays by name -> y
Compute = Callable[[str, Mapping[str, Any], Mapping[str, np.ndarray]], np.ndarray]
# The worker's device argument that leaves the choice to the library.
ANY = "any"


def serve_arrays(compute: Compute, devices: Callable[[], list[tuple[str, str]]]) -> None:
    """Answer {"describe": true} and {"op": ..., "params": ..., "dtype": ...} until stdin closes.

    Ids reach `compute` as int32, all other tensors rounded to the dtype.

    devices: lists the library's devices: name, description
    """

    def answer(header, inputs):
        if "describe" in header:
            return {"devices": devices()}, {}
        tensors = {name: _array(tensor, header["dtype"]) for name, tensor in inputs.items()}
        y = np.ascontiguousarray(compute(header["op"], header["params"], tensors))
        return {}, {"y": stored(y)}

    serve(answer)


def _array(tensor: StoredTensor, dtype: str) -> np.ndarray:
    x = tensor.values()
    return x.astype(np.int32) if x.dtype.kind in "iu" else x.astype(np.float32).astype(DTYPES[dtype])
