"""What `refsd forward` does: read and check everything, compute, write whole files."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from refsd import __version__
from refsd.adapters import open_loras
from refsd.components import COMPONENTS, check, forward, load, offered, resolve
from refsd.engine import one_answer
from refsd.golden.arithmetic import named
from refsd.golden.errors import BadInput
from refsd.golden.tensor import SCALAR_TYPES, stored
from refsd.module import Module, Taps
from refsd.progress import compile_progress
from refsd.weights import Checkpoint, open_checkpoint, open_weights
from refsd.weights.writers import Spec, write_safetensors

PATIENCE = 2.0  # seconds that pass in silence


class Request(NamedTuple):
    """The command line of `refsd forward`."""

    model: Path | None
    parts: Mapping[str, Path]
    component: str
    inputs: Path
    out: Path
    numerics: str
    deviations: list[str]
    params: list[str]
    taps: Path | None
    tap: str
    tap_ops: bool
    json: bool
    loras: list[str]


class _Progress(Taps):
    """Taps that also say on stderr, after two seconds, which block is done."""

    def __init__(self, label: str, pattern: str, ops: bool):
        super().__init__(pattern, ops)
        self.label = label
        self.started = time.monotonic()
        self.status = Console(file=sys.stderr).status("")

    def record(self, name: str, value: np.ndarray) -> None:
        super().record(name, value)
        passed = time.monotonic() - self.started
        if passed > PATIENCE:
            self.status.update(f"{self.label}: {name} done, {passed:.0f} s")
            self.status.start()


def run(request: Request) -> None:
    """Raises BadInput, in one line, before anything is computed or written."""
    if request.component not in offered():
        raise BadInput(f"--component {request.component}: expected one of {', '.join(offered())}")
    arithmetic = named(request.numerics, request.deviations)
    checkpoint = open_checkpoint(request.model, request.parts)
    request = request._replace(component=resolve(checkpoint, request.component))
    m, params = load(checkpoint, request.component, arithmetic, loras=open_loras(request.loras, checkpoint))
    params |= _params(request)
    inputs = {name: _values(request.inputs, name, tensor) for name, tensor in open_weights(request.inputs).items()}
    check(request.component, m, inputs, params, str(request.inputs))

    outputs, taps = _compute(request, m, inputs, params)
    metadata = {
        "tool": "refsd forward",
        "version": __version__,
        "component": request.component,
        "numerics": request.numerics,
        "deviations": ", ".join(request.deviations),
        "params": json.dumps(params),
        "loras": ", ".join(Path(lora).name for lora in request.loras),
        "model": checkpoint.path.name,
        "model_header_sha256": header_sha256(checkpoint, request.component),
    }
    write(request.out, outputs, metadata)
    if request.taps is not None:
        write(request.taps, taps, metadata)
    _report(request, outputs)


def _params(request: Request) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for setting in request.params:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadInput(f"--param {setting}: expected NAME=VALUE")
        params[name] = int(value) if value.isdecimal() and len(value) < 19 else value
    return params


def _values(path: Path, name: str, tensor) -> np.ndarray:
    if tensor.type not in SCALAR_TYPES or tensor.type == "bool":
        raise BadInput(f"{path}: tensor {name} is {tensor.type}, expected floats or integers")
    return tensor.values()


def _compute(request: Request, m: Module, inputs: Mapping[str, np.ndarray], params) -> tuple[dict, Taps]:
    nothing = ""
    taps = _Progress(
        f"{request.component} in {request.numerics}",
        request.tap if request.taps is not None else nothing,
        request.tap_ops and request.taps is not None,
    )
    m.taps = taps
    with compile_progress(), one_answer(m.arithmetic.numerics):
        try:
            outputs = forward(request.component, m, inputs, params, str(request.inputs), also=True)
        finally:
            taps.status.stop()
    return outputs, taps


def header_sha256(checkpoint: Checkpoint, component: str) -> str:
    """A fingerprint of names, types, shapes and offsets: of the file's bytes before its first tensor."""
    file = checkpoint.components[COMPONENTS[component].part or ""].weights.file
    first = min(header.offset for header in file.headers.values())
    with open(file.path, "rb") as raw:
        return hashlib.sha256(raw.read(first)).hexdigest()


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """All tensors in one safetensors file, whole or not at all."""
    ours = {name: stored(np.ascontiguousarray(array)) for name, array in tensors.items()}
    write_safetensors(path, {name: Spec(t.type, t.shape) for name, t in ours.items()}, ours.values(), metadata)


def _report(request: Request, outputs: Mapping[str, np.ndarray]) -> None:
    rows = [
        {
            "name": name,
            "shape": list(y.shape),
            "dtype": str(y.dtype),
            "min": float(wide.min()),
            "max": float(wide.max()),
            "rms": float(np.sqrt(np.mean(wide**2))),
        }
        for name, y in outputs.items()
        for wide in [np.asarray(y, np.float64)]
    ]
    if request.json:
        print(json.dumps({"out": str(request.out), "outputs": rows}, indent=1))
        return
    for row in rows:
        print(
            f"{row['name']:8} {row['dtype']} {row['shape']}  min {row['min']:.6g}  max {row['max']:.6g}  "
            f"rms {row['rms']:.6g}"
        )
