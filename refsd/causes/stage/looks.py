"""Find patterns in a wrong output itself: a multiple, another order or shape, extra slices."""

from collections.abc import Iterator

import numpy as np

from refsd.causes.generic.orders import in_order, orders
from refsd.causes.generic.other_shapes import other_shape
from refsd.causes.generic.relations import ELEMENTWISE, relation
from refsd.causes.generic.solved_numbers import bits, shown
from refsd.causes.stage.elsewhere import constant_in_part, masked, wrong_term
from refsd.causes.stage.scene import Scene

# Elements required for each fitted number.
_EACH = 8


def output_causes(scene: Scene, looks: tuple) -> list[str]:
    """Return the first pattern that leaves only an honest run's rounding. looks: WHOLE or PARTS"""
    name = scene.wrong
    actual, truth = np.asarray(scene.actual[name], np.float64), np.asarray(scene.truth[name], np.float64)
    if not np.isfinite(actual).all() or not np.isfinite(truth).all():
        return []
    for look in looks:
        phrase = next(look(scene, name, actual, truth), None)
        if phrase:
            return [phrase]
    return []


def _linear(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """A multiple of the truth, an offset, or both; of a single number only a factor that is named or round."""
    if actual.shape != truth.shape or scene.stage.outputs[name].size is None:
        return
    t, y = truth.ravel(), actual.ravel()
    if t.size == 1 and t[0]:
        factor = float(y[0] / t[0])
        text = _told(y[0], t[0], scene.numbers)
        if text or "(" in shown(factor) or abs(factor - round(factor, 2)) < 1e-6 * abs(factor):
            yield f"{name} is {shown(factor)} times what it should be{text}"
        return
    least = 3 if t.size < _EACH else 1
    if t.size >= least + 1 and (t @ t) > 0:
        factor = float(t @ y / (t @ t))
        near = scene.agrees(name, factor * truth, 4 * max(abs(factor), 1))
        if near and scene.gain(name, factor * truth) > bits(factor):
            times = f"{shown(factor)} times what it should be{_told(factor, 1.0, scene.numbers)}"
            yield f"{name} is {times if factor else '0 throughout'}"
            return
        # Large numbers are rounded more, and tell less of what is added.
        sure = 1 / (np.broadcast_to(scene.limits[name].limit, truth.shape).ravel() + 2.0**-24 * np.abs(t).mean())
        offset = float(np.average(y - t, weights=sure**2))
        if scene.agrees(name, truth + offset, 4) and scene.gain(name, truth + offset) > bits(offset):
            yield f"{shown(offset)} is added to {name}"
            return
        if np.ptp(t) > 0 and t.size >= _EACH:
            factor, offset = np.polyfit(t, y, 1, w=sure)
            if scene.agrees(name, factor * truth + offset, 4 * max(abs(factor), 1)):
                yield f"{name} is {shown(float(factor))} times what it should be, and {shown(float(offset))}"


def _told(value: float, right: float, others: dict[str, float]) -> str:
    """Return the relation of a number to the right one or to others, in brackets; "" if there is none."""
    found = relation(float(value), float(right), others)
    return f" ({found})" if found else ""


def _counted(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """Numbers of the items along an axis, up from 0 or 1 or down, where something else is asked for."""
    if actual.shape != truth.shape:
        return
    for axis, n in enumerate(truth.shape):
        i = np.arange(n).reshape([-1 if a == axis else 1 for a in range(truth.ndim)])
        counts = {
            "counted from 0": i,
            "counted from 1": i + 1,
            "counted down to 0": n - 1 - i,
            "counted down to 1": n - i,
            "counted from 0 to 1": i / max(n - 1, 1),
            "counted down from 1 to 0": 1 - i / max(n - 1, 1),
        }
        for words, count in counts.items() if n > 2 else ():
            if np.allclose(actual, count, rtol=1e-6, atol=1e-6):
                word = scene.stage.outputs[name].axes[axis]
                yield f"{name}: the index of each {word}, {words}, in place of its value"
                return


def _function(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """A function of each number of the truth: its square, its logarithm, the power of two above it."""
    if actual.shape != truth.shape or scene.stage.outputs[name].size is None:
        return
    for words, function in ELEMENTWISE.items():
        with np.errstate(all="ignore"):
            y = function(truth)
        steepest = max(1.0, np.abs(y).max() / (np.abs(truth).max() or np.inf))
        same = truth.size >= _EACH and scene.agrees(name, y, 8 * steepest)
        if np.isfinite(y).all() and np.ptp(y) and (same or np.array_equal(actual, y)):
            yield f"{name} {words}"
            return


def _reordered(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """The truth's slices in another order along one axis."""
    if actual.shape != truth.shape:
        return
    axes, few = scene.stage.outputs[name].axes, np.unique(truth).size <= 2
    for axis, n in enumerate(truth.shape):
        # Two slices of yes and no agree by chance.
        for phrase, order in orders(n) if n > 2 or not few else ():
            if scene.agrees(name, in_order(truth, axis, order), 4):
                yield f"{name}: {axes[axis]}s, {phrase}"
                return


def _more_slices(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """More or fewer slices along one axis: name those that are missing, extra or repeated."""
    axes = scene.stage.outputs[name].axes
    if actual.ndim != truth.ndim:
        return
    apart = [a for a in range(truth.ndim) if actual.shape[a] != truth.shape[a]]
    if len(apart) != 1:
        return
    axis = apart[0]
    n, m = truth.shape[axis], actual.shape[axis]
    count = f"{m} {axes[axis]}s for {n}"
    there, common = np.take(actual, np.arange(min(n, m)), axis), np.arange(min(n, m))
    for more, words in ((0, "the last"), (n - m, "the first")) if n > m else ((0, ""),):
        if np.allclose(there, np.take(truth, common + more, axis), rtol=1e-5, atol=1e-6):
            words = f"{words} {n - m} are left out" if n > m else f"{m - n} are too many at the end"
            yield f"{name} has {count}: {words}"
            return
    if n < m and (phrase := other_shape(actual, truth)):
        yield f"{name}: {phrase}"


def _reshaped(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """The truth's numbers in the right order, in another shape."""
    if actual.shape == truth.shape or actual.size != truth.size:
        return
    limit = np.broadcast_to(scene.limits[name].limit, truth.shape).ravel()
    if (np.abs(actual.ravel() - truth.ravel()) <= limit + 2.0**-20 * np.abs(truth.ravel())).all():
        shapes = f"{list(actual.shape)} for {list(truth.shape)}"
        yield f"{name} has the right numbers, as {shapes}{_joined(scene, name, actual)}"


def _joined(scene: Scene, name: str, actual: np.ndarray) -> str:
    """Return ": item and channel joined" if two axes of the truth are one; else ""."""
    axes, right = scene.stage.outputs[name].axes, scene.truth[name].shape
    for i in range(len(right) - 1):
        if actual.shape == (*right[:i], right[i] * right[i + 1], *right[i + 2 :]):
            return f": {axes[i]} and {axes[i + 1]} joined"
    return ""


def _multiple_in_part(scene: Scene, name: str, actual: np.ndarray, truth: np.ndarray) -> Iterator[str]:
    """A multiple of the truth at some elements, for example where a mask is 0."""
    if scene.stage.outputs[name].size is None or actual.shape != truth.shape:
        return
    limit = np.broadcast_to(scene.limits[name].limit, truth.shape)
    wrong = np.abs(actual - truth) > limit
    t, y = truth[wrong], actual[wrong]
    if t.size < _EACH or not (t @ t):
        return
    factor = float(t @ y / (t @ t))
    if not scene.agrees(name, np.where(wrong, factor * truth, truth), 4 * max(abs(factor), 1)):
        return
    what = f"{shown(factor)} times what it should be" if abs(factor) > 1e-6 else "0"
    yield f"{name} is {what} {masked(scene, name, wrong, truth != 0) or f'at {t.size} of {truth.size} elements'}"


WHOLE = (_counted, _linear, _function, wrong_term, _reordered, _more_slices, _reshaped)
PARTS = (constant_in_part, _multiple_in_part)
