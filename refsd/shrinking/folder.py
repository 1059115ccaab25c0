"""A failing case as a folder that reproduces it: read it back, and judge it again.

case.json              the question, the engine that fails it, and what it was reduced from
inputs.safetensors     its tensors; blocks as uint8, a row of bytes for each row
expected.safetensors   truth (float64), limit (what an honest engine may be off), found (the engine's answer);
                       of what is no operation truth.NAME and found.NAME of each output
place.safetensors      of a model in which no operation fails alone: the operation at the first wrong tap,
                       its inputs by name, truth (float64), and found (the engine's tap)
reproduce.py           asks an engine and judges its answer
reproduce_ggml.cpp     the same by ggml, for engines that compute with it and operations that it has
issue.md               the text of an issue
"""

import math
import os
import shlex
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from refsd import __version__
from refsd.engines.reference import Reference
from refsd.engines.registry import Argument
from refsd.files.safetensors import open_safetensors
from refsd.golden import operations
from refsd.golden.case import Case
from refsd.golden.conform import Answered
from refsd.golden.engine import Engine, EngineFailure, ModelFiles
from refsd.golden.given_case import GivenCase
from refsd.golden.input_file import read_input
from refsd.golden.judge import Answer
from refsd.golden.operations import OPERATIONS
from refsd.golden.output_file import replaced_folder
from refsd.golden.report import Result
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor
from refsd.requests.isolated_engine import IsolatedEngine
from refsd.requests.random_case import LAYOUTS
from refsd.shrinking import ggml_program, issue
from refsd.shrinking.failure import Cut, ask, runner_of
from refsd.shrinking.shrink import Shrunk

CASE, INPUTS, EXPECTED = "case.json", "inputs.safetensors", "expected.safetensors"
PLACE = "place.safetensors"
PYTHON, CPP, ISSUE = "reproduce.py", "reproduce_ggml.cpp", "issue.md"
# What a script catches: the folder is damaged, or the engine is missing or does not take the case.
REFUSED = (BadInput, EngineFailure)
_LARGEST = 1 << 20  # bytes of a case.json
_MOST = 1 << 26  # numbers of one tensor


class Note(msgspec.Struct, frozen=True):
    """case.json

    refsd:    version
    engine:   as the command line calls it
    case:     the question; its recipes say shapes and types, the numbers are in inputs.safetensors
    original: the case that it was reduced from
    layout:   how the tensors lie in memory, for an engine that takes them so
    """

    refsd: str
    engine: str
    case: Case
    original: Case
    layout: str = "contiguous"


class FolderCase(GivenCase, frozen=True):
    """layout: how the tensors lie in memory, for an engine that takes them so"""

    layout: str = "contiguous"


_SCRIPT = '''r"""{op}: ask an engine, and judge its answer by the bound beside it.

    python {script} [ENGINE]

in the folder where refsd was run, so that the engine's path holds. ENGINE as `refsd conform` takes it; if none is
given, {engine}. Exit code 0: it conforms. 1: it is wrong. 2: it cannot be asked.
"""
import sys
from pathlib import Path

from refsd.engines.chosen import one_engine
from refsd.weights.model_files import model_files
from refsd.shrinking.folder import REFUSED, judge, read

try:
    case, engine = read(Path(__file__).parent), one_engine(*sys.argv[1:] or [{argument!r}])
    result = judge(engine, case, model_files)
except REFUSED as error:
    print(error, file=sys.stderr)
    sys.exit(2)
print(f"{{engine.name}} {{engine.version}}: {{result.status}}. {{result.reason}}")
sys.exit(0 if result.conforms else 1)
'''


def write(
    folder: Path,
    shrunk: Shrunk,
    engine: Engine,
    argument: str,
    model_files: ModelFiles | None = None,
    final: Path | None = None,
) -> list[str]:
    """Write the folder in place of one that was written so before -> the names of its files.

    argument:    the engine, as the command line calls it
    model_files: gives the file of a model's recipe weights
    final:       where the folder will be, if it is moved

    Raises BadInput where something else is there.
    """
    case = shrunk.case
    script = shlex.quote((from_here(folder if final is None else final) / PYTHON).as_posix())
    answered = _answered(engine, case, model_files)
    files: dict[str, bytes] = {
        CASE: msgspec.json.format(msgspec.json.encode(_note(shrunk, engine, argument)), indent=1) + b"\n",
        INPUTS: safetensors.numpy.save({name: tensor.storable() for name, tensor in case.tensors.items()}),
        PYTHON: _SCRIPT.format(op=case.op, engine=shlex.quote(argument), argument=argument, script=script).encode(),
    }
    expected: dict[str, np.ndarray] = {}
    if answered is not None:
        expected = _expected(answered)
        files[EXPECTED] = safetensors.numpy.save(expected)
        of_ggml = case.op in OPERATIONS and _computes_with_ggml(argument, answered)
        program = ggml_program.source(engine.name, answered.standard) if of_ggml else None
        if program is not None:
            files[CPP] = program.encode()
    place = _place(shrunk.cut)
    if place:
        files[PLACE] = safetensors.numpy.save(place)
    files[ISSUE] = issue.text(
        shrunk, engine, f"{script} {shlex.quote(argument)}", expected, CPP in files, layout_of(engine)
    ).encode()
    with replaced_folder(folder, CASE) as part:
        for name, content in files.items():
            (part / name).write_bytes(content)
    return list(files)


def from_here(folder: Path) -> Path:
    """Return the path from the working folder, or the absolute one if it is on another drive of Windows."""
    try:
        return Path(os.path.relpath(folder))
    except ValueError:
        return folder.absolute()


