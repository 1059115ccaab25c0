"""Judge cases of model components: refsd's models give the truth, and taps locate an error."""

import functools
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from refsd.causes.generic.other_shapes import other_shapes
from refsd.causes.model.following import LAYERS, PRODUCTS, Following, as_shaped, of_one_layer
from refsd.causes.model.mutants import MUTANTS, Change, in_each_block
from refsd.causes.model.observed import Observed
from refsd.causes.model.place import Place
from refsd.causes.model.rearranged import UNFIT, joined_otherwise
from refsd.causes.operation.precisions import of_models
from refsd.causes.operation.unlisted import KEPT
from refsd.components import data_flow
from refsd.golden.case import Case
from refsd.golden.explanation import Explanation, Nearest
from refsd.golden.judge import NOTHING, Answer, Inputs, Mutant, Standard, Trace
from refsd.golden.metrics import Metrics, channel_axis, measure, not_asked_for
from refsd.golden.search_cuts import TimeLimit
from refsd.golden.taps import measure_taps
from refsd.golden.verdict import criteria, first_wrong, judge, judge_output
from refsd.judges.answers import comparable, factor, scene_of
from refsd.judges.known_deviations import Noting
from refsd.judges.known_deviations import explaining as explaining_deviations
from refsd.judges.model_runs import ModelRuns, is_small
from refsd.judges.scattered import RUNS
from refsd.judges.taps_in_memory import bytes_of, bytes_of_taps, may_be_kept, with_errors_kept
from refsd.module import Taps
from refsd.networks import wrong_operations as operations
from refsd.networks.bugs import of_blocks
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import Deviation
from refsd.numerics.machine import memory
from refsd.numerics.profiles import FLOAT32, FLOAT64, Numerics

# Runs with random roundings are made where a tap fails without them, or where an output exceeds its limit by at
# most this factor.
_NEARLY = 16.0
# CPU seconds for the search for the cause of one answer: one search at its first wrong tap, one by its outputs.
_SEARCH = 24.0
# CPU seconds for the nearest bug of an answer that no bug explains.
_NEAREST = 5.0
_NO_LIMIT = TimeLimit(math.inf)


