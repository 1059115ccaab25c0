"""Explain a wrong answer of a stage where no known bug does: try each mechanism at each place.

In turn: other settings and inputs, numbers solved for, patterns in the wrong output itself, the reference's
formulas with one thing changed. A cause is reported only if the rest of the error is an honest run's rounding.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from refsd.causes.generic.fitted_causes import fitted_causes
from refsd.causes.generic.formula_variants import Number, Text
from refsd.causes.generic.relations import relation
from refsd.causes.generic.running_code import TooLong, apart, executed, in_time, results_of, swapped
from refsd.causes.generic.sequences import sequence_difference
from refsd.causes.generic.solved_numbers import PLAIN, bits, is_plain, shown, solved
from refsd.causes.stage.candidates import exchanged, numbers, scaled, settings
from refsd.causes.stage.draws import redrawn
from refsd.causes.stage.elsewhere import last_resorts
from refsd.causes.stage.looks import PARTS, WHOLE, output_causes
from refsd.causes.stage.members import member_causes
from refsd.causes.stage.scene import Scene
from refsd.golden.judge import Answer, Mutant
from refsd.stages.stage import Change, Params

# CPU seconds for the whole search for one answer, and for one changed formula.
_SECONDS, _ONE = 4.0, 0.2
_MODULES = "samplers tokenizers pipelines families adapters stages models weights kernels caches"
_NOT = ("refsd.stages.stage", "refsd.stages")
_MOST = 4
# Almost any number explains so many different errors.
_SINGLE = 3
# Parameters that name many rules at once; the one that differs says more.
_MANY_RULES = ("engine is ", "schedule is ")
# Bits that another sign than the right number's costs.
_SIGN = 3


def known_causes(scene: Scene, known: Mapping[str, Answer]) -> list[str]:
    """Return the known bugs that explain the first wrong output, where others may be right.

    known: known bug -> the answer with it
    """
    there = _explaining(scene, known) if scene.wrong else []
    return [name for name in there if scene.consistent(known[name])][:_MOST]


def searched_causes(scene: Scene, known: Mapping[str, Answer]) -> list[str]:
    """Return the causes that were searched for, the likeliest first; empty if nothing explains the answer.

    Last comes a known bug that would have made an earlier output wrong, which is right. known: as above
    """
    if not scene.wrong:
        return []
    found = lambda: (phrase for *_, phrase in sorted(apart(_search, _SECONDS, scene, known)))
    phrases = redrawn(scene, known) or list(dict.fromkeys(found()))
    return (phrases or _explaining(scene, known))[:_MOST] or last_resorts(scene) or _sequence(scene)


def _explaining(scene: Scene, known: Mapping[str, Answer]) -> list[str]:
    return [name for name, answer in known.items() if scene.explained(answer)]


def _search(scene: Scene, known: Mapping[str, Answer]) -> Iterator[list]:
    """Yield [rank, rank within it, phrase] of each cause, low ranks being likely; stop after a likely one."""
    changed = settings(scene.stage, scene.inputs.params), exchanged(scene.inputs.tensors)
    for likely, search in enumerate((*(_explaining_changes(scene, of) for of in changed), _of_members(scene))):
        named = list(search)
        rules = [phrase.startswith(_MANY_RULES) for phrase in named]
        yield from ([9 if r else likely, i, phrase] for i, (r, phrase) in enumerate(zip(rules, named, strict=True)))
        if not all(rules):
            return
    solved_for = [*_numbers(scene, 1), *_scaled_inputs(scene)]
    yield from ([3 if price < PLAIN else 6, price, phrase] for price, phrase in solved_for)
    if any(price < PLAIN for price, _ in solved_for):
        return
    looks = output_causes(scene, WHOLE) or _in_place(scene, known)
    channels = [] if looks else [*_channels_of_inputs(scene)]
    weak = bool(channels) or _is_any_constant(scene)
    looks = looks or channels or _blames(scene)
    if not looks:
        # Of exact numbers a part that is another says less than a formula.
        looks, weak = output_causes(scene, PARTS), scene.stage.outputs[scene.wrong].size is None
    yield from ([8.5 if weak else 4, 0.0, phrase] for phrase in looks)
    if weak or not looks:
        yield from _changed_formulas(scene)


def _is_any_constant(scene: Scene) -> bool:
    """Return True if one number, which nobody would write down, stands for numbers that vary."""
    actual, truth = np.ravel(scene.actual[scene.wrong]), np.ravel(scene.truth[scene.wrong])
    return actual.size > 1 and not np.ptp(actual) and np.ptp(truth) > 0 and not is_plain(float(actual[0]))


def _blames(scene: Scene) -> list[str]:
    bounds = {name: float(bound.limit.max(initial=0.0)) for name, bound in scene.limits.items()}
    return scene.stage.blames(scene.inputs, scene.actual, scene.truth, bounds)


def _answer(scene: Scene, change: Change | None = None) -> Answer | None:
    with np.errstate(all="ignore"):
        try:
            own = scene.inputs._replace(tensors=dict(scene.inputs.tensors), params=dict(scene.inputs.params))
            answer = scene.stage.answer(own, change)
            arrays = {name: np.asarray(y) for name, y in (answer or {}).items()}
        except TooLong:
            raise
        except Exception:  # a changed formula may fail in any way: then it explains nothing
            return None
    return arrays if arrays and all(y.dtype.kind in "fiub" for y in arrays.values()) else None


def _explaining_changes(scene: Scene, changes: Iterator[Mutant[Change]]) -> Iterator[str]:
    return (name for name, change in changes if _explains(scene, _answer(scene, change)))


def _of_members(scene: Scene) -> Iterator[str]:
    yield from member_causes(scene, lambda change: _answer(scene, Change(tensors=change)))


def _explains(scene: Scene, answer: Answer | None) -> bool:
    return answer is not None and scene.explained(answer) and scene.consistent(answer)


def _error(scene: Scene, answer: Answer | None) -> np.ndarray | None:
    """Return found - answer at the first wrong output, flat, in units of the bound; None if shapes differ."""
    name = scene.wrong
    if answer is None or name not in answer or np.shape(answer[name]) != scene.actual[name].shape:
        return None
    limit = scene.limits[name].limit
    y = np.asarray(answer[name], np.float64)
    unit = np.where(limit > 0, limit, 1.0) if limit.shape == y.shape else 1.0
    return ((np.asarray(scene.actual[name], np.float64) - y) / unit).ravel()


def _different_errors(scene: Scene) -> int:
    """Count the different errors of the wrong output."""
    actual, truth = np.ravel(scene.actual[scene.wrong]), np.ravel(scene.truth[scene.wrong])
    if actual.shape != truth.shape:
        return 0
    return int(np.unique(np.round((actual - truth).astype(np.float64), 12)).size)


def _solved(
    scene: Scene,
    phrases: Sequence[Callable[[float], str]],
    values: Sequence[float],
    run: Callable[[Sequence[float]], Answer | None],
) -> Iterator[tuple[float, str]]:
    """Yield (bits, phrase) of the solved numbers if they explain the answer; fewer bits are likelier."""
    if scene.stage.outputs[scene.wrong].size is None:
        return
    best = solved(values, lambda v: _error(scene, run(v.tolist())))
    if best is None:
        return
    own = [round(v) if isinstance(right, int) else v for v, right in zip(best.tolist(), values, strict=True)]
    # A count is taken by no engine for a negative number.
    counts = any(v < 0 < right for v, right in zip(own, values, strict=True) if isinstance(right, int))
    same = any(abs(v - right) <= 1e-6 * abs(right) for v, right in zip(own, values, strict=True))
    if counts or same or not scene.explained(run(own)):
        return
    others = {name: number for name, number in scene.numbers.items() if number not in values}
    related = [relation(v, float(right), others) for v, right in zip(own, values, strict=True)]
    named = all(told or is_plain(v) for v, told in zip(own, related, strict=True))
    if named or (len(own) == 1 and _different_errors(scene) > _SINGLE):
        each = zip(phrases, own, related, strict=True)
        texts = [phrase(v) + (f" ({told})" if told else "") for phrase, v, told in each]
        written = [bits(v) + _SIGN * (v * right < 0) for v, right in zip(own, values, strict=True)]
        price = max(min(b, PLAIN - 1) if told else b for b, told in zip(written, related, strict=True))
        far = min(max(abs(v - right) / abs(right or 1) for v, right in zip(own, values, strict=True)), 9)
        yield round(price + far / 10, 3), " and ".join(texts)


def _numbers(scene: Scene, count: int) -> Iterator[tuple[float, str]]:
    """Yield what `_solved` finds of so many numeric parameters together."""
    for some in itertools.combinations(numbers(scene.inputs.params), count):

        def run(values: Sequence[float], some=some) -> Answer | None:
            def changed(params: Params) -> Params:
                for (*_, change), value in zip(some, values, strict=True):
                    params = change(value)(params)
                return params

            return _answer(scene, Change(params=changed))

        phrases = [lambda v, n=name, o=value: f"{n} is {shown(v)} for {o:.6g}" for name, value, _ in some]
        yield from _solved(scene, phrases, [value for _, value, _ in some], run)


def _scaled_inputs(scene: Scene) -> Iterator[tuple[float, str]]:
    for name, y in scene.inputs.tensors.items():
        if y.dtype.kind == "f":
            run = lambda v, name=name: _answer(scene, Change(tensors=scaled(name)(v[0])))
            yield from _solved(scene, [lambda v, n=name: f"{n} is multiplied by {shown(v)}"], [1.0], run)


def _channels_of_inputs(scene: Scene) -> Iterator[str]:
    """Yield what each channel of an input was multiplied by, and what was added, as by statistics not taken off."""
    name, actual = scene.wrong, np.asarray(scene.actual[scene.wrong], np.float64)
    for other, y in scene.inputs.tensors.items() if actual.ndim == 4 and np.isfinite(actual).all() else ():
        if y.ndim != 4 or y.dtype.kind != "f" or y.shape[1] != actual.shape[1]:
            continue
        run = lambda x, other=other: _answer(scene, Change(tensors=lambda t: {**t, other: x}))
        answers = [run(x) for x in (0 * y, y, 0 * y + 1)]
        if any(answer is None or np.shape(answer.get(name, ())) != actual.shape for answer in answers):
            continue
        none, one, added = (np.asarray(answer[name], np.float64) for answer in answers if answer)
        effects = (np.moveaxis(effect - none, 1, 0) for effect in (one, added, actual))
        flat = (effect.reshape(len(effect), -1) for effect in effects)
        each = [np.linalg.lstsq(np.stack([a, b], 1), c, rcond=None)[0] for a, b, c in zip(*flat, strict=True)]
        factor, more = np.stack(each, 1)[:, :, None, None]
        other_scale = np.ptp(factor) or np.ptp(more) or abs(factor.max() - 1) > 1e-4
        if other_scale and _explains(scene, run((factor * y + more).astype(y.dtype))):
            ends = (dict.fromkeys(shown(round(float(k), 6)) for k in (of.min(), of.max())) for of in (factor, more))
            times, plus = (" to ".join(texts) for texts in ends)
            yield f"{other}: each channel is multiplied by {times}, and {plus} is added"


# --- the reference's formulas ------------------------------------------------------------------------------------


def _is_formula(module: str) -> bool:
    return module.startswith("refsd.") and module not in _NOT and module.split(".")[1] in _MODULES.split()


def _texts(scene: Scene) -> list[Text]:
    texts = []
    for function in executed(lambda: _answer(scene), _is_formula):
        try:
            texts.append(Text(function))
        except LookupError:
            continue
    return texts


def _changed_formulas(scene: Scene) -> Iterator[list]:
    """Yield the causes from formulas with a number or factor solved for, one thing changed, two numbers solved."""
    # Numbers and factors take milliseconds, changed formulas seconds.
    texts = _texts(scene)
    own = [[*text.numbers(), *text.results(results_of(text.function, lambda: _answer(scene)))] for text in texts]
    for text, its in zip(texts, own, strict=True):
        yield from ([6, price, words] for price, words in _numbers_of(scene, text, its, 1))
        # A factor of any term costs more than a number that stands there.
        yield from ([7, price, words] for price, words in _numbers_of(scene, text, [*text.factors()], 1))
    yield from _of_variants(scene, texts)
    for text, its in zip(texts, own, strict=True):
        yield from ([8, price, words] for price, words in _numbers_of(scene, text, its, 2))
    yield from ([8, price, words] for price, words in _numbers(scene, 2))


def _of_variants(scene: Scene, texts: Sequence[Text]) -> Iterator[list]:
    for order, text in enumerate(texts):
        for variant in text.variants():
            with swapped(text.function, variant.code):
                answer = in_time(lambda: _answer(scene), _ONE)
            if in_time(lambda answer=answer: _explains(scene, answer), _ONE):
                yield [5, variant.rank + order / 1000, variant.phrase]


def _numbers_of(scene: Scene, text: Text, its: Sequence[Number], count: int) -> Iterator[tuple[float, str]]:
    """Yield what `_solved` finds of so many numbers of a formula together."""
    for some in itertools.combinations(its, count):
        run = lambda v, some=some: in_time(lambda: _with(scene, text, some, v), _ONE)
        phrases = [lambda v, n=n: f"{n.phrase}: {shown(v)} for {n.value:.6g}" for n in some]
        yield from _solved(scene, phrases, [n.value for n in some], run)


def _with(scene: Scene, text: Text, some: Sequence[Number], values: Sequence[float]) -> Answer | None:
    function: FunctionType = text.function
    defaults: list[Any] = list(function.__defaults__ or ())
    for number, value in zip(some, values, strict=True):
        if number.site is None:
            defaults[number.position] = value
    sites = [(n, v) for n, v in zip(some, values, strict=True) if n.site is not None]
    code = text.with_numbers(sites) if sites else function.__code__
    if code is None:
        return None
    with swapped(function, code, tuple(defaults) or None):
        return _answer(scene)


# --- what the output shows ---------------------------------------------------------------------------------------


def _in_place(scene: Scene, known: Mapping[str, Answer]) -> list[str]:
    """Return the known bugs that explain a part of the first wrong output."""
    name = scene.wrong
    output = scene.stage.outputs[name]
    actual, truth = scene.actual[name], scene.truth[name]
    if output.size is None or actual.shape != truth.shape:
        return []
    suspects = {bug: np.asarray(y[name]) for bug, y in known.items() if name in y and y[name].shape == truth.shape}
    channel = output.axes.index("channel") if "channel" in output.axes else -1
    causes = fitted_causes(actual, truth, scene.honest[name], channel, suspects)
    return [f"{name}: {_in_its_axes(cause, output.axes)}" for cause in causes]


def _in_its_axes(phrase: str, axes: tuple[str, ...]) -> str:
    """Name the axes: "the last 4 of 9 along axis 1" -> "the last 4 of 9 tokens"."""
    phrase = re.sub(r" \(channels\)", "", phrase)
    return re.sub(r"along axis (\d+)", lambda m: f"{axes[int(m[1])]}s", phrase)


def _sequence(scene: Scene) -> list[str]:
    name = scene.wrong
    output = scene.stage.outputs[name]
    if output.size is not None or len(output.axes) != 2:
        return []
    actual, truth = np.asarray(scene.actual[name]), np.asarray(scene.truth[name])
    text = partial(output.text, scene.inputs.params) if output.text else None
    phrase = sequence_difference(actual, truth, output.axes[-1], output.spelled, text)
    return [f"{name}: {phrase}"] if phrase else []
