"""Apache TVM: a case's ONNX model through Relax, compiled for LLVM."""

from importlib.metadata import version

import numpy as np

from refsd.engines.by_onnx import OnnxEngine, Settings, missing
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch, ModelFiles
from refsd.numerics.profiles import ONNX_F32


def execute(model: bytes, feeds: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load_from_string(model), keep_params_in_input=False)
    program = tvm.compile(relax.transform.DecomposeOpsForInference()(module), "llvm")
    machine = relax.VirtualMachine(program, tvm.cpu())
    return {"y": machine["main"](*(tvm.runtime.tensor(x) for x in feeds.values())).numpy()}


def _refusal(case: Case) -> str | None:
    blocks = next((recipe.type for recipe in case.inputs.values() if recipe.type in ("q8_0", "q4_0")), None)
    return f"TVM reads no DequantizeLinear of blocks: {blocks}" if blocks else None


def find(timeout: float = 300.0, model_files: ModelFiles | None = None, **_) -> list[EngineSearch]:
    """The installed apache-tvm."""
    if absent := missing("tvm", "tvm", "tvm"):
        return absent
    how = {"refusal": _refusal, "timeout": timeout, "model_files": model_files}
    engine = OnnxEngine("tvm", "tvm", version("apache-tvm"), ONNX_F32, **how)
    return [EngineSearch("tvm", engine)]
