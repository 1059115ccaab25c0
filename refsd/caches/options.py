"""Read a cache's options from text, NAME=VALUE,..."""

import math
from collections.abc import Mapping
from typing import Any

from refsd.caches.cache import Cache, Limits
from refsd.numerics.errors import BadInput


def read_options(where: str, kind: type[Cache], text: str) -> Mapping[str, Any]:
    """Return all options of a cache, those of the text and the defaults of the others.

    where: named in errors. Raises BadInput for an unknown name, a malformed value or one out of range.
    """
    values: dict[str, Any] = {name: limits.default for name, limits in kind.options.items()}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = pair.partition("=")
        if name not in values:
            raise BadInput(f"{where}: option {name[:60]!r} is unknown: expected one of {', '.join(values)}")
        values[name] = _value(f"{where}: {name}={value[:60]}", kind.options[name], value)
    if "start" in values and values["start"] >= values["end"]:
        raise BadInput(f"{where}: start={values['start']} and end={values['end']}: expected start below end")
    return values


def _value(where: str, limits: Limits, text: str) -> Any:
    low, high = limits.low, limits.high
    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    in_range = all(low <= n <= high and math.isfinite(n) and (n.is_integer() or not limits.whole) for n in numbers)
    if not numbers or not in_range or (len(numbers) > 1 and not limits.many):
        kind = "whole numbers" if limits.whole and limits.many else "a whole number" if limits.whole else "a number"
        several = "numbers with / between them, each" if limits.many else kind
        raise BadInput(f"{where}: expected {several} {low:g} to {high:g}")
    return tuple(numbers) if limits.many else int(numbers[0]) if limits.whole else numbers[0]
