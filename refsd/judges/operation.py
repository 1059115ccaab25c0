"""Judge operations: their pages compute the answers and derive the bounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from refsd.causes.generic.description import describe
from refsd.causes.generic.error_places import axis_name
from refsd.causes.generic.fitted_causes import fitted_causes, is_gap
from refsd.causes.generic.other_shapes import other_shape
from refsd.causes.operation.declared import fits, letters, other_values, plain
from refsd.causes.operation.precisions import broken_requests, in_precisions
from refsd.causes.operation.steps import stepwise
from refsd.causes.operation.unlisted import explaining, never, unlisted
from refsd.golden import operations
from refsd.golden.block_activations import block_of, moved_otherwise
from refsd.golden.case import Case
from refsd.golden.cause_kinds import tails, tails_of
from refsd.golden.explanation import Explanation, Nearest, Scene
from refsd.golden.judge import Answer, Inputs, Judge, Mutant, Standard
from refsd.golden.metrics import Metrics, measure, not_asked_for
from refsd.golden.mutations import other_input, other_params, with_bug
from refsd.golden.operations import OPERATIONS
from refsd.golden.rounding import Bound, unit
from refsd.golden.search_cuts import search_memory
from refsd.golden.verdict import judge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import stored

# An engine that ignores a request errs at least so many times as much as an honest one, at most so many times as
# much as one that rounds each sum, and no less than this share of it, as kernels that round only the sums of tiles.
_MORE, _TILES = 2.0, 1 / 8
# The share of an answer's wrong elements that may be rounded otherwise than by the bug that explains the others.
_FLIPPED = 0.02
# Standard deviations that no honest rounding is from the truth.
_FAR = 6.0
# How many times nearer to an engine's answer than truth and honest run one with other codes is.
_NEARER = 3.0


class OperationJudge(Judge):
    def takes(self, op: str) -> bool:
        return op in OPERATIONS

    def what(self, case: Case) -> str:
        return OPERATIONS[case.op].what

    def complete(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        return OPERATIONS[case.op].complete(inputs, case.params)

    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        with one_answer(arithmetic.numerics):
            return operations.run(case.op, arithmetic, inputs, case.params)

    def measure(self, standard: Standard, actual: Answer) -> list[Metrics]:
        channel, limits = OPERATIONS[standard.case.op].channel, _bound(standard)
        y = measure("y", actual.get("y"), standard.truth["y"], standard.honest["y"], limits, channel, floating=True)
        return [y, *not_asked_for(actual, standard.truth)]

    def limits(self, standard: Standard) -> Answer:
        return {"y": _bound(standard).limit}

    def mutants(self, case: Case) -> Sequence[Mutant]:
        return OPERATIONS[case.op].mutants

    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant) -> Answer | None:
        y = with_bug(mutant, OPERATIONS[case.op], inputs, case.params)
        return None if y is None else {"y": y}

    def explain(self, standard: Standard, actual: Answer, tap: str = "") -> Explanation:
        causes, possible = self._causes(standard, actual)
        if causes:
            return Explanation(causes, possible=self._lost(standard, actual["y"]))
        return Explanation(causes, self._looks(standard, actual), self._nearest(standard, actual), possible)

    def _causes(self, standard: Standard, actual: Answer) -> tuple[list[str], list[str]]:
        """List the bugs that explain the answer by explanation.py's rule, and those that it may have.

        Where no element misses its bound, a bug with a fitted number is only one that it may have.

        A mutant answers in float32: adding the honest run's error stands for a mutant under the engine's numerics.
        The verdict must pass with the mutant's answer as the truth.
        """
        case, inputs, truth, honest, numerics, _ = standard
        y = actual.get("y")
        if y is None or y.shape != truth["y"].shape:
            return ([] if y is None else self._of_other_shape(standard, y)), []
        op = OPERATIONS[case.op]
        limits = op.bound_of(numerics, inputs, case.params, truth["y"])
        error = honest["y"].astype(np.float64) - truth["y"]
        scene = _scene(standard, actual, limits)

        def explains(wrong: np.ndarray) -> bool:
            with np.errstate(invalid="ignore", over="ignore"):
                near = wrong + error
            if not scene.explained_by({"y": near}):
                return False
            room = _room(limits, wrong, truth["y"], numerics)
            own = _without_flips(y, wrong, truth["y"], room)
            return judge([measure("y", own, wrong, near, room, op.channel)]).passed

        def of_shape(answers: Iterator[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
            return (
                (name, wrong)
                for name, wrong in answers
                if wrong.shape == y.shape and not np.array_equal(wrong, honest["y"])
            )

        tried: dict[str, np.ndarray] = {}
        if ignored := _ignored_requests(standard, y) or _rounded_otherwise(standard, actual, scene):
            return ignored, []
        listed = explaining(of_shape(self._wrong_answers(case, inputs, numerics)), explains, tried)
        if listed:
            return scene.nearest({name: {"y": wrong + error} for name, wrong in listed.items()}), []
        params = op.complete(inputs, case.params)
        # Inside the bound a rounding that is not independent fits almost any constant.
        inside = bool((np.abs(y - truth["y"]) <= limits.limit).all())
        if inside and (steps := explaining(of_shape(stepwise(op, inputs, params)), explains, tried)):
            return scene.nearest({name: {"y": wrong + error} for name, wrong in steps.items()}), []
        gap = is_gap(y, truth["y"], honest["y"], op.channel)
        memory, found_by = search_memory(), dict[str, str]()
        only = memory.finders if memory is not None and memory.short else None
        wide = unlisted(op, inputs, params, y, gap, stepped=inside, only=only, found_by=found_by)
        suspects = explaining(of_shape(wide), explains, tried, memory.suffices if memory is not None else never)
        if memory is not None:
            memory.note({name: found_by[name] for name in suspects})
        if suspects:
            near = scene.nearest({name: {"y": wrong + error} for name, wrong in suspects.items()})
            names = [name for name in suspects if name in near]
            return ([], names) if inside else (names, [])
        fitted = [] if inside else fitted_causes(y, truth["y"], honest["y"], op.channel, tried)
        return fitted, [] if fitted else _not_finite_alike(y, tried)

    def _lost(self, standard: Standard, y: np.ndarray) -> list[str]:
        """Name what loops over whole blocks leave if it is all of an input or of the answer, and that is lost."""
        case, inputs, truth = standard.case, standard.inputs, standard.truth["y"]
        op, names = OPERATIONS[case.op], []
        if y.shape != truth.shape:
            return []
        if not y.any():
            places = [
                *((n, axis_name(a, op.channel, y.ndim)) for a, n in enumerate(y.shape)),
                (y.size, "the flat data"),
            ]
            names += [
                f"nothing is computed: zeros, in {words}"
                for n, at in places
                for start, words in tails(n, at)
                if not start
            ]
        for name, tensor in inputs.items():
            shape = tensor.shape
            bug = Mutant(name, other_input(name, np.zeros_like))
            zero = self.wrong_answer(case, inputs, bug) if tensor.values().dtype.kind == "f" else None
            if zero and (np.abs(y - zero["y"]) <= 8 * _ulps(zero["y"], unit(y.dtype))).all():
                ways = tails_of(name, shape, letters(op, name, len(shape)))
                names += [words for _, _, start, words in ways if not start]
        return names

    def _of_other_shape(self, standard: Standard, y: np.ndarray) -> list[str]:
        """Name the bugs and other parameters that give these numbers in this shape, or the slices that do."""
        truth, limit = standard.truth["y"], 8 * float(_bound(standard).limit.max(initial=0.0))
        words = "the right numbers in another shape" + ", its axes in reverse" * (y.shape == truth.shape[::-1])
        right = [(words, truth.reshape(y.shape))] if y.size == truth.size else []
        names = [
            name
            for name, wrong in (*right, *self._in_shape(standard, y))
            if np.isfinite(limit) and (np.abs(y - wrong) <= limit + 8 * _ulps(wrong, unit(y.dtype))).all()
        ]
        return names[:1] or list(filter(None, [other_shape(y, truth)]))

    def _in_shape(self, standard: Standard, y: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the answers of listed bugs, then of other parameters, that have the shape of a misshapen answer."""
        case, inputs = standard.case, standard.inputs
        op = OPERATIONS[case.op]
        params = op.complete(inputs, case.params)
        listed = [(mutant.name, self.wrong_answer(case, inputs, mutant)) for mutant in op.mutants]
        yield from ((name, answer["y"]) for name, answer in listed if answer and answer["y"].shape == y.shape)
        for name, value in params.items():
            for other in dict.fromkeys(other_values(value)):
                mutant = Mutant(
                    f"{name} is {plain(other)}, not {plain(value)}", other_params(**{name: lambda _, o=other: o})
                )
                if other != value and fits(name, other, value, inputs):
                    answer = self.wrong_answer(case, inputs, mutant)
                    if answer and answer["y"].shape == y.shape:
                        yield mutant.name, answer["y"]

    def _wrong_answers(self, case: Case, inputs: Inputs, numerics: Numerics) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the answers of the page's known bugs, then those of lower precisions."""
        op = OPERATIONS[case.op]
        for mutant in op.mutants:
            answer = self.wrong_answer(case, inputs, mutant)
            if answer is not None:
                yield mutant.name, answer["y"]
        yield from in_precisions(op, inputs, case.params, numerics)

    def _looks(self, standard: Standard, actual: Answer) -> list[str]:
        case, truth, honest = standard.case, standard.truth, standard.honest
        y = actual.get("y")
        if y is None or y.shape != truth["y"].shape:
            fitting = [] if y is None else [name for name, _ in self._in_shape(standard, y)]
            return [f"its shape fits: {fitting[0]}"] if fitting else []
        return describe(y, truth["y"], honest["y"], OPERATIONS[case.op].channel)

    def _nearest(self, standard: Standard, actual: Answer) -> Nearest | None:
        case, truth, honest = standard.case, standard.truth, standard.honest
        y = actual.get("y")
        if y is None or y.shape != truth["y"].shape:
            return None
        op = OPERATIONS[case.op]
        limits = op.bound_of(standard.numerics, standard.inputs, case.params, truth["y"])
        error = honest["y"].astype(np.float64) - truth["y"]
        answers = ((m.name, self.wrong_answer(case, standard.inputs, m)) for m in op.mutants)
        suspects = (
            (name, {"y": wrong["y"].astype(np.float64) + error})
            for name, wrong in answers
            if wrong is not None and wrong["y"].shape == y.shape and np.isfinite(wrong["y"]).all()
        )
        return _scene(standard, actual, limits).nearest_cause(suspects)


