"""Models' components as a kind of case: answered by refsd's models, located by their taps."""

import functools
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from refsd.components import COMPONENTS, forward
from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.golden.judge import NOTHING, Answer, Inputs, Judge, Mutant, Standard, Trace
from refsd.golden.metrics import Metrics, channel_axis, measure, not_asked_for
from refsd.golden.taps import measure_taps
from refsd.golden.unlisted import KEPT
from refsd.golden.verdict import criteria, judge, judge_output
from refsd.judges import wrong_operations as operations
from refsd.judges.answers import comparable, factor, scene_of
from refsd.judges.case_components import PREFIX, Components, component_of
from refsd.judges.following import Following, Passing, Reached, as_shaped
from refsd.judges.known_deviations import Noting
from refsd.judges.known_deviations import explaining as explaining_deviations
from refsd.judges.model_mutants import MUTANTS, Change, ChangedWeights, in_each_block
from refsd.judges.observed import Observed
from refsd.judges.place import Place
from refsd.judges.scattered import Scattered
from refsd.judges.taps_in_memory import bytes_of, bytes_of_taps, within_bytes
from refsd.module import Module, Taps, WeightCache
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import Deviation
from refsd.numerics.machine import memory, one_answer
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, TORCH_BF16, TORCH_F16, TORCH_TF32, Numerics

# Precisions that an engine may compute in without declaring it.
_PRECISIONS = (TORCH_F16, TORCH_BF16, GGML_CPU, TORCH_TF32)
# Of honest runs with random roundings, where a tap or an output would be wrong without them; an output only if it
# has at most so many times what is allowed.
_SCATTERED_RUNS = 8
_NEARLY = 16.0
# Seconds of CPU that the search for the cause of one answer may take, at its first wrong tap and by its outputs.
_SEARCH = 24.0
# Wrong taps, the first, of which these runs are kept to judge projections by: so many, as long as they take no more
# than all taps do, or so many bytes if that is more; the first in any case.
_SCATTERED_TAPS = 20
_SCATTERED_BYTES = KEPT


