"""Locate the folder of results that the next run of refsd can reuse."""

import os
from pathlib import Path

import platformdirs

from refsd.numerics.errors import BadInput


def cache_folder(name: str) -> Path:
    """Return the folder of this name in $REFSD_CACHE, else in the user's cache. It need not exist.

    Raises BadInput where the user has no home folder.
    """
    named = os.environ.get("REFSD_CACHE")
    root = Path(named).absolute() if named else platformdirs.user_cache_path("refsd")
    if not root.is_absolute():
        raise BadInput(f"{root}: this user has no home folder: name a folder for refsd's caches in REFSD_CACHE")
    return root / name
