"""ONNX's own reference: onnx.reference.ReferenceEvaluator, which computes in NumPy, in the model's dtypes."""

import warnings
from importlib.metadata import version

import numpy as np

from refsd.engines.by_onnx import OnnxEngine, Settings, missing
from refsd.golden.engine import EngineSearch, ModelFiles
from refsd.numerics.profiles import ONNX_F32


def execute(model: bytes, feeds: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its exponentials overflow
        evaluator = ReferenceEvaluator(model)
        answers = evaluator.run(None, feeds)
    return {str(name): np.asarray(y) for name, y in zip(evaluator.output_names, answers, strict=True)}


def find(timeout: float = 300.0, model_files: ModelFiles | None = None, **_) -> list[EngineSearch]:
    """The installed onnx."""
    name = "onnx-reference"
    if absent := missing(name, "onnx"):
        return absent
    engine = OnnxEngine(name, "onnx_reference", version("onnx"), ONNX_F32, timeout=timeout, model_files=model_files)
    return [EngineSearch(name, engine)]