class ModelJudge(ModelRuns):
    """Judges cases of model components."""

    def measure(self, standard: Standard, actual: Answer) -> list[Metrics]:
        """Measure the outputs in the order of computation: a stored truth is sorted by name, the honest run is not.

        One honest run is a poor estimate where an output has few numbers, as a channel of a tiny latent has. So an
        output that nearly passes is measured again, in units of several runs with random roundings.
        """
        measured = self._beside_one_run(standard, actual)
        for i, m in enumerate(measured):
            if m.engine is not None and 1 < judge_output(m).margin <= _NEARLY:
                spread = self._scattered_outputs(standard).get(m.output)
                measured[i] = self._output(standard, actual, m.output, spread)
        return measured

    def _beside_one_run(self, standard: Standard, actual: Answer) -> list[Metrics]:
        """Measure the outputs against the single honest run: the stricter rule, by which causes are tried."""
        names = sorted(standard.truth, key=list(standard.honest).index)
        outputs = [self._output(standard, actual, name) for name in names]
        return outputs + not_asked_for(actual, standard.truth)

    def _output(self, standard: Standard, actual: Answer, name: str, spread: np.ndarray | None = None) -> Metrics:
        y = standard.truth[name]
        honest, axis = standard.honest[name], channel_axis(y)
        return measure(name, actual.get(name), y, honest, None, axis, spread=spread, floating=True)

    def limits(self, standard: Standard) -> Answer:
        """Return one limit per output, the same for all elements: it comes from the honest run's errors."""
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
        """Return True if the taps of one float64 run take at most an eighth of the memory."""
        return case.model is None or case.model.tiny or bytes_of_taps(case.model, case) <= memory() // 8

    def reference_taps(self, case: Case, inputs: Inputs) -> Answer:
        taps = Taps(ops=True)
        self.tapped(case, inputs, Arithmetic(FLOAT64), taps)
        return taps

    def trace(
        self,
        case: Case,
        inputs: Inputs,
        actual: Answer,
        numerics: Numerics,
        deviations: tuple[Deviation, ...] = (),
        forced: Answer = NOTHING,
    ) -> Trace:
        followed = {**actual, **forced}
        right, truth = self._follow(case, inputs, followed, Observed(FLOAT64, deviations), keeps=PRODUCTS)
        near, honest = self._follow(case, inputs, followed, Observed(numerics, deviations))
        losses = {name: segment.loss for name, segment in near.segments.items()}
        ops = {name: segment.ops for name, segment in near.segments.items()}
        outputs = {name: y for name, y in truth.items() if name in actual and name not in right}
        shaped = {name: as_shaped(y, right[name].shape) if name in right else y for name, y in actual.items()}
        truths = {**right, **outputs}
        concerned = {op for of in ops.values() for op in of}
        changed = self._changed_taps(case, inputs, followed, deviations, concerned, right)

        def effects(tap: str) -> dict[str, np.ndarray]:
            return {change: y[tap] - truths[tap] for change, y in changed.items() if tap in y}

        taps = measure_taps(shaped, truths, {**honest, **near}, numerics, losses, effects=effects)
        wrong = {m.output: truths[m.output] for m in taps if not judge_output(m).passed}
        if wrong and numerics.compute != "float64":
            given = {name: y for name, y in right.shaped.items() if name not in wrong}
            kept = {name: [] for name in with_errors_kept(wrong, RUNS, bytes_of(truths))}
            spreads = self._spreads(case, inputs, followed, wrong, numerics, deviations, given, kept)
            again = measure_taps(shaped, wrong, {**honest, **near}, numerics, losses, spreads, effects, kept)
            judged_again = {m.output: m for m in again}
            taps = [judged_again.get(m.output, m) for m in taps]
        still = first_wrong(taps)
        values = {still: (truths[still], {**honest, **near}[still])} if still in truths else {}
        steps = data_flow.trace(case).steps if still and case.model is not None and case.model.tiny else ()
        sources = {step.name: [steps[i].name for _, i in step.takes] for step in steps if step.op}
        return Trace(taps, right.recorded, ops, values, {name: y.shape for name, y in right.items()}, sources)

    def layouts(self, case: Case, inputs: Inputs, actual: Answer) -> dict[str, tuple[int, ...]]:
        orders: dict[str, tuple[int, ...]] = {}
        self._follow(case, inputs, actual, Arithmetic(FLOAT64), layouts=orders)
        return orders

    def _changed_taps(
        self,
        case: Case,
        inputs: Inputs,
        actual: Answer,
        deviations: tuple[Deviation, ...],
        ops: set[str],
        right: Following,
    ) -> dict[str, Answer]:
        """Return change -> taps in float64 with that change, for the changes that may concern these operations.

        Taps that a change cannot move, because their inputs equal the right run's, are left out.
        """
        concerned = {name: change for name, (of, change) in operations.PROJECTED.items() if not of.isdisjoint(ops)}
        return {
            name: {**y, **{tap: value for tap, value in taps.items() if tap not in taps.taken}}
            for name, change in concerned.items()
            for taps, y in [self._follow(case, inputs, actual, change(FLOAT64, deviations), right=right)]
        }

    def explain(self, standard: Standard, actual: Answer, tap: str = "") -> Explanation:
        if not tap:
            causes = self._causes(standard, actual)
            return Explanation(causes, nearest=None if causes else self._nearest(standard, actual))
        limit = TimeLimit(_SEARCH)
        outputs = {name: actual[name] for name in standard.truth if name in actual}
        place = self.place(standard, actual, tap)

        def known(changing: Collection[str]) -> list[str]:
            """Those that change the tap come first, the model's own ahead; others change what is given."""
            page = standard.case.op.removeprefix("model/").replace("-", "_")
            bugs = sorted(MUTANTS, key=lambda bug: page not in str([at.__name__ for at, *_ in bug.change.replaced]))
            of = [[bug for bug in bugs if (bug.name in changing) == first] for first in (True, False)]
            return self._known(standard, outputs, of[0], limit) or self._known(standard, outputs, of[1], limit)

        def held(names: list[str]) -> list[str]:
            """Bugs of whole models that do not explain the outputs come last, as those of this place alone."""
            whole = [bug for bug in MUTANTS if bug.name in names]
            tried = whole and is_small(standard.case) and comparable(standard, outputs)
            if not tried or judge(self.measure(standard, outputs)).passed:
                return names
            doubtful = {bug.name for bug in whole}.difference(self._known(standard, outputs, whole, _NO_LIMIT))
            here = [f"{name}, here but not in all of the model" for name in names if name in doubtful]
            return [*(name for name in names if name not in doubtful), *here]

        causes = place.explain(known, limit, held) or other_shapes(outputs, standard.truth)
        return Explanation(causes) if causes else Explanation(causes, place.describe(), place.nearest())

    def _nearest(self, standard: Standard, actual: Answer) -> Nearest | None:
        """Return the nearest known bug; only for tiny models, and of as many bugs as time allows."""
        case = standard.case
        if not comparable(standard, actual) or not is_small(case):
            return None
        tried = TimeLimit(_NEAREST, noted=False).within(MUTANTS)
        answers = ((bug, self._changed(case, standard.inputs, change, standard.numerics)) for bug, change in tried)
        return scene_of(standard, actual).nearest_cause((bug, y) for bug, y in answers if y is not None)

    def place(self, standard: Standard, actual: Answer, tap: str) -> Place:
        """Return the surroundings of an engine's tap or output. actual: as for `trace`"""
        case, inputs, numerics = standard.case, standard.inputs, standard.numerics
        until = None if tap in standard.truth else tap
        observed = Observed(numerics, keeps=KEPT)
        taps, _ = self._follow(case, inputs, actual, observed)
        segment = taps.segments.get(tap) or taps.rest()
        given = {name: y for name, y in taps.shaped.items() if name != tap}

        @functools.cache
        def right() -> Following | None:
            """The run without a bug in float64, for its products; None if they take too much memory."""
            if not may_be_kept(case):
                return None
            return self._follow(case, inputs, actual, Arithmetic(FLOAT64), keeps=PRODUCTS, also=taps.recorded)[0]

        def run(arithmetic: Arithmetic, change: Change, instead: Answer = NOTHING) -> np.ndarray | None:
            own = {name: as_shaped(y, given[name].shape) if name in given else y for name, y in instead.items()}
            # With a tensor exchanged most products are those of the right run.
            reuses = instead and change == Change() and arithmetic.numerics == FLOAT64
            try:
                taken = {**actual, **own}, arithmetic, until, change, {**given, **own}, right() if reuses else None
                taps, outputs = self._follow(case, inputs, *taken)
            except UNFIT:  # with the bug tensors have other sizes than the engine's, which are given
                if change == Change():
                    raise
                return None
            y = outputs.get(tap) if until is None else taps.get(tap)
            return None if y is None else np.asarray(y, np.float64)

        @functools.cache
        def spread() -> np.ndarray:
            truth = run(Arithmetic(FLOAT64), Change())
            assert truth is not None
            return self._spreads(case, inputs, actual, {tap: truth}, numerics, (), given)[tap]

        m, _, params = self._module(case, inputs, Arithmetic(FLOAT32))
        at = taps.recorded.index(tap) if tap in taps.recorded else len(taps.recorded)
        own = np.asarray(actual[tap], np.float64)
        earlier = {name: actual[name] for name in reversed(taps.recorded[:at]) if name in actual}
        later = {name: actual[name] for name in taps.recorded[at + 1 :] if name in actual}
        later = {name: y for name, y in later.items() if not np.array_equal(y, actual[tap])}
        calls = [name for name in taps.recorded if of_one_layer(name, tap, taps.recorded)]

        @functools.cache
        def others() -> Answer:
            # Of an adopted graph one result has the names of all modules that end with it.
            rest = {name: y for name, y in actual.items() if name != tap and not np.array_equal(y, actual[tap])}
            right, outputs = self._follow(case, inputs, rest, Observed(FLOAT64), also=calls)
            return {**right, **outputs}

        @functools.cache
        def undumped() -> Answer:
            hidden = [name for name in taps.recorded[:at] if name not in actual] if is_small(case) else []
            if not hidden:
                return {}
            right, _ = self._follow(case, inputs, actual, Observed(FLOAT64), also=hidden)
            return {name: right[name] for name in reversed(hidden) if name in right}

        @functools.cache
        def read() -> Answer:
            if not is_small(case):
                return {}
            right, _ = self._follow(case, inputs, actual, Observed(FLOAT64), keeps=LAYERS)
            before = [name for name in reversed(taps.recorded[:at]) if name in right.inputs]
            return {f"the input of {name}": right.inputs[name] for name in before}

        known, of = observed.results[: segment.last], (tap, own, segment, run, spread, m.weights, numerics)
        return Place(*of, known, earlier, later, others, calls, params, undumped, read)

    def _causes(self, standard: Standard, actual: Answer) -> list[str]:
        """Return the causes that explain an engine's answer, by the rule of golden/explanation.py.

        Tries in turn, until something explains it or time is up: one factor on the whole answer, a precision that
        the engine does not declare, each known bug everywhere, known deviations of engines, each known bug of
        weights in a single block. On full-size models, where each attempt takes seconds, only the deviations.
        """
        limit = TimeLimit(_SEARCH)
        case, inputs, truth, honest, numerics, _ = standard
        if not comparable(standard, actual):
            return other_shapes(actual, standard.truth)
        scene = scene_of(standard, actual)

        def agrees(y: Answer, right: Answer, near: Answer) -> bool:
            return judge(self._beside_one_run(standard._replace(truth=right, honest=near), y)).passed

        def deviating(deviations: tuple[Deviation, ...]) -> bool:
            near = self.answer(case, inputs, Arithmetic(numerics, deviations))
            return scene.explained_by(near) and agrees(
                actual, self.answer(case, inputs, Arithmetic(FLOAT64, deviations)), near
            )

        def known_deviations() -> list[str]:
            noting = Noting(numerics)
            self.answer(case, inputs, noting)
            return explaining_deviations(noting.met, deviating)

        if not is_small(case):
            return known_deviations()
        size = factor(actual, truth)
        if scene.explained_by({name: size * y for name, y in honest.items()}) and agrees(
            {name: actual[name] / size for name in truth}, truth, honest
        ):
            return [f"every output is multiplied by {size:.6g}"]
        for phrase, other in of_models(numerics):
            rough = self.answer(case, inputs, Arithmetic(other))
            if scene.explained_by(rough, precision=True) and agrees(actual, truth, rough):
                return [phrase]

        def rerun(change: Change) -> Answer | None:
            return self._changed(case, inputs, change, numerics)

        known = self._known(standard, actual, MUTANTS, limit) or known_deviations()
        known = known or self._known(standard, actual, (bug for _, bug in of_blocks(rerun)), limit)
        known = known or self._known(standard, actual, joined_otherwise(rerun), limit)
        return known or self._known(standard, actual, in_each_block(self.axes_of_weights(case, inputs)), limit)

    def _known(
        self, standard: Standard, actual: Answer, mutants: Iterable[Mutant[Change]], limit: TimeLimit
    ) -> list[str]:
        """Return the known bugs that explain the outputs, the likeliest first; none if the outputs conform.

        Only for tiny models and adopted graphs.
        """
        case, inputs, _, _, numerics, _ = standard
        tried = is_small(case) and standard.truth and comparable(standard, actual)
        if not tried or judge(self.measure(standard, actual)).passed:
            return []
        scene, suspects = scene_of(standard, actual), {}
        for name, change in limit.within(mutants):
            near = self._changed(case, inputs, change, numerics)
            if near is None or not scene.explained_by(near):
                continue
            if (right := self._changed(case, inputs, change, FLOAT64)) is not None:
                changed = standard._replace(truth=right, honest=near)
                if judge(self._beside_one_run(changed, actual)).passed:
                    suspects[name] = near
        return scene.nearest(suspects)

    def axes_of_weights(self, case: Case, inputs: Inputs) -> dict[str, int]:
        """Return the number of axes of each weight of the case's component."""
        weights = self._module(case, inputs, Arithmetic(FLOAT32))[0].weights
        return {name: len(tensor.shape) for name, tensor in weights.items()}
