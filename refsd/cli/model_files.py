"""Make the recipe-weight files that commands use, and open stores of goldens for them."""

import functools
from pathlib import Path

import typer

from refsd.golden.cache_folder import cache_folder
from refsd.golden.case import ModelRecipe
from refsd.golden.input_file import note_input_folder
from refsd.golden.store import Store
from refsd.weights.recipe_files import RecipeFiles, fingerprint


def model_files(model: ModelRecipe, layout: str) -> Path:
    """Return the file (layout "ldm") or folder ("diffusers") of a model's weights; make it at the first call.

    Raises BadInput for an unknown family or type.
    """
    return _files()(model, layout)


def trim_model_files() -> None:
    """Remove small models that have not been used recently. Call it only while no engine runs."""
    _files().trim()


def fresh_model_files() -> RecipeFiles:
    """Return model files that are made anew from their recipes, without reading cached files."""
    return RecipeFiles(cache_folder("models"), _note, fresh=True)


def open_store(root: str | Path) -> Store:
    """Open a store of goldens, which records a fingerprint of the weights; protect it from this run's outputs.

    Raises BadInput if `root` is not a folder.
    """
    note_input_folder(Path(root))
    return Store(Path(root), fingerprint)


def _files() -> RecipeFiles:
    return _files_in(cache_folder("models"))


@functools.cache
def _files_in(kept: Path) -> RecipeFiles:
    return RecipeFiles(kept, _note)


def _note(line: str) -> None:
    typer.echo(f"refsd: {line}", err=True)
