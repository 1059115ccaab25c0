"""OpenVINO's CPU plugin: as it comes (bfloat16 where the processor has it), and in float32 without rounding."""

from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from refsd.engines.by_onnx import OnnxEngine, Settings, missing
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch, ModelFiles
from refsd.numerics.profiles import ONNX_F32, OPENVINO_BF16, OPENVINO_Q8, Numerics

_HINT, _GROUP = "INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE"
# name -> the plugin's properties
_VARIANTS = {"openvino": {}, "openvino-f32": {_HINT: "f32", _GROUP: "0"}}


def execute(model: bytes, feeds: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    import onnx
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings["properties"])
    answers = compiled(feeds)
    # By their order: where the plugin drops an Identity, an output has the names of both values.
    names = [output.name for output in onnx.load_from_string(model).graph.output]
    return {name: answers[i] for i, name in enumerate(names)}


def _refusal(case: Case, numerics: Numerics) -> str | None:
    if case.op == "conv2d_int8" and numerics.storage != "float32":
        return f"scales would be rounded to {numerics.storage}"
    if case.op == "pad" and case.params.get("mode") == "circular":
        return "OpenVINO reads no Pad of mode wrap"
    if case.op == "linear_w4a16" and case.inputs["x"].shape[-1] % case.params.get("group", 32):
        return "OpenVINO reads no DequantizeLinear whose last block is cut short"
    if case.op == "linear_w4a16" and numerics.activations:
        return "activations would be rounded to 8 bits in groups"
    smooth = case.params.get("antialias") and not _as_without_antialias(case)
    return "OpenVINO ignores antialias of Resize" if smooth else None


def _as_without_antialias(case: Case) -> bool:
    """Whether antialias changes nothing: a bilinear picture that grows."""
    H, W = case.inputs["x"].shape[2:]
    return case.op == "resize_bilinear" and case.params["height"] >= H and case.params["width"] >= W


def find(timeout: float = 300.0, model_files: ModelFiles | None = None, **_) -> list[EngineSearch]:
    """The installed OpenVINO."""
    if absent := missing("openvino", "openvino", "openvino"):
        return absent
    import openvino

    core = openvino.Core()
    hint, group = core.get_property("CPU", _HINT).to_string(), core.get_property("CPU", _GROUP)
    # What the plugin says of itself -> how it computes
    unasked = {"f32": OPENVINO_Q8 if group else ONNX_F32, "bf16": OPENVINO_BF16}
    found = []
    for name, properties in _VARIANTS.items():
        numerics = ONNX_F32 if properties else unasked.get(hint)
        if numerics is None or (numerics is OPENVINO_Q8 and group != 32):
            why = f"it computes in {hint} with activations in groups of {group}, which refsd has no profile of"
            found.append(EngineSearch(name, None, why))
            continue
        refusal = partial(_refusal, numerics=numerics)
        how: dict[str, Any] = {"settings": {"properties": properties}, "refusal": refusal}
        how |= {"timeout": timeout, "model_files": model_files}
        engine = OnnxEngine(name, "openvino", version("openvino"), numerics, **how)
        found.append(EngineSearch(name, engine))
    return found
