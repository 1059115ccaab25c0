"""onnxruntime: its CPU provider."""

from importlib.metadata import version

import numpy as np

from refsd.engines.by_onnx import OnnxEngine, Settings, missing
from refsd.golden.engine import EngineSearch
from refsd.numerics.profiles import ONNXRUNTIME_CPU

_QUIET = 3  # errors only: onnxruntime warns of initializers that its own optimizer has made superfluous


def execute(model: bytes, feeds: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = settings["threads"]
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def find(threads: int = 2, timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed onnxruntime."""
    name = "onnxruntime"
    if absent := missing(name, "onnx", "onnxruntime"):
        return absent
    engine = OnnxEngine(
        name, name, version(name), lambda case: ONNXRUNTIME_CPU, {"threads": threads}, timeout=timeout
    )
    return [EngineSearch(name, engine)]