def _ignored_requests(standard: Standard, y: np.ndarray) -> list[str]:
    """Name the request that an engine ignores: without it the answer passes, and its errors have the expected size.

    Roundings of sums depend on their order, so that no answer need be near another.
    """
    case, inputs, truth, honest, numerics, _ = standard
    op = OPERATIONS[case.op]
    sizes: dict[str, float] = {}
    for words, ignoring in broken_requests(op, inputs, numerics).items():
        with np.errstate(all="ignore"):
            other = op.answer(Arithmetic(ignoring), inputs, case.params).astype(np.float64)
        limits = op.bound_of(ignoring, inputs, case.params, truth["y"])
        if not judge([measure("y", y, truth["y"], other, limits, op.channel, floating=True)]).passed:
            continue
        of_engine, of_honest, of_other = (_rms(each - truth["y"]) for each in (y, honest["y"], other))
        if of_engine > _MORE * of_honest and _TILES * of_other < of_engine < _MORE * of_other:
            sizes[words] = abs(np.log(of_engine / of_other))
    return sorted(sizes, key=sizes.__getitem__)[:1]


def _rounded_otherwise(standard: Standard, actual: Answer, scene: Scene) -> list[str]:
    """Name another rounding of activations in blocks whose answer is clearly nearer than truth and honest run.

    A scale's last bit decides the code of a block's largest number, so that no answer need be the same.
    """
    inputs, numerics = standard.inputs, standard.numerics
    if standard.case.op != "linear":
        return []
    weight, x = inputs["weight"], inputs["x"].values()
    block = block_of(numerics.input_of(weight.product_type))
    if not block or x.shape[-1] % block:
        return []
    wide, apart = Arithmetic(replace(numerics, activations={}, products=None)), {}
    for name, moved in moved_otherwise(x, block):
        given = {**inputs, "x": stored(moved.astype(np.float32))}
        y = OPERATIONS["linear"].answer(wide, given, standard.case.params)
        apart[name] = scene.distance({"y": y.astype(np.float64)})
    least = min(scene.distance(standard.truth), scene.distance(standard.honest))
    return [name for name in sorted(apart, key=apart.__getitem__) if _NEARER * apart[name] <= least][:1]


