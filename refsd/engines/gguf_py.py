"""The engine gguf-py: the GGUF format's official Python package, which dequantizes."""

import functools
import importlib.metadata
from collections.abc import Mapping

import numpy as np

from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch, NoDeviations
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.profiles import FLOAT32, Numerics
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor


@functools.cache
def _knows(type_name: str) -> bool:
    import gguf

    kind = gguf.GGMLQuantizationType.__members__.get(type_name.upper())
    if kind is None:
        return False
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


class GgufPyEngine(NoDeviations):
    """Dequantize every block type that the installed gguf-py supports. Its results are exact."""

    name = "gguf-py"

    def __init__(self):
        self.version = importlib.metadata.version("gguf")

    def refuses(self, case: Case) -> str | None:
        if case.op != "dequantize":
            return "gguf-py only dequantizes"
        kind = case.inputs["x"].type
        return None if _knows(kind) else f"gguf-py {self.version} does not dequantize {kind}"

    def numerics(self, case: Case) -> Numerics:
        return FLOAT32

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        import gguf

        x = inputs["x"]
        kind = gguf.GGMLQuantizationType[x.type.upper()]
        row = np.ascontiguousarray(x.data).view(np.uint8).reshape(-1, _row_bytes(x))
        try:
            return {"y": gguf.dequantize(row, kind).reshape(x.shape)}
        except (ValueError, NotImplementedError) as error:
            raise EngineFailure(f"gguf-py: {error}") from error


def _row_bytes(x: StoredTensor) -> int:
    if x.type in SCALAR_TYPES:
        return x.shape[-1] * SCALAR_TYPES[x.type].itemsize
    block_type = BLOCK_TYPES[x.type]
    return x.shape[-1] // block_type.block * block_type.bytes


def find(**_) -> list[EngineSearch]:
    """Return the engine. gguf-py is a dependency of refsd, so it is always installed."""
    return [EngineSearch("gguf-py", GgufPyEngine())]
