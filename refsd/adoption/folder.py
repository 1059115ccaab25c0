"""An adopted graph on disk, and the case that it is.

case.json             the case: what the graph is asked, and how it was made
graph.onnx            the graph; its weights are inputs, named by the module tree; a node's metadata has its modules
inputs.safetensors    the inputs as they are given, and weights that are kept as they are
weights.safetensors   weights that are drawn, for engines; refsd draws them itself
cases/, blobs/        a store of goldens with the answer in float64

A pipeline's folder has one of these for each of its networks, and refsd-pipeline.json, which lists them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from refsd import __version__
from refsd.cases import CASES
from refsd.components import COMPONENTS
from refsd.files.safetensors import open_safetensors
from refsd.files.stored import NamedTensors
from refsd.files.writers import Spec, write_safetensors
from refsd.golden.case import Case
from refsd.golden.input_file import note_input_folder, read_input
from refsd.golden.output_file import replaced_folder
from refsd.golden.recipe import Recipe, realize
from refsd.golden.wording import counted, needing
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor, stored
from refsd.weights.recipes import tensor_recipe

if TYPE_CHECKING:
    import onnx

CASE, GRAPH, GIVEN, DRAWN = "case.json", "graph.onnx", "inputs.safetensors", "weights.safetensors"
PIPELINE = "refsd-pipeline.json"
# Stages of which a pipeline's folder may have a case.
STAGE_OPS = frozenset(("stage/sigmas", "stage/latents", "stage/prediction", "stage/guidance"))
# Of the case's name, and of the operation that an engine offers: model/graph/NAME, model/graph/PIPELINE/NAME.
KIND = "graph/"
_LARGEST = 1 << 26  # bytes of a case.json
# Bytes of inputs that are all held in memory; of more each is read from the folder where it is used.
LARGEST = 1 << 30
_FORMAT = 1
_PIPELINE_FORMAT = 2
_T = TypeVar("_T")


class Note(msgspec.Struct, frozen=True):
    """case.json

    made:      what the graph was made of, and with which programs
    arguments: inputs of the case that are no weights
    given:     inputs of the case that are in inputs.safetensors; the others are drawn
    """

    case: Case
    made: dict[str, str]
    arguments: list[str]
    given: list[str]
    format: int = _FORMAT
    refsd: str = __version__


class Pipeline(msgspec.Struct, frozen=True):
    """refsd-pipeline.json

    made:      which pipeline it was, and with which programs it ran
    parts:     folders of its networks, in the order of the run
    refused:   network, or what stands between them ("noise levels", "latents") -> why there is no case of it
    stages:    cases of what stands between them
    scheduler: its class
    """

    made: dict[str, str]
    parts: list[str]
    refused: dict[str, str]
    stages: list[Case]
    scheduler: str
    format: int = _PIPELINE_FORMAT
    refsd: str = __version__


class Inputs(NamedTensors):
    """The inputs of an adopted case, each read or drawn where it is asked for, so that all need not fit in memory.

    given: those of its folder's inputs.safetensors
    file:  the weights that are drawn, as the folder has them; None: they are drawn here
    """

    def __init__(self, case: Case, given: Mapping[str, StoredTensor], names: Collection[str], file: Mapping | None):
        self._case, self._given, self._own, self._file = case, given, names, file
        self.names = case.inputs

    def __getitem__(self, name: str) -> StoredTensor:
        recipe = self._case.inputs[name]
        if name in self._own:
            return self._given[name]
        return realize(recipe, f"{self._case.name}/{name}") if self._file is None else self._file[name]


class AdoptedCase(Case, frozen=True, dict=True):
    """A case of which some inputs are tensors of its folder.

    They are no field, so that a store's manifest has the recipes alone.
    """

    def realize(self) -> Mapping[str, StoredTensor]:
        """Return the inputs; where they are many, each is read from the folder, or drawn, where it is used."""
        inputs = Inputs(self, *self.__dict__["tensors"])
        size = sum(Spec(recipe.type, recipe.shape).nbytes for recipe in self.inputs.values())
        return inputs if size >= LARGEST else dict(inputs)


class Adopted(NamedTuple):
    """What `written` makes a folder of.

    model:   the graph, its weights among its inputs
    inputs:  those that are no weights
    weights: shapes of weights that are drawn, or what reads the numbers of weights that stay as they are
    made:    as in Note
    gains:   vectors that are drawn around 1
    """

    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    weights: Mapping[str, tuple[int, ...] | Callable[[], np.ndarray]]
    made: Mapping[str, str]
    gains: Collection[str] = ()


def is_folder(path: Path) -> bool:
    return (path / CASE).is_file() and (path / GRAPH).is_file()


def is_pipeline(path: Path) -> bool:
    return (path / PIPELINE).is_file()


def marker(path: Path) -> str:
    """Return the file that says that refsd wrote this folder, which may then be replaced."""
    return PIPELINE if is_pipeline(path) else CASE


def case_name(folder: Path) -> str:
    """Return the name of the case in a folder, after the folder."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.absolute().name).lstrip(".-")
    if not name:
        raise BadInput(f"{folder}: a case takes its folder's name: use letters and digits")
    return KIND + name