def _bound(standard: Standard) -> Bound:
    """Return the bound of "y", with the parameters that deviations replace."""
    case = standard.case
    op, params = OPERATIONS[case.op], dict(case.params)
    for deviation in standard.deviations:
        if deviation.op == case.op:
            params |= {name: value for name, value in deviation.sets.items() if name in op.params}
    return op.bound_of(standard.numerics, standard.inputs, params, standard.truth["y"])


def _scene(standard: Standard, actual: Answer, limits: Bound) -> Scene:
    """Return the answers in units of the bound plus one rounding."""
    scale = limits.limit + _ulps(standard.truth["y"], unit(standard.numerics.compute_dtype))
    return Scene(actual, standard.truth, standard.honest, {"y": np.where(scale > 0, scale, 1.0)})


def _room(limits: Bound, wrong: np.ndarray, truth: np.ndarray, numerics: Numerics) -> Bound:
    """Return the right answer's bound, enlarged by the rounding of the wrong one."""
    more = 8 * _ulps(wrong, max(unit(numerics.compute_dtype), unit(numerics.storage_dtype)))
    # A bug that makes numbers larger makes the roundings before it larger, too.
    times = max(1.0, _rms(wrong) / (_rms(truth) or 1.0))
    return Bound(times * limits.limit + more, times * limits.spread + more / 8)


