"""Read and check fields of a config.json."""

import math
from pathlib import Path
from typing import Any

from refsd.numerics.errors import BadInput


def divisor(path: Path, given: dict[str, Any], field: str, default: int, of: int) -> int:
    value = given.get(field, default)
    if type(value) is not int or value < 1 or of % value:
        raise BadInput(
            f"{path}: {field} is {shown_value(value)}; a whole number that divides {of} channels expected"
        )
    return value


def positive(path: Path, given: dict[str, Any], field: str, default: float) -> float:
    """Return a field that is a finite number above 0."""
    value = given.get(field, default)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise BadInput(f"{path}: {field} is {shown_value(value)}; a number above 0 expected")
    return float(value)


def whole(path: Path, given: dict[str, Any], field: str, default: int) -> int:
    """Return a field that is a whole number above 0."""
    value = given.get(field, default)
    if type(value) is not int or value < 1:
        raise BadInput(f"{path}: {field} is {shown_value(value)}; a whole number above 0 expected")
    return value


def rotary_axes(path: Path, given: dict[str, Any], field: str, usual: list[int]) -> list[int]:
    """Return the rotary channels of a head for each axis. The component holds them against the weights."""
    axes = given.get(field, usual)
    if type(axes) is not list or len(axes) != len(usual) or not all(type(n) is int and n > 0 for n in axes):
        raise BadInput(f"{path}: {field} is {shown_value(axes)}; {len(usual)} whole numbers above 0 expected")
    return axes


def rotary_axes_of_heads(path: Path, given: dict[str, Any], usual: list[int]) -> list[int]:
    """Return axes_dims_rope, as most transformers of diffusers have it: its sum must be attention_head_dim."""
    axes, wide = rotary_axes(path, given, "axes_dims_rope", usual), given.get("attention_head_dim", sum(usual))
    if type(wide) is not int or sum(axes) != wide:
        raise BadInput(
            f"{path}: attention_head_dim is {shown_value(wide)}, but axes_dims_rope {axes}, whose sum it should be"
        )
    return axes


def shown_value(value) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def num_groups(path: Path, given: dict[str, Any], *channels: int) -> dict[str, Any]:
    """Return num_groups of the group norms: the config's norm_num_groups, or 32.

    Return {} if the config lacks the field and 32 does not divide all channels; the user must then give `--param`.
    """
    of = math.gcd(*channels)
    if "norm_num_groups" not in given and of % 32:
        return {}
    return {"num_groups": divisor(path, given, "norm_num_groups", 32, of)}
