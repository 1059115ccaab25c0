"""Read the declared shapes of an operation's arguments: check them, solve for sizes, make shapes of other sizes.

A page writes an argument's shape as

    [N, C/groups, H, W]            names of sizes; products, quotients and powers of them and of integer parameters
    [..., 2*D]                     "..." is any number of axes, the same axes in every argument
    [N or 1, L]                    this axis is N, or 1
    [H], x being [B, H, L, J]      if this argument is given, x has that shape
    [...], each below V            integers, each smaller than the size V
    broadcastable to x             to an argument, or to a shape in brackets
    a's shape but for the axis     the shape of a, except along the parameter `axis`
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from refsd.golden.operation import Operation
from refsd.numerics.errors import BadInput

Shapes = Mapping[str, tuple[int, ...]]
# Name -> size; the axes of "..." are called "...0", "...1" and so on.
Sizes = dict[str, int]

# The name of the size along `axis` in "a's shape but for the axis".
OWN_AXIS = "axis of its own"
_FACTOR = re.compile(r"([*/]?)\s*([A-Za-z_]\w*|\d+)(?:\^(\d+))?")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_BEING = re.compile(r"(\w+) being (\[[^\]]*\])")
_BROADCAST = re.compile(r"broadcastable to (.+)")
_BUT_ONE = re.compile(r"(\w+)'s shape but for the axis")
_BELOW = re.compile(r"each below (\w+)")


class Dimension(NamedTuple):
    """One axis as a product of factors, each a name or a number with its power; a negative power divides."""

    factors: tuple[tuple[str, int], ...]

    def value(self, known: Mapping[str, int]) -> int | None:
        """Return the size, multiplied and divided from left to right; None if a name is unknown.

        Raises BadInput for a division with a remainder.
        """
        size = 1
        for name, power in self.factors:
            number = int(name) if name.isdigit() else known.get(name)
            if number is None:
                return None
            if power > 0:
                size *= number**power
            elif number == 0 or size % number**-power:
                raise BadInput(f"{size} is no multiple of {name} = {number}")
            else:
                size //= number**-power
        return size

    def unknown(self, known: Mapping[str, int]) -> list[tuple[str, int]]:
        return [(name, power) for name, power in self.factors if not name.isdigit() and name not in known]

    def solve(self, size: int, known: Mapping[str, int]) -> int:
        """Return the size of the only unknown name. Raises BadInput if it would not be an integer."""
        (name, _), *_ = self.unknown(known)
        rest = Dimension(tuple(factor for factor in self.factors if factor[0] != name))
        top = Dimension(tuple(factor for factor in rest.factors if factor[1] > 0)).value(known) or 1
        below = Dimension(tuple((n, -p) for n, p in rest.factors if p < 0)).value(known) or 1
        if size * below % top:
            raise BadInput(f"{size} is no multiple of {top}")
        return size * below // top


def _dimension(text: str) -> Dimension:
    """Parse an axis such as "C*patch^2"; of "N or 1" the N."""
    found = _FACTOR.findall(text.split(" or ")[0])
    return Dimension(tuple((name, (-1 if sign == "/" else 1) * int(power or 1)) for sign, name, power in found))


def _axes(text: str, rank: int) -> list[Dimension]:
    """Parse a shape in brackets, with "..." expanded so that there are `rank` axes."""
    match = _BRACKETS.match(text)
    assert match, f"no shape: {text!r}"
    parts = [part.strip() for part in match[1].split(",")]
    if "..." in parts:
        at = parts.index("...")
        parts[at : at + 1] = [f"...{i}" for i in range(rank - len(parts) + 1)]
    if len(parts) != rank:
        raise BadInput(f"{rank} axes, expected {text}")
    return [Dimension(((part, 1),)) if part.startswith("...") else _dimension(part) for part in parts]


def declared(op: Operation, given: Shapes) -> dict[str, str]:
    """Return the declared shape of each given argument, with every "x being [...]" of the given ones applied."""
    texts = {name: op.inputs[name if name in op.inputs else f"{name}?"] for name in given}
    for text in tuple(texts.values()):
        for name, shape in _BEING.findall(text):
            texts[name] = shape
    return texts


def _numbers(params: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in params.items() if type(value) is int}


def sizes_of(op: Operation, shapes: Shapes, params: Mapping[str, Any]) -> Sizes:
    """Return the size of every name that the shapes of the given arguments determine. params: complete

    Raises BadInput where the shapes are not as declared.
    """
    texts, known = declared(op, shapes), _numbers(params)
    pending = [
        pair
        for name, text in texts.items()
        if text.startswith("[")
        for pair in zip(_axes(text, len(shapes[name])), shapes[name], strict=True)
    ]
    sizes: Sizes = {}
    while solvable := [pair for pair in pending if len(pair[0].unknown(known | sizes)) == 1]:
        dimension, size = solvable[0]
        ((name, _),) = dimension.unknown(known | sizes)
        sizes[name] = dimension.solve(size, known | sizes)
        pending.remove(solvable[0])
    for name, text in texts.items():
        if _BUT_ONE.match(text):
            sizes[OWN_AXIS] = shapes[name][params["axis"]]
    return sizes


def with_sizes(
    op: Operation, shapes: Shapes, params: Mapping[str, Any], sizes: Sizes
) -> dict[str, tuple[int, ...]]:
    """Return the shapes with other sizes; axes that broadcast still do. params: complete, may differ too

    Raises BadInput if a quotient has a remainder, or a size is unknown.
    """
    texts, known = declared(op, shapes), _numbers(params) | sizes
    leading = sum(name.startswith("...") for name in sizes)
    made: dict[str, tuple[int, ...]] = {}
    for name, text in texts.items():
        if text.startswith("["):
            made[name] = _made(text, _rank(text, leading), known, shapes[name] if " or 1" in text else None)
    for name, text in texts.items():
        if match := _BUT_ONE.match(text):
            axis, whole = params["axis"], list(made[match[1]])
            if not -len(whole) <= axis < len(whole):
                raise BadInput(f"axis {axis} of {len(whole)}")
            whole[axis] = sizes[OWN_AXIS]
            made[name] = tuple(whole)
        elif match := _BROADCAST.match(text):
            other = match[1]
            target = made[other] if other in made else _made(other, _rank(other, leading), known, None)
            made[name] = _broadcast(shapes[name], target)
    return {name: made[name] for name in shapes}


def _rank(text: str, leading: int) -> int:
    parts = _BRACKETS.match(text)
    assert parts
    named = [part.strip() for part in parts[1].split(",")]
    return len(named) - 1 + leading if "..." in named else len(named)


def _made(text: str, rank: int, known: Mapping[str, int], before: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape; an axis declared "or 1" that is 1 in `before` stays 1."""
    sizes = []
    parts = [part.strip() for part in text[1 : text.index("]")].split(",")]
    for i, dimension in enumerate(_axes(text, rank)):
        size = dimension.value(known)
        if size is None or size < 1:
            raise BadInput(f"no size of {parts[min(i, len(parts) - 1)]}")
        one = before is not None and " or 1" in parts[i] and before[i] == 1
        sizes.append(1 if one else size)
    return tuple(sizes)


def _broadcast(before: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """Return the target's last axes, as many as `before` has, with a 1 wherever `before` has one."""
    kept = min(len(before), len(target))
    last = target[len(target) - kept :]
    return tuple(1 if one == 1 else size for one, size in zip(before[len(before) - kept :], last, strict=True))


def limit_of(op: Operation, name: str, sizes: Sizes) -> int | None:
    """Return the size that an argument's integers must stay below; None for other arguments."""
    match = _BELOW.search(op.inputs.get(name, ""))
    return sizes[match[1]] if match else None


def check(op: Operation, shapes: Shapes, params: Mapping[str, Any]) -> None:
    """Raise BadInput if shapes and parameters do not match the operation's declaration. params: complete"""
    sizes = sizes_of(op, shapes, params)
    if with_sizes(op, shapes, params, sizes) != dict(shapes):
        raise BadInput(f"{op.name}: shapes {dict(shapes)}, expected {dict(op.inputs)}")
    for text in re.split(r" [*+] |,", op.output.strip("[]")):
        if "/" in text:
            _dimension(text.strip()).value(_numbers(params) | sizes)
    if not op.fits(shapes, params):
        raise BadInput(f"{op.name}: shapes {dict(shapes)} and parameters {dict(params)} do not go together")
