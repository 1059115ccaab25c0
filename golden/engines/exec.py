"""Any program as an engine: a JSON request on stdin, tensors in safetensors files.

The protocol is in exec_protocol.md beside this file.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from refsd.golden import operations
from refsd.golden.case import Case
from refsd.golden.deviations import Deviation
from refsd.golden.engines import EngineFailure, Found, ModelFiles
from refsd.golden.engines.exec_description import Description, read_description
from refsd.golden.numerics import Numerics
from refsd.golden.tensor import SCALAR_TYPES, StoredTensor

PROTOCOL = 1
_MAX_DESCRIPTION = 1 << 20
_MAX_OUTPUT = 256 << 20
_LAST_WORDS = 300

# safetensors' names of the types.
_DTYPES = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "I64": "i64",
    "I32": "i32",
    "I16": "i16",
    "I8": "i8",
    "U8": "u8",
    "BOOL": "bool",
}


class Program:
    """
    command:    the program and its own arguments
    timeout:    seconds that one request may take
    max_output: bytes that it may write
    """

    def __init__(self, command: list[str], timeout: float, max_output: int = _MAX_OUTPUT):
        self.command = command
        self.timeout = timeout
        self.max_output = max_output

    def ask(self, request: Mapping[str, Any], folder: Path, max_output: int | None = None) -> bytes:
        """Run the program once, in a fresh `folder` -> what it wrote to request["output"].

        Raises EngineFailure in one line, with the program's own last words.
        """
        output, log = Path(request["output"]), folder / "log.txt"
        (folder / "request.json").write_text(json.dumps({"protocol": PROTOCOL, **request}) + "\n")
        with (folder / "request.json").open("rb") as stdin, log.open("wb") as words:
            try:
                process = subprocess.Popen(
                    self.command, stdin=stdin, stdout=words, stderr=words, start_new_session=True
                )
            except OSError as error:
                raise EngineFailure(f"{self.command[0]} does not start: {error.strerror}") from None
            try:
                self._wait(process, folder)
            finally:
                _end(process)
        if process.returncode != 0:
            raise EngineFailure(f"{_ending(process.returncode)}: {_last_words(log)}")
        if not output.is_file():
            raise EngineFailure(f"it ended well but wrote no {output.name}: {_last_words(log)}")
        if output.stat().st_size > (max_output or self.max_output):
            raise EngineFailure(f"{output.name} has {output.stat().st_size} bytes: too many")
        return output.read_bytes()

    def _wait(self, process: subprocess.Popen, folder: Path) -> None:
        there = _bytes_in(folder)
        deadline = time.monotonic() + self.timeout
        pause = 0.002
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise EngineFailure(f"no answer after {self.timeout:g} s")
            if _bytes_in(folder) - there > self.max_output:
                raise EngineFailure(f"it wrote more than {self.max_output >> 20} MiB")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)


class ExecEngine:
    """A program that has described itself."""

    def __init__(self, program: Program, description: Description, model_files: ModelFiles | None):
        self.name = description.name
        self.version = description.version
        self._program = program
        self._description = description
        self._model_files = model_files

    def refuses(self, case: Case) -> str | None:
        offer = self._description.ops.get(case.op)
        if offer is None:
            return f"{self.name} has no {case.op}"
        if case.model is not None and self._model_files is None:
            return "no folder to write the model's weights to"
        taken = [recipe.type for recipe in case.inputs.values()]
        foreign = [kind for kind in taken if offer.types is not None and kind not in offer.types]
        for asked, offered in (("sampler", offer.samplers), ("schedule", offer.schedules)):
            if offered is not None and case.params.get(asked, offered[0] if offered else None) not in offered:
                return f"{self.name} has no {asked} {case.params[asked]}"
        return f"{self.name} takes no {foreign[0]} in {case.op}" if foreign else None

    def numerics(self, case: Case) -> Numerics:
        return self._description.numerics_of(case.op)

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return self._description.deviations_of(case.op)

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        known = case.op in operations.OPERATIONS
        params = operations.complete(case.op, inputs, case.params) if known else case.params
        with tempfile.TemporaryDirectory(prefix="refsd-exec-") as name:
            folder = Path(name)
            _write_tensors(inputs, folder / "inputs.safetensors")
            request: dict[str, Any] = {
                "request": "run",
                "case": case.name,
                "op": case.op,
                "params": params,
                "inputs": str(folder / "inputs.safetensors"),
                "types": {name: tensor.type for name, tensor in inputs.items()},
                "shapes": {name: list(tensor.shape) for name, tensor in inputs.items()},
                "output": str(folder / "output.safetensors"),
            }
            if case.model is not None and self._model_files is not None:
                request["model"] = {
                    "family": case.model.family,
                    "type": case.model.type,
                    "tiny": case.model.tiny,
                    "file": str(self._model_files(case.model, "ldm")),
                }
            return _read_tensors(self._program.ask(request, folder))


def _write_tensors(tensors: Mapping[str, StoredTensor], path: Path) -> None:
    """Scalar types as they are; blocks as U8 [rows, bytes in a row]."""
    arrays = {}
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor.data)
        arrays[name] = data if tensor.type in SCALAR_TYPES else data.reshape(*tensor.shape[:-1], -1)
    safetensors.numpy.save_file(arrays, path)


def _read_tensors(data: bytes) -> dict[str, np.ndarray]:
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise EngineFailure(f"output.safetensors is none: {error}") from None
    outputs = {}
    for name, entry in found:
        if entry["dtype"] not in _DTYPES:
            raise EngineFailure(f"output.safetensors: {name} has type {entry['dtype']}, expected F32 or the like")
        dtype = SCALAR_TYPES[_DTYPES[entry["dtype"]]]
        outputs[name] = np.frombuffer(bytes(entry["data"]), dtype).reshape(entry["shape"])
    return outputs


def _bytes_in(folder: Path) -> int:
    # A program may remove its own files while they are counted.
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
    return total


def _last_words(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        words = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return words[-1][-_LAST_WORDS:] if words else "it said nothing"


def _ending(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end(process: subprocess.Popen) -> None:
    """End the program and what it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def find(
    path: str | None = None, model_files: ModelFiles | None = None, timeout: float = 600.0, **_
) -> list[Found]:
    """The program `path` ("./engine", "python3 engine.py --fast"), once it has described itself."""
    if not path:
        return [Found("exec", None, "give exec:PROGRAM")]
    try:
        program = Program(shlex.split(path), timeout)
    except ValueError as error:
        return [Found("exec", None, f"{path}: {error}")]
    with tempfile.TemporaryDirectory(prefix="refsd-exec-") as name:
        folder = Path(name)
        request = {"request": "describe", "output": str(folder / "description.json")}
        try:
            description = read_description(program.ask(request, folder, _MAX_DESCRIPTION))
        except EngineFailure as error:
            return [Found("exec", None, f"{path}: {error}")]
    return [Found(description.name, ExecEngine(program, description, model_files))]
