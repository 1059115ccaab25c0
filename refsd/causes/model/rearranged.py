"""Operations left out, parts taken otherwise between two taps, or joined otherwise in any line."""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from refsd.causes.model.observed import Call
from refsd.golden.judge import Mutant
from refsd.models.catalogue import pages
from refsd.networks.bugs import Change
from refsd.networks.part_orders import PARTS, apart, part_orders, roles
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64

# Operations that take parts of a modulation.
MODULATED = ("modulate", "adaptive_layer_norm")
# What a known bug ends in if it takes tensors of other sizes than those here.
UNFIT = ValueError, IndexError, TypeError, ZeroDivisionError
# Names of a join's parts, as many as it may have.
_NAMES = "first", "second", "third"

Named = Iterator[tuple[str, np.ndarray]]
# Index of an operation, its call; of one between two taps, with another result of it -> the tap.
Calls = Sequence[tuple[int, Call]]
Moved = Callable[[int, np.ndarray], np.ndarray | None]


def left_out(calls: Calls, moved: Moved) -> Named:
    """Yield (bug, tap) where one of the operations between two taps is left out. calls: without the last"""
    for at, call in calls:
        size = max(y.values().size for y in call.inputs.values())
        for name, y in call.inputs.items():
            usable = name not in ("weight", "bias", "ids") and y.values().size == size
            if usable and (tap := moved(at, y.values())) is not None:
                yield f"{call.op} left out: {name} is the result", tap


def parts_otherwise(
    run: Callable[..., np.ndarray | None], calls: Calls, tensors: Mapping[str, np.ndarray]
) -> Named:
    """Yield (bug, tap) where parts of an earlier tensor, as of a modulation or a qkv, are taken otherwise.

    run:     as Place has it
    tensors: earlier ones by name
    """

    def made(name: str, y: np.ndarray) -> np.ndarray | None:
        return run(Arithmetic(FLOAT64), Change(), {name: np.ascontiguousarray(y)})

    right = run(Arithmetic(FLOAT64), Change())
    tensors = {name: y for name, y in tensors.items() if y.dtype.kind == "f" and y.ndim > 1}
    taken = [call.inputs for _, call in calls if call.op in MODULATED]
    taken = [{name: of[name].values() for name in ("shift", "scale")} for of in taken]
    for name, y in tensors.items():
        read = made(name, 0 * y) if any(y.shape[-1] % n == 0 for n in PARTS) else right
        if read is None or right is None or read.shape != right.shape or np.array_equal(read, right):
            continue
        known = next(filter(None, (roles(y, **of) for of in taken)), None)
        for words, order in part_orders(y.shape[-1], known):
            if (wrong := made(name, y[..., order])) is not None:
                yield words.format(name), wrong
        for other in (one for one in tensors if known and one != name and tensors[one].shape == y.shape):
            for instead in ({name: tensors[other], other: y}, {name: tensors[other]}):
                if (wrong := run(Arithmetic(FLOAT64), Change(), instead)) is not None:
                    yield f"modulated by {' instead of '.join(apart(other, name))}", wrong


def joined_otherwise(run: Callable[[Change], Any]) -> Iterator[Mutant[Change]]:
    """Yield parts of a join or a padding in another order. run: runs the reference with a change"""
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

            words = ", then ".join(f"the {_NAMES[i]} ({own[i]} long)" for i in order)
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
