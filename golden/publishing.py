"""Copy goldens that were made here to the URL of their store. Several machines may do so at once."""

import msgspec

from refsd.golden.case import Case
from refsd.golden.origins import UrlFolder
from refsd.golden.store import Manifest, Store
from refsd.numerics.errors import BadInput


def can_publish(store: Store) -> bool:
    """Return True if the store is at a URL that may be written."""
    return isinstance(store.origin, UrlFolder) and store.origin.writable


def publish(store: Store, case: Case) -> bool:
    """Write a golden to the store's URL, the blob before its manifest. -> False if the URL has a valid one

    What is there and answers the same case stays: of two machines with other last bits the first one is kept. Blobs
    are named by their content: nobody replaces another's.

    Raises BadInput if the store has no golden of the case, or if the URL cannot be written.
    """
    there = store.origin
    if not isinstance(there, UrlFolder):
        raise BadInput(f"{store.root}: not the store of a URL")
    manifest_path = store.manifest_path(case.name)
    blob = store.blob_path(store.get(case.name).manifest.blob)
    names = [path.relative_to(store.root).as_posix() for path in (blob, manifest_path)]
    if _valid(store, case, there, there.read(names[1])):
        return False
    for name in names:
        there.write(name, (store.root / name).read_bytes())
    return True


def _valid(store: Store, case: Case, there: UrlFolder, data: bytes | None) -> bool:
    """Return True if these are the bytes of a manifest that answers the case, and its blob is there."""
    if data is None:
        return False
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
        blob = store.blob_path(manifest.blob).relative_to(store.root).as_posix()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadInput):
        return False
    return not store.change(manifest, case) and there.has(blob)
