"""Find an output's numbers elsewhere: another output's, an input as it is, the step, item or request before.

What a buffer held before, the value of the step before, a tensor in another's place: all are right numbers of
another place. Each slice of a wrong output is sought among the inputs and the right outputs.
"""

import re
from collections.abc import Iterator
from itertools import permutations

import numpy as np

from refsd.causes.generic.moved_values import moved
from refsd.causes.generic.relations import relation
from refsd.causes.generic.solved_numbers import shown
from refsd.causes.stage.scene import Scene
from refsd.golden.evidence import Evidence

# Numbers that a tensor or a slice must have to be known again.
_LEAST = 8
_LISTED = 3


def elsewhere(scene: Scene) -> list[str]:
    """Return where the numbers of the first wrong output come from, if all of them are found elsewhere."""
    name = scene.wrong
    if not name:
        return []
    actual, truth = np.asarray(scene.actual[name]), np.asarray(scene.truth[name])
    if actual.shape != truth.shape or truth.size < _LEAST:
        return []
    for look in (_another, _slices):
        phrase = look(scene, name, actual, truth)
        if phrase:
            return [phrase]
    return []


def _another(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> str:
    for source, words in ((scene.inputs.tensors, "{} as it is given"), (scene.truth, "what {} should be")):
        for other, y in source.items():
            y = np.asarray(y)
            if other != name and y.shape == truth.shape and np.ptp(y) and scene.agrees(name, y, 4):
                return f"{name} is {words.format(other)}{_before(name, other)}"
    return ""


def _before(name: str, other: str) -> str:
    """Return what it means if two outputs differ in a number alone."""
    parts, others = (re.split(r"(\d+)", text) for text in (name, other))
    if parts[::2] != others[::2] or len(parts) < 3:
        return ""
    at, of = ([int(n) for n in texts[1::2]] for texts in (parts, others))
    return ": it stays as it was before" if of < at else ": it is that of a later one"


def _slices(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> str:
    """Find each wrong slice along the first axis among the slices of all, and tensors of a slice's shape."""
    axes = scene.stage.outputs[name].axes
    if truth.ndim < 2 or len(truth) < 2 or truth[0].size < _LEAST:
        return ""
    pool = _pool(scene, name, truth)
    sources = {}
    for i, right in enumerate(truth):
        if not scene.agrees_at(name, i, right):
            near = next((label for label, y in pool if np.ptp(y) and scene.agrees_at(name, i, y)), None)
            if near is None:
                return ""
            sources[i] = near
    word = axes[0]
    if len(sources) > 1 and all(near == f"that of {word} {i - 1}" for i, near in sources.items()):
        return f"{name}: every {word} is that of the {word} before"
    if len(sources) == len(truth) and len(set(sources.values())) == 1:
        return f"{name}: every {word} is {next(iter(sources.values()))}"
    texts = [f"{word} {i} is {near}" for i, near in sources.items()]
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    exchanged = {*sources.values()} == {f"that of {word} {i}" for i in sources}
    order = f"{word}s in another order: " if exchanged else ""
    return f"{name}: {order}{', '.join(texts[:_LISTED])}{more}"


def _pool(scene: Scene, name: str, truth: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return (what it is, values) of everything that has a slice's shape."""
    word = scene.stage.outputs[name].axes[0]
    pool = [(f"that of {word} {i}", y) for i, y in enumerate(truth)]
    for of, words in ((scene.truth, "what {} should be"), (scene.inputs.tensors, "{} as it is given")):
        for other, y in of.items():
            y = np.asarray(y)
            if other == name:
                continue
            if y.shape == truth.shape[1:]:
                pool.append((words.format(other), y))
            elif y.ndim == truth.ndim and y.shape[1:] == truth.shape[1:]:
                pool += [(words.format(f"{other} {i}"), one) for i, one in enumerate(y)]
    return pool


def wrong_term(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """The output is an input plus a term; the term is a multiple of what it should be, or in another order."""
    if scene.stage.outputs[name].size is None or actual.shape != truth.shape or truth.size < _LEAST:
        return
    honest = np.asarray(scene.honest[name], np.float64)
    for other, y in scene.inputs.tensors.items():
        y = np.asarray(y)
        if y.shape != truth.shape or y.dtype.kind != "f" or not np.isfinite(y).all():
            continue
        right, own = truth - y, actual - y
        square = float(right.ravel() @ right.ravel())
        if not square:
            continue
        factor = float(right.ravel() @ own.ravel()) / square
        if scene.agrees(name, y + factor * right, 4 * max(abs(factor), 1)):
            related = relation(factor, 1.0, scene.numbers)
            text = f" ({related})" if related else ""
            what = f"{shown(factor)} times what it should be{text}" if abs(factor) > 1e-6 else "left out"
            yield f"what is added to {other} is {what}"
            return
        added = Evidence(own, right, honest - y)
        order = moved(added, -1) if added.finite and not added.rough else None
        if order is not None and (order.source >= 0).all():
            yield f"what is added to {other} stands in another order: {order.phrase}"
            return


def constant_in_part(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """One number where another one should stand, as where a mask is 1."""
    if actual.shape != truth.shape:
        return
    wrong = np.abs(actual - truth) > np.broadcast_to(scene.limits[name].limit, truth.shape)
    own, right = actual[wrong], truth[wrong]
    if own.size < _LEAST or np.ptp(own) or np.ptp(right):
        return
    where = masked(scene, name, wrong, np.ones_like(wrong)) or _constant_slice(scene, name, actual, wrong)
    where = where or f"at {own.size} of {truth.size} elements"
    yield f"{name} is {shown(float(own[0]))} where it should be {shown(float(right[0]))}, {where}"


def _constant_slice(scene: Scene, name: str, actual: np.ndarray, wrong: np.ndarray) -> str:
    """Return "in channel 0, which is 1 throughout" if all wrong elements are in one such slice; else ""."""
    for axis, word in enumerate(scene.stage.outputs[name].axes):
        at = np.unique(wrong.nonzero()[axis])
        if len(at) == 1 < wrong.shape[axis] and not np.ptp(there := actual.take(at[0], axis)):
            return f"in {word} {at[0]}, which is {shown(float(there.flat[0]))} throughout"
    return ""


def last_resorts(scene: Scene) -> list[str]:
    """Return what a few numbers tell where nothing else does: they are another's and a constant."""
    name = scene.wrong
    actual, truth = np.asarray(scene.actual[name], np.float64), np.asarray(scene.truth[name], np.float64)
    if actual.shape != truth.shape or actual.ndim != 1 or not np.isfinite(actual).all():
        return []
    phrase = _apart(scene, name, actual)
    return [phrase] if phrase else []


def _apart(scene: Scene, name: str, actual: np.ndarray) -> str:
    """Say that the numbers are another output's or their own, and a constant."""
    for other, y in scene.truth.items():
        y = np.asarray(y, np.float64)
        if y.shape != actual.shape or len(actual) < 3 or not np.ptp(y):
            continue
        by = actual - y
        if np.allclose(by, by[0], rtol=1e-6, atol=1e-9 * np.abs(actual).max()) and by[0]:
            text = relation(abs(float(by[0])), 1.0, scene.numbers) or _quotient(abs(float(by[0])), scene.numbers)
            brackets = f" ({text})" if text else ""
            return f"{name} is {other} {'plus' if by[0] > 0 else 'less'} {shown(abs(float(by[0])))}{brackets}"
    return ""


def _quotient(value: float, numbers: dict[str, float]) -> str:
    """Return the two numbers of which this is the quotient, or a trained schedule's 1000 over one; else ""."""
    pairs = permutations({**numbers, "1000": 1000.0}.items(), 2)
    made = (f"{x} / {y}" for (x, a), (y, b) in pairs if b not in (0.0, 1.0) and value in (a / b, a // b))
    return next(made, "")


def masked(scene: Scene, name: str, wrong: np.ndarray, counts: np.ndarray) -> str:
    """Return "where mask is 0" if an input or output with two values marks the wrong elements; else "".

    counts: the elements that an error can show
    """
    for source in (scene.inputs.tensors, scene.truth):
        for other, mask in source.items():
            if other == name or np.unique(mask).size != 2:
                continue
            try:
                there = np.broadcast_to(np.asarray(mask), wrong.shape)
            except ValueError:
                continue
            for value in np.unique(mask):
                if np.array_equal(wrong & counts, (there == value) & counts):
                    return f"where {other} is {value:g}"
    return ""
