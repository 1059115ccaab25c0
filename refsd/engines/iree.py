"""IREE: a case's ONNX model imported, compiled for the CPU by LLVM, run by the local task driver."""

from importlib.metadata import version

import numpy as np

from refsd.engines.by_onnx import OnnxEngine, Settings, missing
from refsd.golden.engine import EngineSearch, ModelFiles
from refsd.numerics.profiles import ONNX_F32


def execute(model: bytes, feeds: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    import onnx
    from iree import compiler, runtime
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context

    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(model), data_prop=True)
    # A function of MLIR is called by the graph's name, which has no slashes there.
    inferred.graph.name = "case"
    info = onnx_importer.ModelInfo(inferred)
    module = info.create_module(context=Context()).operation
    importer = onnx_importer.NodeImporter.define_function(info.main_graph, module)
    importer.import_all()
    text = module.get_asm(assume_verified=True)
    options = ["--iree-llvmcpu-target-cpu=host"]
    binary = compiler.compile_str(text, target_backends=["llvm-cpu"], input_type="onnx", extra_args=options)
    config = runtime.Config("local-task")
    call = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, binary), config)["case"]
    return {"y": np.asarray(call(*feeds.values()).to_host())}


def find(timeout: float = 300.0, model_files: ModelFiles | None = None, **_) -> list[EngineSearch]:
    """The installed iree-base-compiler and iree-base-runtime."""
    if absent := missing("iree", "iree", "iree"):
        return absent
    release = version("iree-base-compiler")
    engine = OnnxEngine("iree", "iree", release, ONNX_F32, timeout=timeout, model_files=model_files)
    return [EngineSearch("iree", engine)]
