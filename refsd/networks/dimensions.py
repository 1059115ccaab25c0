"""Shapes of layers, and dimensions read back from shapes."""

from collections.abc import Iterable, Mapping

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    return shapes | {f"{name}.bias": (outputs,)} if bias else shapes


def conv(name: str, inputs: int, outputs: int, side: int = 3, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs, side, side)}
    return shapes | {f"{name}.bias": (outputs,)} if bias else shapes


def norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def count(names: Iterable[str], prefix: str, default: int) -> int:
    """One more than the highest number that follows `prefix` in a name.

    Numbers have up to two digits: one name must not make a large table.
    """
    found = -1
    for name in names:
        if name.startswith(prefix):
            digits = name[len(prefix) :].partition(".")[0]
            if digits.isascii() and digits.isdigit() and len(digits) <= 2:
                found = max(found, int(digits))
    return found + 1 or default


def blocks(shapes: Mapping[str, Shape], prefix: str, usual: int, around: Iterable[str]) -> int:
    """`count`; none where no name begins so and the tensors `around` the blocks are all there."""
    return count(shapes, prefix, 0 if all(name in shapes for name in around) else usual)


def dim(shapes: Mapping[str, Shape], name: str, axis: int, default: int) -> int:
    """One dimension; the default where the tensor is missing or has no such one."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) and shape[axis] > 0 else default


def has(shapes: Mapping[str, Shape], prefix: str | tuple[str, ...]) -> bool:
    """Whether any name begins so."""
    return any(name.startswith(prefix) for name in shapes)


_USUAL_MULTIPLES = (1, 2, 4, 4)  # SD's level widths, in units of the first


def level_width(shapes: Mapping[str, Shape], conv: str, channels: int, level: int) -> int:
    """Channels of a level, from its first convolution; where that is missing, SD's multiple of `channels`."""
    usual = _USUAL_MULTIPLES[min(level, len(_USUAL_MULTIPLES) - 1)] * channels
    return dim(shapes, f"{conv}.weight", 0, dim(shapes, f"{conv}.bias", 0, usual))
