"""Run `refsd forward`: read and check all inputs, compute, write complete files."""

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd import __version__
from refsd.components import COMPONENTS, check, forward, load, offered, resolve
from refsd.files.formats import open_weights
from refsd.files.tensor_files import check_name, write_arrays
from refsd.golden.named_numerics import named
from refsd.golden.output_file import Outputs
from refsd.golden.wording import counted, did_you_mean
from refsd.module import Module, Taps
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import one_answer
from refsd.numerics.tensor import SCALAR_TYPES, stored
from refsd.progress.compiling import compile_progress
from refsd.progress.taps import ShownTaps
from refsd.weights import Checkpoint, open_checkpoint
from refsd.weights.loras import open_loras


class ForwardRequest(NamedTuple):
    """Command-line arguments of `refsd forward`."""

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
    lora_rule: str = "trainer"


def run(request: ForwardRequest) -> None:
    """Run the component, write its outputs. Raises BadInput, in one line, before computing or writing anything."""
    if request.component not in offered():
        meant = did_you_mean(request.component, offered())
        raise BadInput(f"--component {request.component}{meant}: expected one of {', '.join(offered())}")
    arithmetic = named(request.numerics, request.deviations)
    checkpoint = open_checkpoint(request.model, request.parts)
    request = request._replace(component=resolve(checkpoint, request.component))
    loras = open_loras(request.loras, checkpoint, request.lora_rule)
    m, params = load(checkpoint, request.component, arithmetic, loras=loras)
    params |= _params(request)
    inputs = {name: _values(request.inputs, name, tensor) for name, tensor in open_weights(request.inputs).items()}
    check(request.component, m, inputs, params, str(request.inputs))
    _check_outputs(request, arithmetic.numerics.storage_dtype)

    outputs, taps = _compute(request, m, inputs, params)
    metadata = {
        "tool": "refsd forward",
        "version": __version__,
        "component": request.component,
        "numerics": request.numerics,
        "deviations": ", ".join(request.deviations),
        "params": json.dumps(params),
        "loras": ", ".join(Path(lora).name for lora in request.loras),
        **({"lora_rule": request.lora_rule} if request.loras else {}),
        "model": checkpoint.path.name,
        "model_header_sha256": header_sha256(checkpoint, request.component),
    }
    write_arrays(request.out, outputs, metadata)
    if request.taps is not None:
        write_arrays(request.taps, taps, metadata)
    _report(request, outputs, len(taps))


def _check_outputs(request: ForwardRequest, dtype: np.dtype) -> None:
    """Raise BadInput now for outputs that could not be written after the computation."""
    component, outputs = COMPONENTS[request.component], Outputs()
    type = stored(np.zeros(0, dtype)).type
    check_name(request.out, [*component.outputs, *component.also], [type])
    outputs.add("--out", request.out)
    if request.taps is not None:
        check_name(request.taps, types=[type])
        outputs.add("--taps", request.taps)


_TRUTHS = {"true": True, "false": False}


def _params(request: ForwardRequest) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for setting in request.params:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadInput(f"--param {setting}: expected NAME=VALUE")
        numbers = [int(part) for part in value.split(",") if part.isdecimal() and len(part) < 19]
        whole = len(numbers) == value.count(",") + 1
        params[name] = _TRUTHS.get(value, value) if not whole else numbers if len(numbers) > 1 else numbers[0]
    return params


def _values(path: Path, name: str, tensor) -> np.ndarray:
    if tensor.type not in SCALAR_TYPES:
        raise BadInput(f"{path}: tensor {name} is {tensor.type}, expected floats or integers, or bool for a mask")
    return tensor.values()


def _compute(request: ForwardRequest, m: Module, inputs: Mapping[str, np.ndarray], params) -> tuple[dict, Taps]:
    nothing = ""
    requested = request.taps is not None
    wanted = ShownTaps(
        f"{request.component} in {request.numerics}",
        request.tap if requested else nothing,
        request.tap_ops and requested,
    )
    with compile_progress(), one_answer(m.arithmetic.numerics), wanted as taps:
        m.taps = taps
        outputs = forward(request.component, m, inputs, params, str(request.inputs), also=True)
    return outputs, taps


def header_sha256(checkpoint: Checkpoint, component: str) -> str:
    """Return the SHA-256 of the file's bytes before its first tensor: of names, types, shapes and offsets."""
    file = checkpoint.components[COMPONENTS[component].part or ""].weights.file
    first = min(header.offset for header in file.headers.values())
    with open(file.path, "rb") as raw:
        return hashlib.sha256(raw.read(first)).hexdigest()


def _report(request: ForwardRequest, outputs: Mapping[str, np.ndarray], taps: int) -> None:
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
    if request.taps is not None:
        lists = f": `refsd info --tensors {shlex.quote(str(request.taps))}` lists them with their shapes"
        print(f"{counted(taps, 'tap')} in {request.taps}{lists if request.taps.suffix == '.safetensors' else ''}")
