"""Save the tensors of failing answers: the engine's, the truth and the honest run's.

    <folder>/kept.json        index of the saved answers and their folders, and the tensors left out
    <folder>/<engine>/<a folder of the case>/
        found.safetensors     the engine's outputs and taps
        truth.safetensors, honest.safetensors

`refsd compare found.safetensors CASE` judges them again.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy

from refsd.golden.conform import Answered
from refsd.golden.output_file import replaced_folder
from refsd.golden.report import Result
from refsd.golden.wording import counted
from refsd.numerics.printable import printable

INDEX = "kept.json"
_ANSWER = 2**25  # limit in bytes for one answer's tensors
_ALL = 2**28  # limit in bytes for all answers
_LONGEST = 100  # characters in a folder's name
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")
_KINDS = "biuf"


class Entry(msgspec.Struct, frozen=True):
    """One saved answer in the index.

    folder:   relative folder with the answer's files
    left_out: names of tensors that exceeded the limits
    """

    engine: str
    case: str
    folder: str
    left_out: list[str]


class Keeper:
    """Save failing answers to a folder.

    folder: the folder to write to
    shown:  the folder's name in the report
    answer: limit in bytes for one answer's tensors
    total:  limit in bytes for all answers
    """

    def __init__(self, folder: Path, shown: str, answer: int = _ANSWER, total: int = _ALL):
        self._folder, self._shown = folder, shown
        self._answer, self._total = answer, total
        self._left = total
        self._entries: list[Entry] = []
        self._problem = ""

    def keep(self, result: Result, answered: Answered) -> Result:
        """Save an answer's tensors. -> the result, with the folder's name added"""
        place = f"{_name(result.engine)}/{_name(result.case)}"
        files, left_out = self._chosen(answered)
        try:
            for kind, tensors in files.items():
                path = self._folder / place / f"{kind}.safetensors"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(safetensors.numpy.save(tensors))
        except OSError as error:
            self._problem, self._left = error.strerror or str(error), 0
            return result
        self._entries.append(Entry(printable(result.engine), printable(result.case), place, left_out))
        return msgspec.structs.replace(result, kept=f"{self._shown}/{place}") if files else result

    def close(self) -> None:
        """Write the index, if any answer was saved."""
        if not self._entries:
            return
        index = msgspec.json.format(msgspec.json.encode(self._entries), indent=1)
        try:
            (self._folder / INDEX).write_bytes(index + b"\n")
        except OSError as error:
            self._problem = error.strerror or str(error)
            (self._folder / INDEX).touch()

    @property
    def notes(self) -> list[str]:
        """Lines that state what was not saved, and why."""
        lines = []
        cut = [entry for entry in self._entries if entry.left_out]
        if cut:
            tensors = counted(sum(len(entry.left_out) for entry in cut), "tensor")
            limits = f"{self._answer // 2**20} MiB an answer, {self._total // 2**20} MiB in all"
            lines.append(f"{tensors} of {counted(len(cut), 'failing answer')} not kept: at most {limits}")
        if self._problem:
            lines.append(f"the tensors of failing answers are not all kept: {printable(self._problem)}")
        return lines

    def _chosen(self, answered: Answered) -> tuple[dict[str, dict[str, np.ndarray]], list[str]]:
        """Choose the tensors that fit the limits. -> (file kind -> tensors, names of the tensors left out)"""
        standard, room = answered.standard, min(self._answer, self._left)
        answers = {
            "found": {**answered.taps, **answered.actual},
            "truth": standard.truth,
            "honest": standard.honest,
        }
        files: dict[str, dict[str, np.ndarray]] = {}
        left_out = []
        for name in dict.fromkeys((*standard.truth, *answered.actual, *answered.taps)):
            group = {kind: of[name] for kind, of in answers.items() if name in of}
            size = sum(np.asarray(of).nbytes for of in group.values())
            if size > room:
                left_out.append(printable(name, _LONGEST))
                continue
            room -= size
            self._left -= size
            for kind, of in group.items():
                files.setdefault(kind, {})[printable(name)] = _storable(of)
        return files, left_out


@contextmanager
def keeper(folder: Path, shown: str) -> Iterator[Keeper]:
    """Yield a Keeper whose files replace the folder when the block ends.

    Raises BadInput if the folder is a link or has files that no Keeper wrote.
    """
    with replaced_folder(folder, INDEX) as part:
        kept = Keeper(part, shown)
        yield kept
        kept.close()


def _storable(y: np.ndarray) -> np.ndarray:
    """Convert an array to row-major order and a dtype that safetensors supports."""
    y = np.asarray(y)
    return np.asarray(y if y.dtype.kind in _KINDS and y.dtype.itemsize <= 8 else y.astype(np.float64), order="C")


def _name(text: str) -> str:
    """Turn a text into a safe folder name without path separators; different texts get different names."""
    plain = _PLAIN.sub("_", text).strip(".")[:_LONGEST]
    if plain and plain == text:
        return plain
    return f"{plain}-{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
