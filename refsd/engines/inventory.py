"""List the engines: which are there, on which devices, and how to get the others."""

from collections.abc import Callable

import msgspec

from refsd.engines import registry
from refsd.engines.devices import device_of
from refsd.golden.engine import EngineFailure, EngineSearch, ModelFiles
from refsd.numerics.errors import BadInput


class Entry(msgspec.Struct, frozen=True):
    """A line of the list.

    argument: what to give `refsd conform`
    version:  of the engine; "" if it cannot be judged so
    device:   what it computes on
    missing:  why it cannot be judged, and what to do; "" if it can
    """

    argument: str
    version: str = ""
    device: str = ""
    missing: str = ""


def inventory(
    model_files: ModelFiles | None = None, done: Callable[[str], None] = lambda kind: None
) -> list[Entry]:
    """Load every engine that `refsd conform` would look for by itself, and list it with its devices."""
    entries = []
    for kind in registry.modules():
        if example := registry.example(kind):
            entries.append(Entry(kind, missing=f"name it: {example}"))
        else:
            looked = registry.find(kind, model_files=model_files)
            entries += [_entry(one) for one in looked]
            if any(one.engine is not None for one in looked):
                entries += _elsewhere(kind)
        done(kind)
    return entries


def _entry(one: EngineSearch) -> Entry:
    if one.engine is None:
        return Entry(one.name, missing=one.why_not)
    return Entry(one.name, one.engine.version, device_of(one.engine))


def _elsewhere(kind: str) -> list[Entry]:
    """List the devices of an engine but the processor, on which it is listed already."""
    if not registry.has_devices(kind):
        return []
    try:
        found = registry.load(kind).devices()
    except (BadInput, EngineFailure) as error:
        return [Entry(f"{kind}@DEVICE", missing=f"its devices cannot be listed: {error}")]
    return [Entry(f"{kind}@{one.name}", device=one.title) for one in found if one.name.lower() != "cpu"]
