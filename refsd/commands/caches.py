"""The cache folders that refsd keeps between runs: location, content, and removal."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import platformdirs

from refsd.golden.cache_folder import cache_folder
from refsd.golden.scratch import MAKING, abandoned, remove
from refsd.numerics.errors import BadInput

KEPT = r"[a-z0-9-]+-(full|tiny)-[a-z0-9_]+-[0-9a-f]{16}"  # names of folders of kept models


def kernel_folder() -> Path | None:
    """The folder above kernels/_jit.py's cache_dir, found without Numba, which takes a second to import."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_path("refsd") / "kernels")
    return folder if folder.is_absolute() or "NUMBA_CACHE_DIR" in os.environ else None


class Cache(NamedTuple):
    """A cache folder.

    what:    its content, in a few words
    place:   function that returns the folder; None: there is none
    entries: regular expression of refsd's entries; nothing else in the folder is counted or removed
    making:  prefix of temporary folders in which entries are made; those of running processes are kept
    """

    what: str
    place: Callable[[], Path | None]
    entries: str
    making: str = ""

    def owned(self) -> Iterator[Path]:
        """Yield its entries, and temporary folders that killed processes left."""
        place = self.place()
        if place is None or not place.is_dir():
            return
        yield from (path for path in sorted(place.iterdir()) if re.fullmatch(self.entries, path.name))
        if self.making:
            yield from abandoned(place, self.making)

    def clear(self) -> int:
        """Remove all entries -> number of bytes freed. Raises BadInput for an entry that cannot be removed."""
        freed = 0
        for path in self.owned():
            freed += size(path)
            remove(path)
            if os.path.lexists(path):
                raise BadInput(f"{path}: cannot remove it; whose is it?")
        return freed


CACHES = {
    "models": Cache("recipe weights of large models", lambda: cache_folder("models"), KEPT, MAKING),
    "goldens": Cache("answers for the Python API", lambda: cache_folder("goldens"), "cases|blobs|tmp"),
    "fetched": Cache("goldens of URLs and packed files", lambda: cache_folder("fetched"), r"[0-9a-f]{16}(\.tar)?"),
    "kernels": Cache("compiled kernels", kernel_folder, r"[0-9a-f]{16}"),
    "taps": Cache("the compiled tap for sd-cli", lambda: cache_folder("taps"), r"sdcpp-[0-9a-f]{16}\.so", MAKING),
}


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; links are not followed."""
    total = 0
    for file in [path] if path.is_symlink() or not path.is_dir() else path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process has just moved it
            total += 0 if file.is_dir() and not file.is_symlink() else os.lstat(file).st_size
    return total
