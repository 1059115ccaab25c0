"""All components that the torch engine can run, by operation, and the classes whose calls can be watched."""

from refsd.models.catalogue import pages
from refsd.networks.original import Original, Reader

_ORIGINALS: dict[str, Original] = {}
# Name of the module's class -> readers of its calls.
READERS: dict[str, tuple[Reader, ...]] = {}
for _page in pages("original"):
    _originals = getattr(_page, "ORIGINALS", {})
    _ORIGINALS |= _originals
    READERS |= {one.kind: (Reader(name, one.read),) for name, one in _originals.items() if one.read}
    READERS |= getattr(_page, "READERS", {})
MODELS = {f"model/{component}": original for component, original in _ORIGINALS.items()}