def named(patterns: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return patterns of cases with folders replaced by the names of their cases, and these folders.

    A pipeline's folder stands for its parts.
    """
    names: list[str] = []
    folders: list[Path] = []
    for pattern in patterns:
        place = Path(pattern)
        pipeline = read_pipeline(place) if is_pipeline(place) else None
        parts = [place] if is_folder(place) else []
        if pipeline is not None:
            parts = [place / part for part in pipeline.parts]
        folders += parts
        names += [read(part).name for part in parts] or [pattern]
        if pipeline is not None:
            names += [case.name for case in pipeline.stages]
    return names, folders


def read_pipeline(folder: Path) -> Pipeline:
    """Return what a pipeline's folder lists, and make the cases of its stages known. Raises BadInput."""
    path = folder / PIPELINE
    pipeline = _read_json(path, Pipeline)
    outside = [part for part in pipeline.parts if Path(part).name != part]
    if pipeline.format != _PIPELINE_FORMAT or outside or not pipeline.parts:
        raise BadInput(f"{path}: format {pipeline.format}, parts {str(pipeline.parts)[:80]}: adopt it again")
    for case in pipeline.stages:
        if case.op not in STAGE_OPS or CASES.get(case.name, case) != case:
            raise BadInput(f"{path}: case {case.name[:80]!r} of {case.op[:80]!r}: adopt it again")
        CASES[case.name] = case
    return pipeline


def part_of(folder: Path, names: Collection[str]) -> Path:
    """Return the folder of a pipeline's network that has the most of these taps and outputs.

    Raises BadInput where none has any, or several have as many.
    """
    places = [folder / part for part in read_pipeline(folder).parts]
    counts = {place: len({*names} & _names_in(read(place).name)) for place in places}
    best = max(counts.values())
    fitting = [place for place, count in counts.items() if count == best]
    if best and len(fitting) == 1:
        return fitting[0]
    known = f"{counted(best, 'name')} of the tensors in each of them" if best else "no name of a tensor in any"
    listed = ", ".join(map(str, fitting))
    raise BadInput(f"{folder}: a pipeline, with {known}: name the network's folder: {listed}")


def _names_in(case: str) -> set[str]:
    """Return the taps and outputs of an adopted graph that was read."""
    from refsd.adoption.component import Running

    running = COMPONENTS[case].run
    assert isinstance(running, Running)
    return {*COMPONENTS[case].outputs, *(tap for step in running.graph.steps for tap in step.taps)}


def rule_of(case: Case) -> str:
    """Return a line: the name of a case of a stage, and its parameters."""
    return f"{case.name}: {', '.join(f'{key} {_shown(value)}' for key, value in case.params.items())}"


def _shown(value: Any) -> str:
    long = isinstance(value, list) and len(value) > 4
    return f"{', '.join(f'{x:g}' for x in value[:3])}, ... ({len(value)})" if long else str(value)


def drawn(case: str, weight: str, shape: tuple[int, ...], gains: Collection[str] = ()) -> StoredTensor:
    """Return a weight by its recipe, as a case of this name draws it."""
    return realize(recipe_of(weight, shape, gains), f"{case}/{weight}")


def recipe_of(weight: str, shape: tuple[int, ...], gains: Collection[str] = ()) -> Recipe:
    """Return the recipe of a weight. gains: those that are drawn around 1 whatever their names"""
    known = tensor_recipe(weight, shape, "f32")
    return Recipe(shape, "f32", exponent=-18, offset=1.0) if weight in gains and known.offset != 1 else known


@contextlib.contextmanager
def written(folder: Path, adopted: Adopted, name: str) -> Iterator[Path]:
    """Yield a new folder, which takes the place of one that was written so before if the block raises nothing.

    name: of the case

    Raises BadInput where something else is there.
    """
    given = {key: partial(np.asarray, x) for key, x in adopted.inputs.items()}
    given |= {key: weight for key, weight in adopted.weights.items() if callable(weight)}
    specs = {key: Spec(tensor.type, tensor.shape) for key, tensor in ((k, _narrow(x())) for k, x in given.items())}
    recipes = {key: Recipe(spec.shape, spec.type) for key, spec in specs.items()}
    draws = {key: Spec("f32", shape) for key, shape in adopted.weights.items() if isinstance(shape, tuple)}
    recipes |= {key: recipe_of(key, spec.shape, adopted.gains) for key, spec in draws.items()}
    case = Case(name, f"model/{name}", recipes)
    note = Note(case, dict(adopted.made), list(adopted.inputs), list(given))
    with replaced_folder(folder, marker(folder)) as part:
        write_note(part / CASE, note)
        (part / GRAPH).write_bytes(adopted.model.SerializeToString())
        write_safetensors(part / GIVEN, specs, (_narrow(x()) for x in given.values()))
        if draws:
            write_safetensors(part / DRAWN, draws, (realize(recipes[key], f"{name}/{key}") for key in draws))
        yield part


def read(folder: Path) -> AdoptedCase:
    """Return the case of a folder, and make its graph a component that judges know.

    Raises BadInput for a folder that is damaged, for a graph that refsd cannot run, and without the package onnx.
    """
    with needing(["onnx"], "onnx", f"{folder}: a graph"):
        from refsd.adoption.component import component_of_graph
        from refsd.adoption.graph import Graph
        from refsd.onnx.evaluate import open_graph
    path = folder / CASE
    note = _read_json(path, Note)
    case = note.case
    if note.format != _FORMAT or not case.name.startswith(KIND) or case.op != f"model/{case.name}":
        raise BadInput(f"{path}: format {note.format}, case {case.name[:80]!r}: adopt the model again")
    note_input_folder(folder)
    held = open_safetensors(folder / GIVEN)
    for key in note.given:
        recipe = case.inputs.get(key)
        if recipe is None or key not in held or (held[key].type, held[key].shape) != (recipe.type, recipe.shape):
            found = f"{held[key].type} {list(held[key].shape)}" if key in held else "nothing"
            wanted = f"{recipe.type} {list(recipe.shape)}" if recipe else "no such input"
            raise BadInput(f"{folder / GIVEN}: {key} is {found}, {CASE} says {wanted}: adopt the model again")
    graph = Graph(open_graph(folder / GRAPH))
    names = [one.name for one in graph.inputs]
    if sorted(names) != sorted(case.inputs):
        apart = sorted({*names} ^ {*case.inputs})
        raise BadInput(f"{folder}: {GRAPH} and {CASE} differ in the inputs {str(apart)[:200]}: adopt it again")
    given = AdoptedCase(case.name, case.op, case.inputs)
    vars(given)["tensors"] = held, {*note.given}, _large(folder / DRAWN, note)
    shapes = {key: recipe.shape for key, recipe in case.inputs.items()}
    COMPONENTS[case.name] = component_of_graph(graph, note.arguments, shapes)
    CASES[case.name] = given
    return given


def _large(path: Path, note: Note) -> Mapping[str, StoredTensor] | None:
    """Return the file of drawn weights if it is large and has all of them; otherwise they are drawn when asked for.

    What stands in it is held to the manifest of the store, as all inputs are.
    """
    drawn = {
        key: Spec(recipe.type, recipe.shape) for key, recipe in note.case.inputs.items() if key not in note.given
    }
    if sum(spec.nbytes for spec in drawn.values()) < LARGEST or not path.is_file():
        return None
    file = open_safetensors(path)
    same = all(key in file and (file[key].type, file[key].shape) == (s.type, s.shape) for key, s in drawn.items())
    return file if same else None


def _read_json(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(read_input(path, _LARGEST, "an adopted graph's case"), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not the case of an adopted graph: {error}") from None


def write_note(path: Path, note: Note | Pipeline) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(note), indent=1) + b"\n")


def _narrow(x: np.ndarray) -> StoredTensor:
    """Return a tensor, floats of 64 bits as float32, in which engines get them."""
    x = x.astype(np.float32) if x.dtype == np.float64 else x
    return stored(np.ascontiguousarray(x).reshape(x.shape))  # which has an axis at least
