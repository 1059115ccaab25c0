"""The files of recipe weights that the commands use, and the stores that know these weights."""

import functools
from pathlib import Path

import typer

from refsd.golden.cache_folder import cache_folder
from refsd.golden.case import ModelRecipe
from refsd.golden.input_file import note_input_folder
from refsd.golden.store import Store
from refsd.weights.recipe_files import RecipeFiles, fingerprint


def model_files(model: ModelRecipe, layout: str) -> Path:
    """The file (layout "ldm") or folder ("diffusers") of a model's weights, made when first asked for.

    Raises BadInput for an unknown family or type.
    """
    return _files()(model, layout)


def trim_model_files() -> None:
    """Remove small models that were not asked for lately; call it while no engine runs."""
    _files().trim()


def fresh_model_files() -> RecipeFiles:
    """The same, made from their recipes in this run: no kept file is read."""
    return RecipeFiles(cache_folder("models"), _note, fresh=True)


def open_store(root: Path) -> Store:
    """Goldens that know which weights they were made with; no output of the run may lie among them.

    Raises BadInput if it is no folder.
    """
    note_input_folder(root)
    return Store(root, fingerprint)


def _files() -> RecipeFiles:
    return _files_in(cache_folder("models"))


@functools.cache
def _files_in(kept: Path) -> RecipeFiles:
    return RecipeFiles(kept, _note)


def _note(line: str) -> None:
    typer.echo(f"refsd: {line}", err=True)
