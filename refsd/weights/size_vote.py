"""Infer a network's size by vote, so that one wrong tensor misleads nobody.

A network's `size` reads single tensors: the MLP's width from the first block, the depth from the highest number in
a name. If one of these is damaged, all healthy ones look wrong. The vote tries the sizes that other readings give,
and takes the one that most tensors agree with.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from refsd.families import FAMILIES
from refsd.models.catalogue import NETWORKS
from refsd.networks.dimensions import Shape, Shapes
from refsd.networks.network import Network

# A tensor that contradicts a size counts as much as so many that the file lacks.
_CONTRADICTION = 4
_ROUNDS, _READINGS = 4, 96
_NUMBER = re.compile(r"(?:^|\.)[0-9]{1,4}\.")


class Published(NamedTuple):
    """A size of a network that somebody has released, or the tiny one of a recipe; `name` is the recipe's."""

    name: str
    size: Any


@functools.cache
def published(component: str) -> tuple[Published, ...]:
    """Return the known sizes of a network: those of recipes, of adapters' models, and its usual one."""
    network = NETWORKS[component]
    found: dict[Any, str] = {}
    for page in (*FAMILIES.values(), *NETWORKS.values()):
        for name, model in page.recipes.items():
            if component in model.parts:
                found.setdefault(model.parts[component].full, name)
                found.setdefault(model.parts[component].tiny, f"{name}, tiny")
    for family in FAMILIES.values():
        for title, sizes in family.sizes.items():
            if component in sizes:
                found.setdefault(sizes[component], title)
    if network.usual is not None:
        found.setdefault(network.usual, network.title)
    return tuple(Published(name, size) for size, name in found.items())


def voted_size(component: str, shapes: Mapping[str, Shape]) -> Any:
    """Return the size of a network, a NamedTuple, that contradicts the fewest of its tensors.

    shapes: tensor name, as in the original -> shape
    """
    return _voted_size(component, tuple(shapes.items()))


# A file is asked for its size by each of its checks.
@functools.lru_cache(16)
def _voted_size(component: str, named: tuple[tuple[str, Shape], ...]) -> Any:
    network, shapes = NETWORKS[component], dict(named)
    size = network.size(shapes)
    least = disagreement(network, size, shapes)
    if not least:
        return size
    believed: Mapping[str, Shape] = shapes
    for _ in range(_ROUNDS):
        before = least
        for reading in _other_readings(network, believed):
            other = network.size(reading)
            found = disagreement(network, other, shapes) if other != size else least
            if found < least:
                least, size, believed = found, other, reading
        if least in (0, before):
            break
    sizes = [known.size for known in published(component)]
    for known in sizes:
        found = disagreement(network, known, shapes)
        if found < least or (found == least and size not in sizes):
            least, size = found, known
    return size


def believed_shapes(component: str, shapes: Mapping[str, Shape]) -> Shapes:
    """Return the shapes with those that contradict the vote replaced by what the vote expects."""
    expected = NETWORKS[component].shapes(voted_size(component, shapes))
    return {
        name: expected[name] if name in expected and not same_shape(shape, expected[name]) else shape
        for name, shape in shapes.items()
    }


def disagreement(network: Network, size: Any, shapes: Mapping[str, Shape]) -> int:
    """Measure how badly a size fits: missing tensors, and contradicting ones several times."""
    expected = network.shapes(size)
    there = expected.keys() & shapes.keys()
    wrong = sum(not same_shape(shapes[name], expected[name]) for name in there)
    return _CONTRADICTION * (wrong + len(shapes) - len(there)) + len(expected) - len(there)


def same_shape(found: Shape, expected: Shape) -> bool:
    """Compare two shapes, except for an outermost dimension of 1, which GGUF drops."""
    return found == expected or (math.prod(found) == math.prod(expected) and _trimmed(found) == _trimmed(expected))


def tail(name: str) -> str:
    """Return a name without its block: what follows the first number; "" for a name outside the blocks.

    "layers.3.feed_forward.w1.weight" and "context_refiner.0.feed_forward.w1.weight" have the same tail.
    """
    number = _NUMBER.search(name)
    return name[number.end() :] if number else ""


def block(name: str) -> tuple[str, int]:
    """Return the stack and the number of a name's block: "layers", 3 of "layers.3.feed_forward.w1.weight".

    -> the name and -1 for a name outside the blocks
    """
    number = _NUMBER.search(name)
    if number is None:
        return name, -1
    return name[: number.start()], int(number[0].strip("."))


def _trimmed(shape: Shape) -> Shape:
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape


class _Recorded(Mapping[str, Shape]):
    """Shapes that note the names whose shape is read."""

    def __init__(self, shapes: Mapping[str, Shape]):
        self.shapes = shapes
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> Shape:
        shape = self.shapes[name]
        self.read[name] = None
        return shape

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes


def _other_readings(network: Network, shapes: Mapping[str, Shape]) -> Iterator[Mapping[str, Shape]]:
    """Yield the shapes with one tensor that `size` reads turned, absent or as its siblings have it; then with all
    matrices turned, and without a block that is hardly there.
    """
    recorded = _Recorded(shapes)
    network.size(recorded)
    of_tail: dict[str, Counter[Shape]] = {}
    for name, shape in shapes.items():
        of_tail.setdefault(tail(name), Counter())[shape] += 1
    for name in list(recorded.read)[:_READINGS]:
        shape = shapes[name]
        usual = of_tail[tail(name)].most_common(1)[0][0] if tail(name) else shape
        for other in {shape[::-1], usual} - {shape}:
            yield {**shapes, name: other}
        yield {other: of for other, of in shapes.items() if other != name}
    yield {name: shape[::-1] for name, shape in shapes.items()}
    for sparse in _sparse_blocks(shapes):
        yield {name: shape for name, shape in shapes.items() if not name.startswith(sparse)}


def _sparse_blocks(shapes: Iterable[str]) -> list[str]:
    """Return the prefixes of numbered blocks with less than half as many tensors as the fullest of their stack."""
    stacks: dict[str, Counter[int]] = {}
    for name in shapes:
        stack, number = block(name)
        if number >= 0:
            stacks.setdefault(stack, Counter())[number] += 1
    fullest = {stack: max(of.values()) for stack, of in stacks.items()}
    return [
        f"{stack}.{number}." for stack, of in stacks.items() for number, n in of.items() if 2 * n < fullest[stack]
    ]
