"""Where recipe weights are kept between runs: the user's cache folder, under the hash of their recipes."""

import functools
import hashlib
import os
import tempfile
from pathlib import Path

import platformdirs

from refsd.golden.case import ModelRecipe
from refsd.golden.store import Store
from refsd.weights import recipes


@functools.cache
def fingerprint(model: ModelRecipe) -> str:
    """The SHA-256 of all recipes of a model's weights. Raises BadInput for an unknown family or type."""
    key = hashlib.sha256(repr(model).encode())
    for name, recipe in recipes.all_recipes(model).items():
        key.update(f"{name} {recipe}\n".encode())
    return key.hexdigest()


def model_files(model: ModelRecipe, layout: str) -> Path:
    """The file (layout "ldm") or folder ("diffusers") of a model's weights, made at the first call.

    Raises BadInput for an unknown family or type.
    """
    cache = Path(os.environ.get("REFSD_CACHE") or platformdirs.user_cache_path("refsd")) / "models"
    size = "tiny" if model.tiny else "full"
    folder = cache / f"{model.family}-{size}-{model.type}-{fingerprint(model)[:16]}"
    suffix = ".safetensors" if model.type in recipes.FLOAT_TYPES else ".gguf"
    path = folder / ("diffusers" if layout == "diffusers" else f"model{suffix}")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            recipes.make(model, made, layout, lambda count: None)
            made.rename(path)
    return path


def open_store(root: Path) -> Store:
    """Goldens that know which weights they were made with. Raises BadInput if it is no folder."""
    return Store(root, fingerprint)
