"""Goldens on disk: a manifest for each case, and tensors under the SHA-256 of their bytes.

    <store>/cases/<case name>.json      the case, how its answer was made, and the hashes of the answer
    <store>/blobs/<sha256>.safetensors  the answer, float64

Files are written in <store>/tmp, flushed to the disk and renamed, the blob before its manifest, so that
every file under its final name is complete, whatever interrupts a run. A manifest proves that its case
is complete, so that an interrupted run can be continued.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import platform
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numba
import numpy as np
import safetensors
import safetensors.numpy
import threadpoolctl

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import Engine
from refsd.golden.origins import Origin
from refsd.golden.scratch import Scratch, abandoned, locked, sweep
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor

FORMAT = 1
NUMERICS = "float64"
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
# A manifest has a few kilobytes; a larger file is no manifest.
_LARGEST_MANIFEST = 1 << 20
_temporary = itertools.count()


class TensorNote(msgspec.Struct, frozen=True):
    """A tensor's shape, its dtype as NumPy names it ("float64"), and the SHA-256 of its bytes."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """A golden's case, its answer's hashes, and how it was made.

    format:    FORMAT
    case:      the question, with its recipes
    numerics:  of the answer: NUMERICS
    blob:      SHA-256 of the safetensors file; bytes: its size
    outputs:   the answer's tensors
    inputs:    SHA-256 of each realised input's bytes
    generator: versions of refsd, numpy and numba, the BLAS and its core, the machine
    weights:   SHA-256 of the recipes of the model's weights; "" without a model
    """

    format: int
    case: Case
    numerics: str
    blob: str
    bytes: int
    outputs: dict[str, TensorNote]
    inputs: dict[str, str]
    generator: dict[str, str]
    weights: str = ""


class Golden(NamedTuple):
    manifest: Manifest
    outputs: dict[str, np.ndarray]


class Problem(NamedTuple):
    """Something wrong with a golden or a file of the store.

    kind: "missing", "corrupt", "changed", "extra", "drift"
    what: one line
    case: its name; "" for a file that belongs to no case
    """

    kind: str
    what: str
    case: str = ""


class Store:
    """A folder of goldens; it need not exist before the first `put`.

    fingerprint: a model's recipe -> SHA-256 of the recipes that its weights have today
    origin:      where files that the folder lacks are fetched from, one at a time, when they are read
    """

    def __init__(
        self,
        root: Path,
        fingerprint: Callable[[ModelRecipe], str] = lambda model: "",
        origin: Origin | None = None,
    ):
        self.root = Path(root)
        self.fingerprint = fingerprint
        self.origin = origin
        self._scratch: Scratch | None = None
        self._replaced: set[str] = set()  # blobs of the manifests that `put` has overwritten
        if self.root.exists() and not self.root.is_dir():
            raise BadInput(f"{self.root}: not a folder, so no store of goldens")

    def manifest_path(self, name: str) -> Path:
        """Return the path of a case's manifest. Raises BadInput for a name that could lead out of the store."""
        if not _NAME.fullmatch(name):
            raise BadInput(
                f"{self.root}: {name!r} is no case name: expected letters, digits and . _ - between slashes"
            )
        return self.root / "cases" / f"{name}.json"

    def blob_path(self, sha256: str) -> Path:
        """Return the path of a blob. Raises BadInput for anything but a SHA-256."""
        if not _HASH.fullmatch(sha256):
            raise BadInput(f"{self.root}: blob {sha256[:80]!r} is no SHA-256: expected 64 hexadecimal digits")
        return self.root / "blobs" / f"{sha256}.safetensors"

    def names(self) -> list[str]:
        """Return the cases that have a manifest, here or in the origin."""
        folder = self.root / "cases"
        found = {p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.json")}
        for path in self.origin.paths() if self.origin is not None else ():
            if path.startswith("cases/") and path.endswith(".json"):
                found.add(path.removeprefix("cases/").removesuffix(".json"))
        return sorted(found)

    def _fetch(self, path: Path, sha256: str = "") -> None:
        """Fetch a missing file from the origin, if the origin has it.

        sha256: the hash that it must have; "" for any

        Raises BadInput for other bytes.
        """
        if self.origin is None or path.exists():
            return
        name = path.relative_to(self.root).as_posix()
        data = self.origin.read(name)
        if data is None:
            return
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise BadInput(f"{self.origin.what}: {name}: {len(data)} bytes that do not hash to its name")
        self._write(path, data)

    def manifest(self, name: str) -> Manifest:
        """Read one manifest. Raises BadInput if it is missing or invalid."""
        path = self.manifest_path(name)
        self._fetch(path)
        try:
            if path.stat().st_size > _LARGEST_MANIFEST:
                raise BadInput(f"{path}: {path.stat().st_size} bytes, a manifest has at most {_LARGEST_MANIFEST}")
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise BadInput(f"{self.root}: no golden of {name!r}: run `refsd golden make {self.root}`") from None
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"{path}: not a manifest: {error}; remove it and run `refsd golden make`") from None
        if manifest.format != FORMAT:
            raise BadInput(f"{path}: format {manifest.format}, this refsd reads {FORMAT}")
        if manifest.case.name != name:
            raise BadInput(f"{path}: it is the manifest of {manifest.case.name!r}")
        for numerics in (manifest.numerics, *(note.dtype for note in manifest.outputs.values())):
            if numerics != NUMERICS:
                raise BadInput(
                    f"{path}: an answer in {numerics[:80]!r}, expected {NUMERICS}: run `refsd golden make` again"
                )
        self.blob_path(manifest.blob)
        return manifest

    def get(self, name: str) -> Golden:
        """Read a golden and check its hashes. Raises BadInput if anything about it is wrong."""
        manifest = self.manifest(name)
        path = self.blob_path(manifest.blob)
        self._fetch(path, manifest.blob)
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size == manifest.bytes else b""
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}, wanted by {name}") from None
        if len(data) != manifest.bytes or hashlib.sha256(data).hexdigest() != manifest.blob:
            raise BadInput(f"{path}: {size} bytes that do not hash to its name; run `refsd golden make` again")
        try:
            outputs = safetensors.numpy.load(data)
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise BadInput(f"{path}: not safetensors: {error}") from None
        found = {key: _note(tensor) for key, tensor in outputs.items()}
        if found != manifest.outputs:
            raise BadInput(f"{path}: holds other tensors than the manifest of {name} says")
        return Golden(manifest, outputs)

    def answer(self, case: Case) -> dict[str, np.ndarray] | None:
        """Return the stored answer to exactly this case, with these recipes and inputs; None if there is none."""
        with contextlib.suppress(BadInput):
            golden = self.get(case.name)
            return None if self.change(golden.manifest, case) else golden.outputs

    def has(self, case: Case) -> bool:
        """Return True if the store holds a complete answer to exactly this case."""
        return self.answer(case) is not None

    def _weights(self, case: Case) -> str:
        return self.fingerprint(case.model) if case.model else ""

    def change(self, manifest: Manifest, case: Case) -> str:
        """Say what has changed since a case's golden was made; "" if nothing has."""
        if manifest.case != _as_stored(case):
            return "the case has changed"
        if manifest.weights != self._weights(case):
            return "the recipes of its weights have changed"
        inputs = _digests(case.realize())
        names = sorted(inputs.keys() | manifest.inputs.keys())
        changed = [name for name in names if inputs.get(name) != manifest.inputs.get(name)]
        if changed:
            return f"the bytes of its inputs {str(changed)[1:-1][:200]} have changed"
        return ""

    def put(
        self, case: Case, inputs: Mapping[str, StoredTensor], outputs: Mapping[str, np.ndarray], refsd: str
    ) -> Manifest:
        """Store an answer. outputs: float64; refsd: the version that computed it."""
        return self.accept(*prepare(case, inputs, outputs, refsd, self._weights(case)))

    def accept(self, manifest: Manifest, data: bytes) -> Manifest:
        """Store an answer that `prepare` has made, here or in another process. Two processes may do so at once."""
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root):
            path = self.blob_path(manifest.blob)
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != manifest.blob:
                self._write(path, data)
            with contextlib.suppress(BadInput):
                self._replaced.add(self.manifest(manifest.case.name).blob)
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            self._write(self.manifest_path(manifest.case.name), text + b"\n")
        return manifest

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self._write_whole(path, data)
        except OSError as error:
            raise BadInput(f"{path}: cannot write the file: {error.strerror or error}") from None

    def _write_whole(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._scratch is None:
            self._scratch = Scratch(self.root / "tmp")
        temporary = self._scratch.path / str(next(_temporary))
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if os.name == "posix":
            handle = os.open(path.parent, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

    def sweep(self) -> None:
        """Remove half-written files of killed runs, and replaced answers that no other case has."""
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
        sweep(self.root / "tmp")
        with contextlib.suppress(OSError):  # missing, or another process writes in it
            (self.root / "tmp").rmdir()
        if not self._replaced:
            return
        with locked(self.root):
            for name in self.names():
                with contextlib.suppress(BadInput):
                    self._replaced.discard(self.manifest(name).blob)
            while self._replaced:
                self.blob_path(self._replaced.pop()).unlink(missing_ok=True)

    def verify(self, cases: Mapping[str, Case], names: Collection[str] | None = None) -> Iterator[Problem]:
        """Check every file: hashes, recipes against the present cases, missing goldens and unused files.

        names: the manifests to check; by default all, and then every file of the store
        """
        wanted = set()
        everything = self.names()
        names = everything if names is None else names
        for name in names:
            try:
                manifest = self.get(name).manifest
            except BadInput as error:
                yield Problem("corrupt", str(error), name)
                continue
            wanted.add(self.blob_path(manifest.blob))
            if name not in cases:
                yield Problem("extra", f"{name}: this refsd has no such case", name)
            elif change := self.change(manifest, cases[name]):
                yield Problem("changed", f"{name}: {change} since its golden was made", name)
        for name in sorted(cases.keys() - set(names)):
            yield Problem("missing", f"{name}: no golden", name)
        if len(names) < len(everything):
            return
        for path in sorted(p for p in (self.root / "blobs").glob("*") if p.is_file()):
            if path not in wanted:
                yield Problem("extra", f"{path}: no manifest wants it; remove it")
        for path in abandoned(self.root / "tmp"):
            yield Problem("extra", f"{path}: left by an interrupted run; `refsd golden make` removes it")


def prepare(
    case: Case, inputs: Mapping[str, StoredTensor], outputs: Mapping[str, np.ndarray], refsd: str, weights: str
) -> tuple[Manifest, bytes]:
    """Return the manifest and the blob of an answer that this process computed.

    outputs: float64; refsd: its version; weights: SHA-256 of the recipes of the model's weights
    """
    arrays = {name: np.ascontiguousarray(y) for name, y in sorted(outputs.items())}
    data = safetensors.numpy.save(arrays)
    manifest = Manifest(
        FORMAT,
        case,
        NUMERICS,
        hashlib.sha256(data).hexdigest(),
        len(data),
        {name: _note(y) for name, y in arrays.items()},
        _digests(inputs),
        {"refsd": refsd, **_generator()},
        weights,
    )
    return manifest, data


def make(
    store: Store,
    cases: Iterable[Case],
    reference: Engine,
    done: Callable[[Case, bool], None] = lambda case, new: None,
) -> int:
    """Answer and store every case that the store lacks -> how many were new. Calls done(case, new) after each."""
    store.sweep()
    new = 0
    for case in cases:
        fresh = not store.has(case)
        if fresh:
            inputs = case.realize()
            store.put(case, inputs, reference.run(case, inputs), reference.version)
            new += 1
        done(case, fresh)
    store.sweep()
    return new


def recompute(golden: Golden, case: Case, reference: Engine) -> Problem | None:
    """Compute the golden's case again: None if every output agrees, bit for bit or to a relative L2 of 1e-13."""
    again = reference.run(case, case.realize())
    if again.keys() != golden.outputs.keys():
        what = f"{case.name}: outputs {sorted(again)}, the golden has {sorted(golden.outputs)}"
        return Problem("drift", what, case.name)
    for name, y in golden.outputs.items():
        if np.array_equal(y, again[name], equal_nan=True):
            continue
        distance = np.linalg.norm(y - again[name]) / max(np.linalg.norm(y), np.finfo(np.float64).tiny)
        if y.shape != again[name].shape or not distance <= 1e-13:
            what = f"{case.name}: {name} is now {distance:.3g} away (relative L2); allowed 1e-13"
            return Problem("drift", what, case.name)
    return None


def _note(tensor: np.ndarray) -> TensorNote:
    digest = hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest()
    return TensorNote(tensor.shape, str(tensor.dtype), digest)


def _digests(inputs: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Return name -> the SHA-256 of the tensor's bytes."""
    return {name: hashlib.sha256(np.ascontiguousarray(t.data).tobytes()).hexdigest() for name, t in inputs.items()}


def _as_stored(case: Case) -> Case:
    """Return the case as a manifest gives it back: 999 in a float field becomes 999.0, a tuple becomes a list."""
    return msgspec.json.decode(msgspec.json.encode(case), type=Case)


@functools.cache
def _generator() -> dict[str, str]:
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return {
        "numpy": np.__version__,
        "numba": numba.__version__,
        "blas": ", ".join(
            sorted({f"{p['internal_api']} {p['version']} {p.get('architecture', '')}" for p in pools})
        ),
        "machine": f"{platform.system()} {platform.machine()}",
    }