def _note(shrunk: Shrunk, engine: Engine, argument: str) -> Note:
    case, original = shrunk.case, shrunk.original
    plain = Case(case.name, case.op, case.inputs, case.params, case.model)
    first = Case(original.name, original.op, original.inputs, original.params, original.model)
    return Note(__version__, argument, plain, first, layout_of(engine))


def _computes_with_ggml(argument: str, answered: Answered) -> bool:
    """Return True for ggml, and for a program that declares ggml's numerics."""
    return Argument.of(argument).kind == "ggml" or answered.standard.numerics.name.startswith("ggml")


def layout_of(engine: Engine) -> str:
    """How an engine's tensors lie in memory."""
    return engine.layout if isinstance(engine, IsolatedEngine) and engine.any_layout else "contiguous"


def _place(cut: Cut | None) -> dict[str, np.ndarray]:
    """The operation at a wrong tap, if it is the only one there."""
    if cut is None or len(cut.operations) != 1:
        return {}
    (case,) = cut.operations
    inputs = {name: tensor.storable() for name, tensor in case.tensors.items()}
    truth = Reference(FLOAT64).run(case, case.tensors)["y"]
    return {**inputs, "truth": np.ascontiguousarray(truth), "found": np.ascontiguousarray(cut.actual)}


def _answered(engine: Engine, case: Case, model_files: ModelFiles | None) -> Answered | None:
    """The engine's answer beside the truth; None where there is none."""
    kept: list[Answered] = []
    ask(runner_of(model_files)._replace(measured=kept.append, explains=False), engine, case)
    return kept[0] if kept else None


def _expected(answered: Answered) -> dict[str, np.ndarray]:
    """truth, limit and found of an operation; of other cases truth.NAME and found.NAME of every output."""
    standard = answered.standard
    if standard.case.op not in OPERATIONS:
        answers = {"truth": standard.truth, "found": answered.actual}
        return {
            f"{of}.{name}": np.array(y, np.float64, order="C")
            for of, answer in answers.items()
            for name, y in answer.items()
        }
    truth = standard.truth["y"]
    bound = operations.bound(standard.case.op, standard.numerics, standard.inputs, standard.case.params, truth)
    actual: Answer = answered.actual
    y = {"found": np.asarray(actual["y"], np.float64, order="C")} if "y" in actual else {}
    return {"truth": np.ascontiguousarray(truth), "limit": np.ascontiguousarray(bound.limit), **y}


def read(folder: Path) -> FolderCase:
    """The case of a folder. Raises BadInput for one that is damaged, or too large to be one."""
    note = read_note(folder)
    case = note.case
    held = open_safetensors(folder / INPUTS, mapped=False)
    if held.keys() != case.inputs.keys():
        raise BadInput(f"{folder / INPUTS}: tensors {sorted(held)}, {CASE} has {sorted(case.inputs)}")
    tensors: dict[str, Any] = {}
    for name, recipe in case.inputs.items():
        tensors[name] = _tensor(folder, name, recipe.type, tuple(recipe.shape), held[name])
    return FolderCase(case.name, case.op, case.inputs, case.params, case.model, tensors, note.layout)


def read_note(folder: Path) -> Note:
    """case.json alone. Raises BadInput."""
    path = folder / CASE
    try:
        note = msgspec.json.decode(read_input(path, _LARGEST, "a case of `refsd shrink`"), type=Note)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not a case of `refsd shrink`: {error}") from None
    if note.layout not in LAYOUTS:
        raise BadInput(f"{path}: layout {note.layout!r}, expected one of {', '.join(LAYOUTS)}")
    for case in (note.case, note.original):
        check_sizes(case, path)
    return note


def check_sizes(case: Case, path: Path) -> None:
    """Raise BadInput for a case with a tensor that is too large, or none."""
    for name, recipe in case.inputs.items():
        if any(size < 0 for size in recipe.shape) or math.prod(recipe.shape) > _MOST:
            raise BadInput(
                f"{path}: input {name} has the shape {list(recipe.shape)}, at most {_MOST} numbers expected"
            )
        if recipe.type not in SCALAR_TYPES and recipe.type not in BLOCK_TYPES:
            raise BadInput(f"{path}: input {name} has the unknown type {recipe.type!r}")


def _tensor(folder: Path, name: str, kind: str, shape: tuple[int, ...], held: StoredTensor) -> StoredTensor:
    expected = shape if kind in SCALAR_TYPES else None
    if kind in BLOCK_TYPES and shape and shape[-1] % BLOCK_TYPES[kind].block == 0:
        expected = (*shape[:-1], shape[-1] // BLOCK_TYPES[kind].block * BLOCK_TYPES[kind].bytes)
    wanted = kind if kind in SCALAR_TYPES else "u8"
    if (held.type, held.shape) != (wanted, expected):
        raise BadInput(f"{folder / INPUTS}: {name} is {held.type} {list(held.shape)}, not {kind} {list(shape)}")
    data = np.array(held.data)
    return StoredTensor(kind, shape, data.reshape(shape) if kind in SCALAR_TYPES else data.reshape(-1))


def judge(engine: Engine, case: Case, model_files: ModelFiles | None = None) -> Result:
    """The verdict on an engine's answer to a case. Raises EngineFailure where it does not take the case.

    model_files: gives the file of a model's recipe weights
    """
    refusal = engine.refuses(case)
    if isinstance(case, FolderCase) and case.layout != "contiguous":
        engine = IsolatedEngine(engine)
        engine.layout = case.layout
    result = None if refusal else ask(runner_of(model_files), engine, case)
    if result is None:
        raise EngineFailure(f"{engine.name} does not take the case: {refusal or 'it does not fit together'}")
    return result
