"""Compute shapes of layers, and read dimensions back from shapes."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
Size = TypeVar("Size", bound=Any)


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    return shapes | {f"{name}.bias": (outputs,)} if bias else shapes


def bare(name: str, inputs: int, outputs: int) -> Shapes:
    """Return the shape of a linear layer without a bias."""
    return linear(name, inputs, outputs, bias=False)


def conv(name: str, inputs: int, outputs: int, side: int = 3, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs, side, side)}
    return shapes | {f"{name}.bias": (outputs,)} if bias else shapes


def norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def count(names: Iterable[str], prefix: str, default: int) -> int:
    """Count numbered blocks: return one more than the highest number that follows `prefix` in a name, or `default`.

    Numbers of more than two digits are ignored, so that no name in a file can make a huge table.
    """
    found = -1
    for name in names:
        if name.startswith(prefix):
            digits = name[len(prefix) :].partition(".")[0]
            if digits.isascii() and digits.isdigit() and len(digits) <= 2:
                found = max(found, int(digits))
    return found + 1 or default


def blocks(shapes: Mapping[str, Shape], prefix: str, usual: int, around: Iterable[str]) -> int:
    """Count blocks as `count` does; without any, return 0 if all tensors `around` them exist, else `usual`."""
    return count(shapes, prefix, 0 if all(name in shapes for name in around) else usual)


def dim(shapes: Mapping[str, Shape], name: str, axis: int, default: int) -> int:
    """Return one dimension of a tensor, or the default if the tensor is missing or has too few axes."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) and shape[axis] > 0 else default


class _Dimension(int):
    field: str  # of the size; a table of shapes that has it as a dimension keeps it


@functools.cache
def _places(usual: Any, table: Callable[[Any], Shapes]) -> dict[str, list[tuple[str, int]]]:
    """Return field -> (tensor, axis) of the dimensions that are this field, in the order of the table."""
    places: dict[str, list[tuple[str, int]]] = {}
    marked = {}
    for field, n in usual._asdict().items():
        if type(n) is int:
            marked[field] = _Dimension(n)
            marked[field].field = field
    for name, shape in table(usual._replace(**marked)).items():
        for axis, n in enumerate(shape):
            if isinstance(n, _Dimension):
                places.setdefault(n.field, []).append((name, axis))
    return places


def read_size(usual: Size, table: Callable[[Size], Shapes], shapes: Mapping[str, Shape], /, **others: Any) -> Size:
    """Infer a network's size: each field from the first tensor present that has it as a dimension in its table.

    usual:  the size whose values fields have if all their tensors are missing, a NamedTuple
    others: values of the fields that are no dimension: numbers of blocks, what is computed from several
    """
    places = _places(usual, table)
    for field in [field for field in usual._fields if field not in others]:
        found = (dim(shapes, name, axis, 0) for name, axis in places[field])
        others[field] = next(filter(None, found), getattr(usual, field))
    return usual._replace(**others)


def has(shapes: Mapping[str, Shape], prefix: str | tuple[str, ...]) -> bool:
    """True if any name begins with the prefix."""
    return any(name.startswith(prefix) for name in shapes)


def one_stack(
    shapes: Mapping[str, Shape], stack: str, usual: int, stacks: tuple[str, ...], around: Iterable[str]
) -> int:
    """Count one of several stacks' blocks. If the file has only the others', assume the usual number."""
    return count(shapes, stack, usual) if has(shapes, stacks) else blocks(shapes, stack, usual, around)


_USUAL_MULTIPLES = (1, 2, 4, 4)  # channels of SD's levels, as multiples of the first level's


def level_width(shapes: Mapping[str, Shape], conv: str, channels: int, level: int) -> int:
    """Return the channels of a level from its first convolution; if it is missing, SD's multiple of `channels`."""
    usual = _USUAL_MULTIPLES[min(level, len(_USUAL_MULTIPLES) - 1)] * channels
    return dim(shapes, f"{conv}.weight", 0, dim(shapes, f"{conv}.bias", 0, usual))