class ModelJudge(Judge):
    """
    model_files: gives the file of a model's recipe weights; without it, cases that need one are refused
    """

    def __init__(self, model_files: ModelFiles | None = None):
        self.model_files = model_files
        self._module = Components(model_files)
        self._scattered: tuple[tuple[Case, Numerics, tuple[Deviation, ...]], Answer] | None = None

    def takes(self, op: str) -> bool:
        return op.startswith(PREFIX) and op.removeprefix(PREFIX) in COMPONENTS

    def what(self, case: Case) -> str:
        return "a model's component"

    def refuses(self, case: Case, numerics: Numerics) -> str | None:
        return "no model files" if case.model is not None and self.model_files is None else None

    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        return self.tapped(case, inputs, arithmetic, None)

    def tapped(
        self, case: Case, inputs: Inputs, arithmetic: Arithmetic, taps: Taps | None
    ) -> dict[str, np.ndarray]:
        """The answer; blocks and operations on the way go to `taps`. Raises BadInput for what does not fit."""
        with one_answer(arithmetic.numerics):
            # As much of the model is kept expanded as an eighth of the memory holds.
            m, values, params = self._module(case, inputs, arithmetic, WeightCache(memory() // 8))
            m.taps = taps
            return forward(component_of(case), m, values, params, case.name)

    def measure(self, standard: Standard, found: Answer) -> list[Metrics]:
        """A stored truth is in the order of names, the honest run in that of computation.

        A single honest run says little of what another may lose in a few numbers, as a channel of a tiny latent
        has: an output that nearly passes is measured again, in units of some runs with random roundings.
        """
        measured = self._beside_one_run(standard, found)
        for i, m in enumerate(measured):
            if m.engine is not None and 1 < judge_output(m).margin <= _NEARLY:
                spread = self._scattered_outputs(standard).get(m.output)
                measured[i] = self._output(standard, found, m.output, spread)
        return measured

    def _beside_one_run(self, standard: Standard, found: Answer) -> list[Metrics]:
        """Causes are tried by this, the sharper rule."""
        names = sorted(standard.truth, key=list(standard.honest).index)
        outputs = [self._output(standard, found, name) for name in names]
        return outputs + not_asked_for(found, standard.truth)

    def _output(self, standard: Standard, found: Answer, name: str, spread: np.ndarray | None = None) -> Metrics:
        y = standard.truth[name]
        return measure(name, found.get(name), y, standard.honest[name], None, channel_axis(y), spread=spread)

    def _scattered_outputs(self, standard: Standard) -> Answer:
        """Outputs of a small model -> the RMS error of each number over some runs with random roundings."""
        case, inputs, _, _, numerics, deviations = standard
        key = case, numerics, deviations
        if self._scattered is None or self._scattered[0] != key:
            spreads: Answer = NOTHING
            if numerics.compute != "float64" and (case.model is None or case.model.tiny):
                truth = self.answer(case, inputs, Arithmetic(FLOAT64, deviations))
                spreads = self._spreads(case, inputs, NOTHING, truth, numerics, deviations, NOTHING)
            self._scattered = key, spreads
        return self._scattered[1]

    def limits(self, standard: Standard) -> Answer:
        """The same for each element of an output: no bound is derived, the honest run's errors give it."""
        return {
            m.output: np.full(m.shape, criteria(m)[0].allowed * m.limit)
            for m in self.measure(standard, standard.honest)
            if m.engine is not None
        }

    def mutants(self, case: Case) -> Sequence[Mutant[Change]]:
        return MUTANTS

    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant[Change]) -> Answer | None:
        return self._changed(case, inputs, mutant.change, FLOAT32)

    def asks_for_taps(self, case: Case) -> bool:
        """True if the taps of one float64 run take at most an eighth of the memory."""
        return case.model is None or case.model.tiny or bytes_of_taps(case.model, case) <= memory() // 8

    def reference_taps(self, case: Case, inputs: Inputs) -> Answer:
        taps = Taps(ops=True)
        self.tapped(case, inputs, Arithmetic(FLOAT64), taps)
        return taps

    def trace(
        self,
        case: Case,
        inputs: Inputs,
        found: Answer,
        numerics: Numerics,
        deviations: tuple[Deviation, ...] = (),
        forced: Answer = NOTHING,
    ) -> Trace:
        followed = {**found, **forced}
        right, truth = self._follow(case, inputs, followed, Observed(FLOAT64, deviations), keeps=True)
        near, honest = self._follow(case, inputs, followed, Observed(numerics, deviations))
        losses = {name: segment.loss for name, segment in near.segments.items()}
        ops = {name: segment.ops for name, segment in near.segments.items()}
        outputs = {name: y for name, y in truth.items() if name in found and name not in right}
        shaped = {name: as_shaped(y, right[name].shape) if name in right else y for name, y in found.items()}
        truths = {**right, **outputs}
        concerned = {op for of in ops.values() for op in of}
        changed = self._changed_taps(case, inputs, followed, deviations, concerned, right)

        def effects(tap: str) -> dict[str, np.ndarray]:
            return {change: y[tap] - truths[tap] for change, y in changed.items() if tap in y}

        taps = measure_taps(shaped, truths, {**honest, **near}, numerics, losses, effects=effects)
        wrong = {m.output: truths[m.output] for m in taps if not judge_output(m).passed}
        if wrong and numerics.compute != "float64":
            given = {name: y for name, y in right.shaped.items() if name not in wrong}
            kept = {
                name: []
                for name in within_bytes(
                    wrong, _SCATTERED_RUNS, max(_SCATTERED_BYTES, bytes_of(truths)), _SCATTERED_TAPS
                )
            }
            spreads = self._spreads(case, inputs, followed, wrong, numerics, deviations, given, kept)
            again = measure_taps(shaped, wrong, {**honest, **near}, numerics, losses, spreads, effects, kept)
            judged_again = {m.output: m for m in again}
            taps = [judged_again.get(m.output, m) for m in taps]
        return Trace(taps, right.recorded, ops)

    def _changed_taps(
        self,
        case: Case,
        inputs: Inputs,
        found: Answer,
        deviations: tuple[Deviation, ...],
        ops: set[str],
        right: Following,
    ) -> dict[str, Answer]:
        """What small changes make of the engine's taps, in float64: of those that may concern these operations.

        Without the taps that no change moves, because their inputs are those of the right run.
        """
        concerned = {name: change for name, (of, change) in operations.PROJECTED.items() if not of.isdisjoint(ops)}
        return {
            name: {**y, **{tap: value for tap, value in taps.items() if tap not in taps.taken}}
            for name, change in concerned.items()
            for taps, y in [self._follow(case, inputs, found, change(FLOAT64, deviations), right=right)]
        }

    def _spreads(
        self,
        case: Case,
        inputs: Inputs,
        found: Answer,
        truths: Answer,
        numerics: Numerics,
        deviations: tuple[Deviation, ...],
        given: Answer,
        kept: Mapping[str, list[np.ndarray]] = MappingProxyType({}),
    ) -> Answer:
        """The RMS error of each element over some runs with random roundings, between one tap and the next.

        truths: of the taps that are asked for; given: other taps of the engine, as the reference shapes them
        kept:   tap -> where the errors of each run are put
        """
        squares = {name: np.zeros(y.shape) for name, y in truths.items()}
        of_calls: list[np.ndarray] = []
        for seed in range(_SCATTERED_RUNS):
            scattered = Scattered(numerics, np.random.default_rng(seed), of_calls, deviations)
            taps, outputs = self._follow(case, inputs, found, scattered, given=given)
            for name, y in {**outputs, **taps}.items():
                if name in squares:
                    error = np.asarray(y, np.float64) - truths[name]
                    error = np.where(np.isfinite(error), error, 0.0)
                    squares[name] += error**2
                    if name in kept:
                        kept[name].append(error)
        return {name: np.sqrt(y / _SCATTERED_RUNS) for name, y in squares.items()}

    def explain_tap(self, standard: Standard, found: Answer, tap: str) -> list[str]:
        end = time.process_time() + _SEARCH
        outputs = {name: found[name] for name in standard.truth if name in found}
        return self.place(standard, found, tap).explain(lambda: self._known(standard, outputs, MUTANTS, end), end)

    def describe_tap(self, standard: Standard, found: Answer, tap: str) -> list[str]:
        return self.place(standard, found, tap).describe()

    def place(self, standard: Standard, found: Answer, tap: str) -> Place:
        """The surroundings of a tap (or output) of the engine's. found: as for `trace`"""
        case, inputs, numerics = standard.case, standard.inputs, standard.numerics
        until = None if tap in standard.truth else tap
        observed = Observed(numerics)
        taps, _ = self._follow(case, inputs, found, observed)
        segment = taps.segments.get(tap) or taps.rest()
        given = {name: y for name, y in taps.shaped.items() if name != tap}

        def run(arithmetic: Arithmetic, change: Change) -> np.ndarray | None:
            taps, outputs = self._follow(case, inputs, found, arithmetic, until, change, given)
            y = outputs.get(tap) if until is None else taps.get(tap)
            return None if y is None else np.asarray(y, np.float64)

        @functools.cache
        def spread() -> np.ndarray:
            truth = run(Arithmetic(FLOAT64), Change())
            assert truth is not None
            return self._spreads(case, inputs, found, {tap: truth}, numerics, (), given)[tap]

        weights = self._module(case, inputs, Arithmetic(FLOAT32))[0].weights
        names = taps.recorded[: taps.recorded.index(tap)] if tap in taps.recorded else taps.recorded
        earlier = {name: found[name] for name in reversed(names) if name in found}
        return Place(tap, np.asarray(found[tap], np.float64), segment, run, spread, weights, numerics, earlier)

    def _follow(
        self,
        case: Case,
        inputs: Inputs,
        found: Answer,
        arithmetic: Arithmetic,
        until: str | None = None,
        change: Change | None = None,
        given: Answer = NOTHING,
        right: Following | None = None,
        keeps: bool = False,
    ) -> tuple[Following, Answer]:
        """What the reference, or the reference with a bug, makes of an engine's taps; and its outputs.

        until:  the only tap that is kept, with which the run ends: then without outputs
        change: a bug; where it makes no difference nothing is returned
        given:  taps that nobody asks for, as the reference shapes the engine's: their layers are not computed
        right:  an earlier run that kept its inputs (`keeps`): its products of equal inputs are not computed again
        """
        label = f"{case.op} in {arithmetic.numerics.name}"
        observed = arithmetic if isinstance(arithmetic, Observed) else None
        with one_answer(arithmetic.numerics), Following(label, found, observed, until, given, right, keeps) as taps:
            m, values, params = self._module(case, inputs, arithmetic)
            weights = m.weights
            if change is not None:
                values = change.inputs(values)
                weights = ChangedWeights(m.weights, change)
            if values is None:
                return taps, {}
            try:
                with (change or Change()).in_models():
                    y = forward(
                        component_of(case), Passing(weights, arithmetic, taps=taps), values, params, case.name
                    )
            except Reached:
                y = {}
            if change is None:
                return taps, y
            if isinstance(weights, ChangedWeights) and change.of_weights and not weights.met:
                taps.clear()
                return taps, {}
            return taps, change.outputs(y) or {}

    def diagnose(self, standard: Standard, found: Answer) -> list[str]:
        """The causes that explain an engine's answer, by the rule of golden/explanation.py.

        Tried in turn, until something explains it or the time is over: one factor on the whole answer, a precision
        that the engine does not declare, each known bug everywhere, known deviations of engines, each known bug of
        weights in one block alone. For models of full size only the deviations: each attempt takes seconds.
        """
        end = time.process_time() + _SEARCH
        case, inputs, truth, honest, numerics, _ = standard
        if not comparable(standard, found):
            return []
        scene = scene_of(standard, found)

        def agrees(y: Answer, right: Answer, near: Answer) -> bool:
            return judge(self._beside_one_run(standard._replace(truth=right, honest=near), y)).passed

        def deviating(deviations: tuple[Deviation, ...]) -> bool:
            near = self.answer(case, inputs, Arithmetic(numerics, deviations))
            return scene.explained_by(near) and agrees(
                found, self.answer(case, inputs, Arithmetic(FLOAT64, deviations)), near
            )

        def known_deviations() -> list[str]:
            noting = Noting(numerics)
            self.answer(case, inputs, noting)
            return explaining_deviations(noting.met, deviating)

        if case.model is not None and not case.model.tiny:
            return known_deviations()
        size = factor(found, truth)
        if scene.explained_by({name: size * y for name, y in honest.items()}) and agrees(
            {name: found[name] / size for name in truth}, truth, honest
        ):
            return [f"all that it gives is {size:.6g} times as large"]
        for other in (profile for profile in _PRECISIONS if profile != numerics):
            rough = self.answer(case, inputs, Arithmetic(other))
            if scene.explained_by(rough, precision=True) and agrees(found, truth, rough):
                return [f"it computes as {other.name}, and not as {numerics.name}"]
        known = self._known(standard, found, MUTANTS, end) or known_deviations()
        return known or self._known(standard, found, in_each_block(self.axes_of_weights(case, inputs)), end)

    def _known(self, standard: Standard, found: Answer, mutants: Iterable[Mutant[Change]], end: float) -> list[str]:
        """Those known bugs that explain the outputs, the likeliest first; none where the outputs conform.

        end: of the search, in seconds of this process
        """
        case, inputs, _, _, numerics, _ = standard
        small = case.model is not None and case.model.tiny
        if not small or not comparable(standard, found) or judge(self.measure(standard, found)).passed:
            return []
        scene, suspects = scene_of(standard, found), {}
        for name, change in itertools.takewhile(lambda mutant: time.process_time() < end, mutants):
            near = self._changed(case, inputs, change, numerics)
            if near is None or not scene.explained_by(near):
                continue
            right = self._changed(case, inputs, change, FLOAT64)
            if right is not None:
                changed = standard._replace(truth=right, honest=near)
                if judge(self._beside_one_run(changed, found)).passed:
                    suspects[name] = near
        return scene.nearest(suspects)

    def axes_of_weights(self, case: Case, inputs: Inputs) -> dict[str, int]:
        """How many axes each weight of the case's component has."""
        weights = self._module(case, inputs, Arithmetic(FLOAT32))[0].weights
        return {name: len(tensor.shape) for name, tensor in weights.items()}

    def _changed(self, case: Case, inputs: Inputs, change: Change, numerics: Numerics) -> Answer | None:
        """The reference's answer with a bug; None where the bug makes no difference."""
        with one_answer(numerics):
            m, values, params = self._module(case, inputs, change.arithmetic(numerics))
            wrong = change.inputs(values)
            if wrong is None:
                return None
            weights = ChangedWeights(m.weights, change)
            with change.in_models():
                y = forward(component_of(case), Module(weights, m.arithmetic), wrong, params, case.name)
        return None if change.of_weights and not weights.met else change.outputs(y)
