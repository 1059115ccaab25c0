"""Tell an incomplete copy of a published model from another architecture."""

from collections.abc import Iterable
from typing import NamedTuple

from refsd.models.catalogue import NETWORKS
from refsd.networks.dimensions import Shapes
from refsd.weights.component import Component
from refsd.weights.size_vote import block, published, same_shape, tail


class Lacking(NamedTuple):
    """What a component lacks of the published size that is nearest to it.

    title:    the published model
    names:    the tensors that are not there, under the original's names
    universe: all tensors of the published model
    sure:     False if whole blocks are missing at the end of a stack: somebody may have pruned the model
    """

    title: str
    names: list[str]
    universe: list[str]
    sure: bool


def nearest(component: Component) -> Lacking | None:
    """Return what a component lacks of a published model of which it holds half at least, and nothing else.

    None for a published size, and for one that config.json beside the file confirms.
    """
    size, shapes = component.size, component.weights.shapes
    sizes = published(component.name)
    beside = component.weights.file.path.with_name("config.json").is_file()
    if beside or any(known.size == size for known in sizes):
        return None
    best: Lacking | None = None
    for known in sizes:
        whole = NETWORKS[component.name].shapes(known.size)
        if not shapes.keys() < whole.keys() or 2 * len(shapes) < len(whole):
            continue
        if all(same_shape(shape, whole[name]) for name, shape in shapes.items()):
            names = [name for name in whole if name not in shapes]
            if _is_half(names, shapes) or _is_uniform(names, shapes):
                return None
            if best is None or len(names) < len(best.names):
                best = Lacking(known.name, names, list(whole), not _ends(names, shapes))
    return best


def _is_half(names: Iterable[str], there: Iterable[str]) -> bool:
    """True if an autoencoder's encoder or decoder is not there, and nothing else: files of one half exist."""
    halves = {name.partition(".")[0] for name in names}
    return halves in ({"encoder"}, {"decoder"}) and not any(name.startswith(f"{max(halves)}.") for name in there)


def _is_uniform(names: Iterable[str], there: Iterable[str]) -> bool:
    """True if no block has what is missing: another architecture, such as one with fewer layers in every level."""
    held = {(block(name)[0], tail(name)) for name in there}
    return not any((block(name)[0], tail(name)) in held for name in names)


def _ends(names: Iterable[str], there: Shapes) -> bool:
    """True if the names are whole blocks at the end of their stacks."""
    highest: dict[str, int] = {}
    for name in there:
        stack, n = block(name)
        highest[stack] = max(highest.get(stack, -1), n)
    return all(n >= 0 and n > highest.get(stack, -1) for stack, n in map(block, names))
