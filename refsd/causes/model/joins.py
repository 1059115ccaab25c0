"""Parts of a join or a padding in another order, in each line of a model that has one, found as it runs."""

import itertools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models.catalogue import pages
from refsd.networks.bugs import Change

# Names of parts, as many as a join may have.
_NAMES = "first", "second", "third"


def joined_otherwise(run: Callable[[Change], Any]) -> Iterator[Mutant[Change]]:
    """Yield the bugs. run: runs the reference with a change"""
    lengths: dict[tuple[int, tuple[str, int]], tuple[int, ...]] = {}
    masks: set[tuple[str, int]] = set()

    def noted(parts: list[Any], axis: int, line: tuple[str, int]) -> list[Any]:
        if 1 < len(parts) <= len(_NAMES):
            lengths.setdefault((axis, line), tuple(np.shape(part)[axis] for part in parts))
            masks.update([line] if all(np.asarray(part).dtype == bool for part in parts) else [])
        return parts

    run(_joining(noted))
    for (axis, line), own in lengths.items():
        for order in [*itertools.permutations(range(len(own)))][1:]:

            def reordered(parts: list[Any], _, at: tuple[str, int], line=line, order=order) -> list[Any]:
                return [parts[i] for i in order] if at == line and len(parts) == len(order) else parts

            words = ", ".join(f"{own[i]} ({_NAMES[i]})" for i in order)
            of = "the mask's parts" if line in masks else "parts"
            yield Mutant(f"{of} joined along axis {axis} stand in another order: {words}", _joining(reordered))


def _joining(joined: Callable[..., list[Any]]) -> Change:
    """joined: parts, axis, the model's file and line -> the parts that are joined"""

    def concatenate(parts, axis=0):
        frame = sys._getframe(1)
        return np.concatenate(joined([*parts], axis, (frame.f_code.co_filename, frame.f_lineno)), axis)

    def pad(x, widths, *args, **named):
        frame, y = sys._getframe(1), np.pad(x, widths, *args, **named)
        sides = [(axis, each) for axis, each in enumerate(np.broadcast_to(widths, (np.ndim(x), 2))) if each.any()]
        if len(sides) != 1 or sides[0][1].all():
            return y
        axis, (before, after) = sides[0]
        parts = np.split(y, [before or y.shape[axis] - after], axis)
        return np.concatenate(joined(parts, axis, (frame.f_code.co_filename, frame.f_lineno)), axis)

    own = SimpleNamespace(**{**vars(np), "concatenate": concatenate, "pad": pad})
    return Change(replaced=tuple((page, "np", own) for page in pages("") if hasattr(page, "np")))
