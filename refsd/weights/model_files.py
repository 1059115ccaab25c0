"""Make the recipe-weight files that commands use, and open stores of goldens for them."""

import hashlib
import os
import sys
from pathlib import Path

from refsd.golden.cache_folder import cache_folder
from refsd.golden.case import ModelRecipe
from refsd.golden.input_file import note_input_folder
from refsd.golden.origins import is_remote, open_origin
from refsd.golden.store import Store
from refsd.numerics.errors import BadInput
from refsd.weights.recipe_files import RecipeFiles, fingerprint

_RECIPE = "recipe:"


def model_files(model: ModelRecipe, layout: str) -> Path:
    """Return the file (layout "ldm") or folder ("diffusers") of a model's weights; make it at the first call.

    Raises BadInput for an unknown family or type.
    """
    return _files()(model, layout)


def model_path(model: str | os.PathLike[str] | ModelRecipe) -> Path:
    """Return a model's file or folder. model: its path, a recipe, or "recipe:FAMILY[:TYPE][:tiny]"

    Raises BadInput for a recipe that says something else.
    """
    if isinstance(model, ModelRecipe):
        return model_files(model, "ldm")
    text = os.fspath(model)
    if not text.startswith(_RECIPE):
        return Path(model)
    family, *rest = text.removeprefix(_RECIPE).split(":")
    tiny = rest[-1:] == ["tiny"]
    types = rest[:-1] if tiny else rest
    if len(types) > 1:
        raise BadInput(f"{text!r}: expected recipe:FAMILY[:TYPE][:tiny], as recipe:sd15:q8_0:tiny")
    return model_files(ModelRecipe(family, *types, tiny=tiny), "ldm")


def kept_size(model: ModelRecipe) -> int:
    """Return the bytes of a model's weights that an earlier run has left; 0 if they must be made."""
    return _files().kept_size(model)


def trim_model_files() -> None:
    """Remove small models that have not been used recently. Call it only while no engine runs."""
    for files in _opened.values():
        files.trim()


def fresh_model_files() -> RecipeFiles:
    """Return model files that are made anew from their recipes, without reading cached files."""
    return RecipeFiles(cache_folder("models"), _note, fresh=True)


def open_store(store: str | Path) -> Store:
    """Open a store of goldens, which records a fingerprint of the weights; protect it from this run's outputs.

    store: a folder, a packed file or a URL (golden/origins.py). What is fetched or made for the last two is kept in
           refsd's cache

    Raises BadInput for a file that is no folder and no packed store, and for a URL that cannot be read.
    """
    text = str(store)
    if not is_remote(text):
        note_input_folder(Path(store))
        return Store(Path(store), fingerprint)
    fetched = cache_folder("fetched")
    origin = open_origin(text, fetched)
    return Store(fetched / hashlib.sha256(text.encode()).hexdigest()[:16], fingerprint, origin)


_opened: dict[Path, RecipeFiles] = {}


def _files() -> RecipeFiles:
    kept = cache_folder("models")
    return _opened.get(kept) or _opened.setdefault(kept, RecipeFiles(kept, _note))


def _note(line: str) -> None:
    print(f"refsd: {line}", file=sys.stderr, flush=True)
