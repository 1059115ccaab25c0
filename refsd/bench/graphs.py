"""Contenders that compile a graph first: onnxruntime and OpenVINO, on diffusers' UNet and autoencoder of SD 1.5.

The graph is made by another process, python -m refsd.bench.graphs WHAT FORMAT FOLDER, so that a contender's peak
memory is that of the engine alone.
"""

import atexit
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refsd.bench.row import Absent
from refsd.bench.sd15 import COMPONENTS, ROWS, inputs

# format -> the file that an engine opens; its weights lie beside it
FILES = {"onnx": "model.onnx", "openvino": "model.xml"}


def module(what: str):
    """Build diffusers' UNet ("unet") or decoder ("vae") of SD 1.5 with random weights, whose values cost no time.

    -> torch.nn.Module, called with the worker's inputs in their order. Raises Absent without torch or diffusers.
    """
    try:
        import diffusers
        import torch
    except ImportError as error:
        raise Absent(f"{error.name} is not installed") from None

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    if what == "unet":
        whole = diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
        run = lambda x, t, context: whole(x, t, context, return_dict=False)[0]
    else:
        whole = diffusers.AutoencoderKL(
            block_out_channels=(128, 256, 512, 512),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=2,
        )
        run = lambda z: whole.decode(z, return_dict=False)[0]

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = whole

        def forward(self, *inputs):
            return run(*inputs)

    return Part().eval()


def write(what: str, format: str, folder: Path) -> None:
    """Write the graph, in float32 and for the worker's shapes."""
    import torch

    values = {name: torch.from_numpy(value) for name, value in inputs(what).items()}
    part, file = module(what), folder / FILES[format]
    if format == "onnx":
        # The other exporter (dynamo) takes several times as long. Beyond 2 GiB it wants the name as a str.
        torch.onnx.export(part, tuple(values.values()), str(file), input_names=list(values), dynamo=False)
        return
    import openvino

    shapes = [tuple(value.shape) for value in values.values()]
    graph = openvino.convert_model(part, example_input=tuple(values.values()), input=shapes)
    openvino.save_model(graph, file, compress_to_fp16=False)


def _written(what: str, format: str, needs: str) -> Path:
    """Write the graph by another process, to a file that stays until this one ends.

    Raises Absent with the other process's last line.
    """
    if what not in COMPONENTS:
        raise Absent("not asked: only unet and vae are exported")
    for package in (needs, "torch", "diffusers", *(["onnx"] if format == "onnx" else [])):
        if importlib.util.find_spec(package) is None:
            raise Absent(f"{package} is not installed")
    folder = tempfile.mkdtemp(prefix="refsd-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-P", "-m", "refsd.bench.graphs", what, format, folder]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Absent(f"the export failed: {(made.stderr.strip() or 'no message').splitlines()[-1]}")
    return Path(folder) / FILES[format]


def onnxruntime_rows(what: str, threads: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Prepare onnxruntime's CPU provider. -> (row -> function to time, setup)"""
    file = _written(what, "onnx", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    values = inputs(what)
    return {ROWS[what]: lambda: session.run(None, values)}, {"version": onnxruntime.__version__, "threads": threads}


def openvino_rows(what: str, threads: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Prepare OpenVINO's CPU plugin, in float32: by its own choice it would compute in bfloat16 where it can."""
    file = _written(what, "openvino", "openvino")
    import openvino

    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.compile_model(file, "CPU", hints).create_infer_request()
    values = list(inputs(what).values())
    setup = {"version": openvino.__version__.split("-")[0], "threads": threads, "hint": "f32"}
    return {ROWS[what]: lambda: request.infer(values)}, setup


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
