"""All components that the torch engine can run, by operation, and the classes whose calls can be watched."""

from refsd.models.catalogue import pages
from refsd.networks.original import Original, Reader

_PAGES = pages("original")
MODELS: dict[str, Original] = {
    f"model/{component}": original
    for page in _PAGES
    for component, original in getattr(page, "ORIGINALS", {}).items()
}
# Name of the module's class -> readers of its calls.
READERS: dict[str, tuple[Reader, ...]] = {
    name: readers for page in _PAGES for name, readers in getattr(page, "READERS", {}).items()
}
