"""Run any program as an engine: a JSON request on stdin, tensors in safetensors files.

The protocol is in protocol.md beside this file.
"""

import fnmatch
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refsd.engines.exec.answer_files import read_tensors
from refsd.engines.exec.description import Description, read_description
from refsd.engines.exec.program import Program
from refsd.engines.exec.served import ServedProgram
from refsd.engines.exec.start_hints import start_hint
from refsd.engines.relocation import command
from refsd.engines.work_folder import WorkFolder
from refsd.files.writers import Spec, write_safetensors
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch, ModelFiles
from refsd.judges import judges
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.deviations import Deviation
from refsd.numerics.printable import printable
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored

EXAMPLE = "exec:PROGRAM"
_MAX_DESCRIPTION = 1 << 20
# Seconds that a description may take at least, however short the time for an answer: interpreters start slowly.
_DESCRIBING = 60.0
_OUTPUT, _TAPS = "output.safetensors", "taps.safetensors"
# Integer types of indices and masks. An operation asks for them whatever its other arguments are stored in, so they
# are taken unless `types` names one of them; codes of weights (i8, u8) are as any other storage.
_INDICES = ("i32", "i64")

# The receiver of requests: a program started once for each request, or one process that serves all of them.
Asked = Program | ServedProgram


class ExecEngine:
    """An exec program whose description has been read and checked.

    tap_names: a glob: the taps that it is asked for
    """

    def __init__(
        self, program: Program, description: Description, model_files: ModelFiles | None, tap_names: str = "*"
    ):
        self._tap_names = tap_names
        self.name = description.name
        self.version = description.version
        self._program = program
        self._asked: Asked = program
        self._description = description
        self._model_files = model_files
        self.declared = tuple(description.ops)

    @property
    def timeout(self) -> float:
        """Return how many seconds an answer may take."""
        return self._program.timeout

    @property
    def hint(self) -> str:
        """Return why the current request may wait in vain; "" if nothing is known."""
        return self._asked.hint if isinstance(self._asked, ServedProgram) else ""

    def refuses(self, case: Case) -> str | None:
        offer = self._description.ops.get(case.op)
        if offer is None:
            return f"{self.name} has no {case.op}"
        if case.model is not None and self._model_files is None:
            return "no folder to write the model's weights to"
        if case.model is not None and offer.weights is not None and case.model.type not in offer.weights:
            return f"{self.name} takes no weights of type {case.model.type} in {case.op}"
        taken = [recipe.type for recipe in case.inputs.values()]
        known = (*SCALAR_TYPES, *BLOCK_TYPES) if offer.types is None else offer.types
        known = known if any(kind in known for kind in _INDICES) else (*known, *_INDICES)
        foreign = [kind for kind in taken if kind not in known]
        for name, offered in (("sampler", offer.samplers), ("schedule", offer.schedules)):
            if offered is not None and name in case.params and case.params[name] not in offered:
                return f"{self.name} has no {name} {case.params[name]}"
        for name, had in offer.params.items():
            if name in case.params and case.params[name] not in had:
                return printable(f"{self.name} has no {name} {case.params[name]}", 200)
        beyond = [name for name in case.inputs if offer.inputs is not None and name not in offer.inputs]
        if beyond:
            return f"{self.name} takes no {beyond[0]} in {case.op}"
        return f"{self.name} takes no {foreign[0]} in {case.op}" if foreign else None

    def numerics(self, case: Case) -> Numerics:
        return self._description.numerics_of(case.op)

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return self._description.deviations_of(case.op)

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        return self._run(case, inputs, self._asked, tapped=False)[0]

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        return self._run(case, inputs, self._asked, self._description.ops[case.op].taps)

    def can_force(self, case: Case) -> bool:
        offer = self._description.ops[case.op]
        return offer.taps and offer.forced

    def run_forced(
        self, case: Case, inputs: Mapping[str, StoredTensor], forced: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        return self._run(case, inputs, self._asked, True, forced)

    def _run(
        self,
        case: Case,
        inputs: Mapping[str, StoredTensor],
        program: Asked,
        tapped: bool,
        forced: Mapping[str, np.ndarray] | None = None,
    ):
        params = judges().of(case).complete(case, inputs)
        with WorkFolder("refsd-exec-") as folder:
            given = folder.given / "inputs.safetensors"
            _write_tensors(inputs, given)
            request: dict[str, Any] = {
                "request": "run",
                "case": secrets.token_hex(8),  # random: the case's name would lead to its golden
                "op": case.op,
                "params": params,
                "inputs": str(given),
                "types": {name: tensor.type for name, tensor in inputs.items()},
                "shapes": {name: list(tensor.shape) for name, tensor in inputs.items()},
            }
            if case.model is not None and self._model_files is not None:
                request["model"] = {
                    "family": case.model.family,
                    "type": case.model.type,
                    "tiny": case.model.tiny,
                    "sizes": dict(case.model.sizes or ()),
                    "file": os.path.abspath(self._model_files(case.model, "ldm")),
                }
            if forced is not None:
                request["forced"] = str(folder.given / "forced.safetensors")
                _write_tensors({name: stored(y) for name, y in forced.items()}, Path(request["forced"]))
            if tapped:
                request |= {"taps": str(folder.work / _TAPS), "tap_names": self._tap_names}
            outputs = read_tensors(program.ask(request, folder, _OUTPUT), _OUTPUT)
            if not tapped:
                return outputs, {}
            taps = read_tensors(folder.read(_TAPS, self._program.max_output), _TAPS)
            return outputs, {name: y for name, y in taps.items() if fnmatch.fnmatchcase(name, self._tap_names)}


class ServingEngine(ExecEngine):
    """An exec program that serves all requests in one process; a single case can also get a fresh process."""

    def __init__(
        self, program: Program, description: Description, model_files: ModelFiles | None, tap_names: str = "*"
    ):
        super().__init__(program, description, model_files, tap_names)
        self._asked = ServedProgram(program)

    def run_alone(
        self, case: Case, inputs: Mapping[str, StoredTensor], tapped: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        tapped = tapped and self._description.ops[case.op].taps
        return self._run(case, inputs, self._program, tapped)


def _write_tensors(tensors: Mapping[str, StoredTensor], path: Path) -> None:
    """Write the inputs as safetensors, one at a time: scalar types as they are, block types as U8 [rows, bytes].

    Those of wide numbers come first, so that each lies at a multiple of its width.
    """
    stores = ((name, stored(tensor.storable())) for name, tensor in tensors.items())
    specs = {name: Spec(tensor.type, tensor.shape) for name, tensor in stores}
    specs = dict(sorted(specs.items(), key=lambda item: -SCALAR_TYPES[item[1].type].itemsize))
    write_safetensors(path, specs, (stored(tensors[name].storable()) for name in specs))


def find(
    path: str | None = None, model_files: ModelFiles | None = None, timeout: float = 600.0, taps: str = "*", **_
) -> list[EngineSearch]:
    """Ask the program `path` ("./engine", "python3 engine.py --fast") for its description and make it an engine.

    taps: a glob: those that it is asked for
    """
    if not path:
        return [EngineSearch("exec", None, "give exec:PROGRAM")]
    if os.name != "posix":
        return [EngineSearch("exec", None, "programs can be judged on Linux and macOS")]
    try:
        program, describing = Program(command(path), timeout), Program(command(path), max(timeout, _DESCRIBING))
        with WorkFolder("refsd-exec-") as folder:
            text = describing.ask({"request": "describe"}, folder, "description.json", _MAX_DESCRIPTION)
            description = read_description(text)
    except (EngineFailure, ValueError) as error:
        return [EngineSearch("exec", None, printable(f"{path}: {error}{start_hint(path, str(error))}"))]
    kind = ServingEngine if description.serve else ExecEngine
    return [EngineSearch(description.name, kind(program, description, model_files, taps))]
