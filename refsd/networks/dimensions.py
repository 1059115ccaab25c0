"""Compute shapes of layers, and read dimensions back from shapes."""

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


def has(shapes: Mapping[str, Shape], prefix: str | tuple[str, ...]) -> bool:
    """True if any name begins with the prefix."""
    return any(name.startswith(prefix) for name in shapes)


_USUAL_MULTIPLES = (1, 2, 4, 4)  # channels of SD's levels, as multiples of the first level's


def level_width(shapes: Mapping[str, Shape], conv: str, channels: int, level: int) -> int:
    """Return the channels of a level from its first convolution; if it is missing, SD's multiple of `channels`."""
    usual = _USUAL_MULTIPLES[min(level, len(_USUAL_MULTIPLES) - 1)] * channels
    return dim(shapes, f"{conv}.weight", 0, dim(shapes, f"{conv}.bias", 0, usual))
