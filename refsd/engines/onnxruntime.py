"""onnxruntime: its CPU provider, or another; a case is refused if another provider than that ran a node of it.

Weights in blocks (DequantizeLinear, then MatMul) it multiplies by activations in 8 bits unless told otherwise;
`onnxruntime-f32` tells it. `onnxruntime-qdq` is given products of integers as its own tools write them
(QuantizeLinear and DequantizeLinear, or DynamicQuantizeLinear), which it fuses.
"""

import json
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.engines.by_onnx import Elsewhere, OnnxEngine, Settings, missing
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch, ModelFiles
from refsd.numerics.profiles import ONNX_F32, ONNXRUNTIME_CPU, ONNXRUNTIME_DYNAMIC, ONNXRUNTIME_Q8

_QUIET = 3  # errors only: onnxruntime warns of initializers that its own optimizer has made superfluous
_SUFFIX = "ExecutionProvider"
_BLOCKS = ("q4_0", "q8_0")
# MatMulAddFusion makes a Gemm of MatMul and bias first, which multiplies floats. The entry has processors without
# VNNI multiply unsigned codes alone: products of unsigned and signed ones saturate at 16 bits.
_INTEGERS = {"unfused": ["MatMulAddFusion"], "entries": {"session.x64quantprecision": "1"}}
# accuracy_level of the MatMulNBits that it fuses; 1: activations stay float32
_LEVEL = "session.qdq_matmulnbits_accuracy_level"


class Device(NamedTuple):
    """A provider. name: "CUDA"; title: as onnxruntime calls it, "CUDAExecutionProvider" """

    name: str
    title: str


def execute(model: bytes, feeds: dict[str, np.ndarray], settings: Settings) -> dict[str, np.ndarray]:
    """Raises Elsewhere if a node ran on another provider than the one that was asked for."""
    import onnxruntime

    provider = settings["provider"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = settings["threads"]
    # Threads that wait would take a core each from those that judge.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in settings.get("entries", {}).items():
        options.add_session_config_entry(name, value)
    with tempfile.TemporaryDirectory() as folder:
        if provider != "CPUExecutionProvider":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "nodes")
        try:
            unfused = {"disabled_optimizers": settings["unfused"]} if "unfused" in settings else {}
            session = onnxruntime.InferenceSession(model, options, providers=[provider], **unfused)
        except Exception as error:
            # Where a provider cannot start, as WebGPU without an adapter, onnxruntime's Python tries the CPU's.
            if "fallback to CPU EP" in str(error) or "fallback to the CPU EP" in str(error):
                raise Elsewhere(f"{provider} cannot start or leaves nodes to the CPU") from error
            raise
        if session.get_providers()[0] != provider:
            raise Elsewhere(f"{provider} was asked for, {session.get_providers()[0]} came")
        names = [output.name for output in session.get_outputs()]
        answers = [np.asarray(y) for y in session.run(names, feeds)]
        if options.enable_profiling:
            ran_elsewhere(json.loads(Path(session.end_profiling()).read_text()), provider)
    return dict(zip(names, answers, strict=True))


def ran_elsewhere(events: Iterable[dict], provider: str) -> None:
    """Raise Elsewhere if, by onnxruntime's profile, a node ran on another provider, or none ran at all."""
    nodes = [event["args"] for event in events if event.get("cat") == "Node"]
    ran = [node for node in nodes if node.get("provider")]
    if not ran:
        raise Elsewhere(f"no node of {provider} is in onnxruntime's profile")
    for node in ran:
        if node["provider"] != provider:
            raise Elsewhere(f"a node {node['op_name']} ran on {node['provider']}, not on {provider}")


def devices(path: str | None = None) -> list[Device]:
    """The providers of the installed onnxruntime, without "ExecutionProvider": "CPU", "CUDA", "WebGPU"."""
    if missing("onnxruntime", "onnx", "onnxruntime"):
        return []
    import onnxruntime

    return [Device(name.removesuffix(_SUFFIX), name) for name in onnxruntime.get_available_providers()]


def find(
    device: str = "cpu", threads: int = 2, timeout: float = 300.0, model_files: ModelFiles | None = None, **_
) -> list[EngineSearch]:
    """The installed onnxruntime. device: one of its providers, in any case"""
    name = "onnxruntime"
    if absent := missing(name, "onnx", name):
        return absent
    there = {one.name.lower(): one for one in devices()}
    if device.lower() not in there:
        listed = ", ".join(one.name for one in there.values())
        return [EngineSearch(f"{name}@{device}", None, f"this onnxruntime has no {device}, only {listed}")]
    provider = there[device.lower()]
    settings = {"threads": threads, "provider": provider.title}
    shared = {"timeout": timeout, "model_files": model_files, "outputs_last": True}
    made = partial(OnnxEngine, module=name, version=onnxruntime_version(), **shared)
    if provider.name != "CPU":
        title = f"{name}@{provider.name}"
        engines = [made(title, numerics=ONNX_F32, settings=settings, device=provider.title)]
    else:
        in_float32, in_integers = settings | {"entries": {_LEVEL: "1"}}, settings | _INTEGERS
        written = {"refusal": _no_tool_writes, "quantized": True}
        first = made(name, numerics=ONNXRUNTIME_Q8, settings=settings, refusal=_groups_in_8_bits)
        beside = partial(made, process=first.process)
        engines = [
            first,
            beside(f"{name}-f32", numerics=ONNXRUNTIME_CPU, settings=in_float32, refusal=_without_blocks),
            beside(f"{name}-qdq", numerics=ONNXRUNTIME_DYNAMIC, settings=in_integers, **written),
        ]
    return [EngineSearch(engine.name, engine) for engine in engines]


def _without_blocks(case: Case) -> str | None:
    """Refuse what onnxruntime computes alike, however it is told to treat weights in blocks."""
    types = [recipe.type for recipe in case.inputs.values()] + ([case.model.type] if case.model else [])
    blocks = case.op == "linear_w4a16" or (case.op != "dequantize" and {*types} & {*_BLOCKS})
    return None if blocks else "it has no weights in blocks"


def _groups_in_8_bits(case: Case) -> str | None:
    """Refuse weights in groups of any width, beside which activations have a scale for as many numbers."""
    return "activations would be rounded to 8 bits in groups" if case.op == "linear_w4a16" else None


def _no_tool_writes(case: Case) -> str | None:
    """Refuse what is no linear layer, and codes that no graph of QuantizeLinear or DynamicQuantizeLinear has."""
    if case.op == "linear" and case.inputs["weight"].type == "i8":
        return None
    if case.op not in ("linear_int8", "conv2d_int8"):
        return "it is no product of integers"
    if "x_scale" in case.inputs:
        convolved = (
            "between QuantizeLinear and DequantizeLinear it convolves floats, unless the result is rounded, too"
        )
        return convolved if case.op == "conv2d_int8" and "y_scale" not in case.inputs else None
    of_all = case.op == "conv2d_int8" or case.params.get("scales") == "tensor"
    dynamic = case.params.get("zero_point") and of_all
    return None if dynamic else "DynamicQuantizeLinear has one scale and one zero point for the tensor"


def onnxruntime_version() -> str:
    """Of whichever distribution brought the module: onnxruntime, onnxruntime-gpu, onnxruntime-webgpu, ..."""
    import onnxruntime

    return onnxruntime.__version__
