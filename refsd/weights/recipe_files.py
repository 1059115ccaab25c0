"""Files of recipe weights for engines: small models are made in each run, large ones are kept between runs."""

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from refsd.files import checksums
from refsd.golden.case import ModelRecipe
from refsd.golden.scratch import MAKING, Scratch, locked, remove
from refsd.numerics.errors import BadInput
from refsd.weights import recipes

# Largest model in bytes that is made anew in each run: that takes half a second at most, and leaves no file on
# disk that could be damaged later.
SMALL = 1 << 27
# Bytes of small models that `trim` leaves on disk.
_BETWEEN = 1 << 28


@functools.cache
def fingerprint(model: ModelRecipe) -> str:
    """Return the SHA-256 of all recipes of a model's weights. Raises BadInput for an unknown family or type."""
    said = ", ".join(f"{name}={value!r}" for name, value in msgspec.to_builtins(model).items())
    key = hashlib.sha256(f"ModelRecipe({said})".encode())
    for name, recipe in recipes.all_recipes(model).items():
        key.update(f"{name} {recipe}\n".encode())
    return key.hexdigest()


class _Made(NamedTuple):
    path: Path
    stamp: checksums.Stamp

    @property
    def bytes(self) -> int:
        return sum(size for _, _, _, size, _, _ in self.stamp)


class RecipeFiles:
    """Return the file (layout "ldm") or folder ("diffusers") of a model's weights, making it on the first call.

    Models up to SMALL bytes are made in a temporary folder, which `trim` keeps small and which is removed with this
    object, or at the end of a `with`. Larger ones are made in `kept` and stay there, each beside its SHA-256 list,
    which is checked once per run, and again if the file's status changes; a damaged model is made again.

    kept:  a folder, which need not exist
    note:  called with one line of text when a kept model is made or found damaged
    fresh: make large models anew in this run too; read no kept model
    """

    def __init__(self, kept: Path, note: Callable[[str], None] = lambda line: None, fresh: bool = False):
        self._kept, self._note, self._fresh = kept, note, fresh
        self._checked: dict[Path, checksums.Stamp] = {}
        self._made: dict[tuple[ModelRecipe, str], _Made] = {}  # least recently used first
        self._scratch: dict[Path, Scratch] = {}

    def __call__(self, model: ModelRecipe, layout: str) -> Path:
        """Return the model's path. Raises BadInput for an unknown family, type or layout, or if writing fails."""
        try:
            if self._fresh or recipes.size(model) <= SMALL:
                return self._of_this_run(model, layout)
            return self._of_all_runs(model, layout)
        except OSError as error:
            where = error.filename or self._kept
            raise BadInput(f"{where}: cannot keep recipe weights there: {error.strerror or error}") from None

    def kept_size(self, model: ModelRecipe) -> int:
        """Return the bytes of a kept model's file; 0 if it must be made."""
        path = self._kept.absolute() / _folder(model) / _name(model, "ldm")
        return path.stat().st_size if path.is_file() else 0

    def trim(self) -> None:
        """Remove the least recently used small models beyond _BETWEEN bytes; call this while no engine runs."""
        while len(self._made) > 1 and sum(made.bytes for made in self._made.values()) > _BETWEEN:
            oldest = next(iter(self._made))
            remove(self._made.pop(oldest).path)

    def __enter__(self) -> "RecipeFiles":
        return self

    def __exit__(self, *_) -> None:
        """Remove the small models."""
        for scratch in self._scratch.values():
            scratch.close()

    def _of_this_run(self, model: ModelRecipe, layout: str) -> Path:
        made = self._made.pop((model, layout), None)
        if made is not None and checksums.stamp(made.path) != made.stamp:
            self._note(f"{made.path}: an engine or another program changed it; made again")
            remove(made.path)
            made = None
        if made is None:
            parent = Path(tempfile.gettempdir()) if recipes.size(model) <= SMALL else self._kept
            if parent not in self._scratch:
                self._scratch[parent] = Scratch(parent, "refsd-models-" if parent != self._kept else MAKING)
            path = self._scratch[parent].path / _folder(model) / _name(model, layout)
            recipes.make(model, path, layout)
            made = _Made(path, checksums.stamp(path))
        self._made[model, layout] = made
        return made.path

    def _of_all_runs(self, model: ModelRecipe, layout: str) -> Path:
        path = self._kept.absolute() / _folder(model) / _name(model, layout)
        stamp = checksums.stamp(path)
        if stamp and self._checked.get(path) == stamp:
            return path
        if checksums.damage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.parent):  # another process may be making it
                self._mend(model, layout, path)
                stamp = checksums.stamp(path)
        self._checked[path] = stamp
        return path

    def _mend(self, model: ModelRecipe, layout: str, path: Path) -> None:
        """Make a kept model that is missing or damaged, unless another process has just made it."""
        fault = checksums.damage(path)
        if not fault:
            return
        if os.path.lexists(path):
            self._note(f"{path}: {fault}; it is made again")
        else:
            size = f"{recipes.size(model) / 1e9:.1f} GB"
            self._note(f"making {path}, {size}, kept for later runs: `refsd cache` shows and clears it")
        with Scratch(self._kept, MAKING) as scratch:
            made = scratch / path.name
            recipes.make(model, made, layout)
            checksums.write(made)
            # Move the list first: a model without its list counts as damaged.
            for new, old in ((checksums.beside(made), checksums.beside(path)), (made, path)):
                if os.path.lexists(old):
                    os.replace(old, scratch / "old")
                    remove(scratch / "old")
                os.replace(new, old)
            checksums.flush(path.parent)


def _folder(model: ModelRecipe) -> str:
    return f"{model.family}-{'tiny' if model.tiny else 'full'}-{model.type}-{fingerprint(model)[:16]}"


def _name(model: ModelRecipe, layout: str) -> str:
    return "diffusers" if layout == "diffusers" else f"model{recipes.suffix(model.type)}"
