"""An engine that reads its answers from dump files; no program runs.

    dump:FILE[:PROFILE]     the answer to a single case; FILE may also be a folder of .npy files
    dump:FOLDER[:PROFILE]   FOLDER/<case>.safetensors (or .gguf, .npz, .npy, .bin, a folder of .npy), one a case

PROFILE names the numerics under which the engine computed; the default is float32. The dump of a model's component
may also hold taps. Their names are those of `refsd forward --taps FILE --tap-ops`; taps under other names are
recognised by shape and content.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from refsd.components import COMPONENTS
from refsd.engines.dump.matching import PARTS, Match, Tensors, match
from refsd.engines.dump.names import Names, read_names, renamed, unused
from refsd.files.formats import open_weights
from refsd.golden import dumps
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, EngineSearch, ModelFiles, NoDeviations
from refsd.golden.examination import once_more
from refsd.golden.input_file import note_input
from refsd.golden.operations import OPERATIONS
from refsd.golden.wording import counted
from refsd.judges.model import ModelJudge
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.profiles import FLOAT32, PROFILES, Numerics
from refsd.numerics.tensor import StoredTensor

EXAMPLE = "dump:FOLDER"
_SUFFIXES = (".safetensors", ".gguf", *dumps.SUFFIXES)
_MODEL = "model/"
# Of the tensors that nothing tells, so many are named.
_SHOWN = 3


def read_dump(path: Path) -> dict[str, np.ndarray]:
    """Read the tensors of a file or of a folder of .npy files. Raises BadInput."""
    if not path.exists():
        raise BadInput(f"{path}: no such file or folder")
    if path.is_dir() or path.suffix in dumps.SUFFIXES:
        return dumps.read(path)
    return {name: tensor.values() for name, tensor in open_weights(path).items()}


class DumpEngine(NoDeviations):
    """Answer cases from dump files.

    path:     a dump, or a folder with a dump for each case
    numerics: the rounding of the engine that wrote the dump
    matches:  tensors of the last case that were recognised as taps despite another name or layout
    unknown:  names of those that were not, which are not judged
    names:    tensor of the dump -> its name in the reference
    gap:      as of a PartialEngine
    """

    version = "a dump"
    partial = True

    def __init__(self, path: Path, numerics: Numerics, model_files: ModelFiles | None = None):
        self.name = path.stem
        self.matches: list[Match] = []
        self.unknown: list[str] = []
        self.names: Names = {}
        self.gap = ""
        self._judge = ModelJudge(model_files)
        self.path, self._numerics = path, numerics
        self.of_one_case = not path.is_dir() or any(path.glob("*.npy"))

    def refuses(self, case: Case) -> str | None:
        return None if self._file(case) else f"{self.path} has no dump of {case.name}"

    def numerics(self, case: Case) -> Numerics:
        return self._numerics

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        return self.run_tapped(case, inputs)[0]

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        file = self._file(case)
        assert file is not None
        self.matches, self.unknown, self.gap = [], [], ""
        try:
            found = renamed(read_dump(file), self.names)
        except BadInput as error:
            raise EngineFailure(str(error)) from None
        if not case.op.startswith(_MODEL):
            alone = len(found) == 1 and case.op in OPERATIONS
            return (dict(zip(["y"], found.values(), strict=True)) if alone else found), {}
        outputs = COMPONENTS[case.op.removeprefix(_MODEL)].outputs
        if self._judge.refuses(case, self._numerics) is None and self._judge.asks_for_taps(case):
            found = self._named(case, inputs, found, outputs)
        return (
            {name: y for name, y in found.items() if name in outputs},
            {name: y for name, y in found.items() if name not in outputs},
        )

    def _named(
        self,
        case: Case,
        inputs: Mapping[str, StoredTensor],
        actual: dict[str, np.ndarray],
        outputs: Mapping[str, str],
    ) -> dict[str, np.ndarray]:
        """Rename the dump's tensors to the reference's tap names, where shape and content identify them."""
        reference = {**self._judge.reference_taps(case, inputs)} if actual.keys() - outputs.keys() else {}
        if any(name in reference and y.shape != reference[name].shape for name, y in actual.items()):
            orders = self._judge.layouts(case, inputs, actual)
            actual = {name: y.transpose(orders[name]) if name in orders else y for name, y in actual.items()}
        foreign = {name: y for name, y in actual.items() if name not in outputs and name not in reference}
        if foreign:
            self.matches = match(foreign, {name: y for name, y in reference.items() if name not in actual})
        matched = {one.name for one in self.matches}
        self.unknown = [name for name in foreign if name not in matched and not once_more(name, [*reference])]
        own = {name: y for name, y in actual.items() if name not in {*matched, *self.unknown}}
        named = own | {tap: y for one in self.matches for tap, y in one.taps.items()}
        self.gap = self._gap(actual, named, reference)
        return named

    def _gap(self, actual: Tensors, named: Tensors, reference: Tensors) -> str:
        """Say which unknown tensors may be taps, by their sizes; "" if none is."""
        sizes = {y.size for y in reference.values() if y.size > 1 and not _is_there(y, named, reference)}
        fused = {PARTS * size for size in sizes}
        unlike = [name for name in self.unknown if actual[name].size in sizes | fused]
        if not unlike:
            return ""
        judged = len(actual) - len(self.unknown)
        n, shown = counted(len(actual), "tensor"), ", ".join(map(printable, unlike[:_SHOWN]))
        shown += ", ..." * (len(unlike) > _SHOWN)
        return (
            f"{judged} of {n} judged, {len(self.unknown)} unknown ({shown}), whose names and contents are none "
            "of the reference's: --names MINE=THEIRS has them judged, and places the error"
        )

    def _file(self, case: Case) -> Path | None:
        if self.of_one_case:
            return self.path
        paths = [self.path / f"{case.name}{suffix}" for suffix in ("", *_SUFFIXES)]
        return next((path for path in paths if path.exists()), None)


def give_names(dumps: Sequence[DumpEngine], given: Sequence[str]) -> None:
    """Have dumps read under the user's names.

    given: as `read_names` takes it

    Raises BadInput without a dump, and for a name on the command line that dumps of one case lack.
    """
    if given and not dumps:
        raise BadInput("--names: none of the engines is a dump; leave it out")
    names = read_names(given)
    for dump in dumps:
        dump.names = names
    if given and all(dump.of_one_case for dump in dumps):
        unused({name: y for dump in dumps for name, y in read_dump(dump.path).items()}, names, given)


def _is_there(tap: np.ndarray, named: Tensors, reference: Tensors) -> bool:
    """Return True if a tap was found, or one of the same content, as a block's and its last operation's."""
    return any(y is tap or np.array_equal(y, tap) for name, y in reference.items() if name in named)


def find(path: str | None = None, model_files: ModelFiles | None = None, **_) -> list[EngineSearch]:
    """Open the dump or the folder of dumps at PATH[:PROFILE]. Raises BadInput if the path does not exist."""
    if not path:
        return [EngineSearch("dump", None, "give dump:FILE or dump:FOLDER")]
    place, colon, profile = path.rpartition(":")
    if not colon or profile not in PROFILES:
        place, profile = path, FLOAT32.name
    if not Path(place).exists():
        raise BadInput(f"{place}: no such file or folder")
    note_input(Path(place))
    engine = DumpEngine(Path(place), PROFILES[profile], model_files)
    return [EngineSearch(engine.name, engine)]