def _not_finite_alike(y: np.ndarray, tried: Mapping[str, np.ndarray]) -> list[str]:
    """List the bugs that give NaN or infinities where an answer has them, which is wrong elsewhere, too."""
    odd = ~np.isfinite(y)
    return [name for name, wrong in tried.items() if np.array_equal(~np.isfinite(wrong), odd)] if odd.any() else []


def _without_flips(y: np.ndarray, wrong: np.ndarray, truth: np.ndarray, room: Bound) -> np.ndarray:
    """Return y with a bug's answer in the few elements that differ from it.

    An intermediate result near a tie is rounded to a small type one way here, the other way there.
    """
    with np.errstate(invalid="ignore"):  # of infinite answers
        apart, error = np.abs(y - wrong), np.abs(y - truth)
    usual = np.minimum(room.limit, _FAR * room.spread)
    flipped, lost = apart > usual, np.count_nonzero(error > usual)
    few = np.count_nonzero(flipped) <= _FLIPPED * lost and (apart[flipped] <= error.max(initial=0.0)).all()
    return np.where(flipped, wrong, y) if few else y


def _ulps(y: np.ndarray, u: float) -> np.ndarray:
    """Return u times the magnitude of each number, or times the RMS of all if that is more; 0 may be subnormal."""
    return u * np.maximum(np.abs(y), _rms(y)) + float(np.finfo(np.float32).tiny)


def _rms(y: np.ndarray) -> float:
    """Return the RMS of the finite numbers, counting the others as 0."""
    return float(np.sqrt(np.mean(np.where(np.isfinite(y), y, 0.0) ** 2))) if y.size else 0.0
