"""Write cases as files: inputs, weights, parameters, truth, bound and taps, with an index.

<folder>/index.json                   what there is: files with sizes and SHA-256, tensors with types and shapes
<folder>/<case>/inputs, truth, bound, taps     a folder (npy, bin) or a file (safetensors, gguf) each
<folder>/weights/<model>              of models' cases, once for all cases of a model
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refsd import __version__
from refsd.export.formats import FORMATS, Entry, Format
from refsd.files.formats import open_weights
from refsd.files.writers import Advance, Spec
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles
from refsd.golden.judge import Judges, Standard
from refsd.golden.output_file import write_file
from refsd.golden.store import Store
from refsd.judges import judges
from refsd.judges.taps_in_memory import bytes_of_taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor, stored
from refsd.weights import recipes

INDEX = "index.json"


class FileNote(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class CaseEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    params: complete, with defaults
    model:  key of the index's `weights`; "" for a case without a model
    bound:  how far each element may be from the truth; empty where cases are judged step by step
    """

    op: str
    params: dict[str, Any]
    inputs: dict[str, Entry]
    truth: dict[str, Entry]
    bound: dict[str, Entry]
    model: str = ""
    taps: dict[str, Entry] = {}


class Index(msgspec.Struct):
    """index.json

    format:     of the index: 1
    refsd:      version
    written:    "npy", "safetensors", "bin", "gguf" or "onnx"
    byte_order: "little"
    numerics:   of the bounds
    cases:      name -> case
    weights:    model -> tensor -> entry; empty without weights
    files:      path -> size and SHA-256
    """

    written: str
    numerics: str
    format: int = 1
    refsd: str = __version__
    byte_order: str = "little"
    cases: dict[str, CaseEntry] = {}
    weights: dict[str, dict[str, Entry]] = {}
    files: dict[str, FileNote] = {}


class Export:
    """Write cases into a folder, one at a time, and the index at the end.

    folder:      it exists
    model_files: gives the files of recipe weights
    """

    def __init__(
        self, folder: Path, form: str, numerics: Numerics, model_files: ModelFiles, weights: bool, taps: bool
    ):
        self._folder, self._format, self._numerics = folder, FORMATS[form], numerics
        self._model_files, self._with_weights, self._with_taps = model_files, weights, taps
        self._judges: Judges = judges(model_files)
        self._index = Index(form, numerics.name)

    def add(self, case: Case, store: Store, advance: Advance = lambda n: None) -> None:
        """Write one case, whose answer the store has; and its model, if no case before had it."""
        judge = self._judges.of(case)
        inputs, truth = case.realize(), store.get(case.name).outputs
        bound = {}
        if judge.refuses(case, self._numerics) is None:
            honest = judge.answer(case, inputs, Arithmetic(self._numerics))
            bound = judge.limits(Standard(case, inputs, truth, honest, self._numerics))
        taps = judge.reference_taps(case, inputs) if self._with_taps else {}
        model = _key(case.model) if case.model is not None else ""
        self._index.cases[case.name] = CaseEntry(
            case.op,
            judge.complete(case, inputs),
            self._asked(case, inputs, truth, advance),
            self._write(f"{case.name}/truth", _stored(truth), advance),
            self._write(f"{case.name}/bound", _stored(bound), advance),
            model if self._with_weights else "",
            self._write(f"{case.name}/taps", _stored(taps), advance),
        )
        if case.model is not None and self._with_weights and model not in self._index.weights:
            weights = open_weights(self._model_files(case.model, "ldm"))
            self._index.weights[model] = self._write(f"weights/{model}", weights, advance)

    def _asked(
        self, case: Case, inputs: Mapping[str, StoredTensor], truth: Mapping[str, np.ndarray], advance: Advance
    ) -> dict[str, Entry]:
        """Write what the program is asked. truth: for a format that holds the answer beside it"""
        return self._write(f"{case.name}/inputs", inputs, advance)

    def close(self) -> Index:
        """Hash every file and write the index."""
        for path in sorted(path for path in self._folder.rglob("*") if path.is_file()):
            name = path.relative_to(self._folder).as_posix()
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._index.files[name] = FileNote(path.stat().st_size, digest)
        text = msgspec.json.format(msgspec.json.encode(self._index), indent=1)
        write_file(self._folder / INDEX, text + b"\n")
        return self._index

    def _write(self, group: str, tensors: Mapping[str, StoredTensor], advance: Advance) -> dict[str, Entry]:
        if not tensors:
            return {}
        specs = {name: Spec(tensors[name].type, tensors[name].shape) for name in tensors}
        check(self._format, group, specs)
        (self._folder / group).parent.mkdir(parents=True, exist_ok=True)
        return self._format.write(self._folder, group, specs, (tensors[name] for name in specs), advance)


def check(form: Format, group: str, specs: Mapping[str, Spec]) -> None:
    """Raise BadInput for a tensor that the format cannot hold."""
    for name, spec in specs.items():
        form.checks(group, name, spec)


def check_inputs(cases: Sequence[Case], form: str, weights: bool) -> None:
    """Raise BadInput before anything is computed if the format cannot hold the inputs or weights of a case."""
    for case in cases:
        specs = {name: Spec(recipe.type, recipe.shape) for name, recipe in case.inputs.items()}
        check(FORMATS[form], f"{case.name}/inputs", specs)
    for model in models(cases) if weights else ():
        drawn = recipes.all_recipes(model)
        check(FORMATS[form], f"weights/{_key(model)}", {n: Spec(r.type, r.shape) for n, r in drawn.items()})


def models(cases: Sequence[Case]) -> list[ModelRecipe]:
    """The models of the cases, each once."""
    return list(dict.fromkeys(case.model for case in cases if case.model is not None))


def bytes_to_write(cases: Sequence[Case], store: Store, weights: bool, taps: bool) -> int:
    """Bytes of all tensors, of taps an upper limit. Every case has its answer in the store."""
    total = sum(recipes.size(model) for model in models(cases)) if weights else 0
    for case in cases:
        total += sum(Spec(recipe.type, recipe.shape).nbytes for recipe in case.inputs.values())
        total += 2 * store.manifest(case.name).bytes
        if taps and case.model is not None:
            total += bytes_of_taps(case.model, case)
    return total


def _stored(arrays: Mapping[str, np.ndarray]) -> dict[str, StoredTensor]:
    return {name: stored(np.ascontiguousarray(np.asarray(y, np.float64))) for name, y in arrays.items()}


def _key(model: ModelRecipe) -> str:
    """A name for a model's weights: "sd15-tiny-f32"."""
    quiet = f"-quiet{model.quiet}" if model.quiet else ""
    return f"{model.family}-{'tiny' if model.tiny else 'full'}-{model.type}{quiet}"
