"""Run the reference on cases of model components: whole, from an engine's taps, with a bug, with rounding noise."""

from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from refsd.causes.model.following import Following, Passing, Reached
from refsd.causes.model.mutants import MUTANTS, Change, ChangedWeights
from refsd.causes.model.observed import Observed
from refsd.components import COMPONENTS, forward
from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.golden.judge import NOTHING, Answer, Inputs, Judge, Standard
from refsd.judges.case_components import PREFIX, Components, answer_if_taken, component_of
from refsd.judges.model_calls import Calls
from refsd.judges.scattered import Scattered, spread_of_runs
from refsd.module import Module, Taps, WeightCache
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import Deviation
from refsd.numerics.machine import memory, one_answer
from refsd.numerics.profiles import FLOAT32, FLOAT64, Numerics

_NO_CHANGE = Change()


def is_small(case: Case) -> bool:
    """Return True for tiny models and adopted graphs, on which a search runs the reference many times."""
    return case.model.tiny if case.model is not None else COMPONENTS[component_of(case)].part is None


class ModelRuns(Judge):
    """The reference's answers to cases of model components.

    model_files: model recipe, layout -> file of its weights; without it, cases that need a model are refused
    """

    def __init__(self, model_files: ModelFiles | None = None):
        self.model_files = model_files
        self._components = Components(model_files)
        self._scattered: tuple[tuple[Case, Numerics, tuple[Deviation, ...]], Answer] | None = None
        self._calls: tuple[tuple[Case, tuple[str, ...]], Calls] | None = None

    def _module(
        self, case: Case, inputs: Inputs, arithmetic: Arithmetic, cache: WeightCache | None = None
    ) -> tuple[Module, dict[str, np.ndarray], dict[str, Any]]:
        """Return the case's component, input values and parameters. A judge of living models has its own."""
        return self._components(case, inputs, arithmetic, cache)

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
        """Return the answer; record blocks and operations in `taps`. Raises BadInput if the case does not fit."""
        with one_answer(arithmetic.numerics):
            # Expanded weights stay cached in up to an eighth of the memory.
            m, values, params = self._module(case, inputs, arithmetic, WeightCache(memory() // 8))
            m.taps = taps
            return forward(component_of(case), m, values, params, case.name)

    def _scattered_outputs(self, standard: Standard) -> Answer:
        """Return the RMS error of each output element over runs with random roundings; for small models only."""
        case, inputs, _, _, numerics, deviations = standard
        key = case, numerics, deviations
        if self._scattered is None or self._scattered[0] != key:
            spreads: Answer = NOTHING
            if numerics.compute != "float64" and is_small(case):
                truth = self.answer(case, inputs, Arithmetic(FLOAT64, deviations))
                spreads = self._spreads(case, inputs, NOTHING, truth, numerics, deviations, NOTHING)
            self._scattered = key, spreads
        return self._scattered[1]

    def _spreads(
        self,
        case: Case,
        inputs: Inputs,
        actual: Answer,
        truths: Answer,
        numerics: Numerics,
        deviations: tuple[Deviation, ...],
        given: Answer,
        kept: Mapping[str, list[np.ndarray]] = MappingProxyType({}),
    ) -> Answer:
        """Return the RMS error of each element, between one tap and the next, over runs with random roundings.

        truths: the truth of each tap that is asked for
        given:  the engine's other taps, in the reference's shape
        kept:   tap -> list to which the errors of each run are appended
        """

        def run(scattered: Scattered) -> Answer:
            taps, outputs = self._follow(case, inputs, actual, scattered, given=given)
            return {**outputs, **taps}

        return spread_of_runs(run, truths, numerics, deviations, kept)

    def _changed(self, case: Case, inputs: Inputs, change: Change, numerics: Numerics) -> Answer | None:
        """Return the reference's answer with a bug; None if it makes no difference, or inputs that are refused."""
        if not self._concerned(case, inputs, change):
            return None
        with one_answer(numerics):
            return self._run(case, inputs, change.arithmetic(numerics), change)

    def _follow(
        self,
        case: Case,
        inputs: Inputs,
        actual: Answer,
        arithmetic: Arithmetic,
        until: str | None = None,
        change: Change = _NO_CHANGE,
        given: Answer = NOTHING,
        right: Following | None = None,
        keeps: Collection[str] = (),
        layouts: dict[str, tuple[int, ...]] | None = None,
        also: Collection[str] = (),
    ) -> tuple[Following, Answer]:
        """Run the reference, with or without a bug, from an engine's taps. -> its taps, its outputs

        until:  the only tap to keep, at which the run ends without outputs; None: run to the end
        given:  engine taps whose own value is not needed, in the reference's shape: their layers are skipped
        right:  an earlier run with `keeps`: its products are reused where the inputs are equal
        keeps:  methods whose inputs to keep, as Following takes them
        layouts, also: as Following takes them
        """
        concerned = self._concerned(case, inputs, change)
        label = f"{case.op} in {arithmetic.numerics.name}"
        observed = arithmetic if isinstance(arithmetic, Observed) else None
        with (
            one_answer(arithmetic.numerics),
            Following(label, actual, observed, until, given, right, keeps, layouts, also) as taps,
        ):
            return taps, (self._run(case, inputs, arithmetic, change, taps) or {}) if concerned else {}

    def _concerned(self, case: Case, inputs: Inputs, change: Change) -> bool:
        """Return False if a bug replaces only functions that the case does not call."""
        if not change.replaced:
            return True
        key = case, tuple(inputs)
        if self._calls is None or self._calls[0] != key:
            run = partial(self.answer, case, inputs, Arithmetic(FLOAT32))
            self._calls = key, Calls((bug.change for bug in MUTANTS), run)
        return self._calls[1].concern(change)

    def _run(
        self,
        case: Case,
        inputs: Inputs,
        arithmetic: Arithmetic,
        change: Change = _NO_CHANGE,
        taps: Following | None = None,
    ) -> Answer | None:
        """Return the reference's answer with a bug; {} if `taps` ended the run.

        None, and no taps, if the bug makes no difference, or inputs that the reference refuses.
        """
        m, values, params = self._module(case, inputs, arithmetic)
        wrong, weights = change.inputs(values), ChangedWeights(m.weights, change)
        if wrong is None or weights.none_changed():
            return None
        run = forward if change is _NO_CHANGE else answer_if_taken
        passing = Passing(weights, arithmetic, taps=taps)
        try:
            with change.in_models():
                y = run(component_of(case), passing, wrong, change.params(params), case.name)
        except Reached:
            y = {}
        if y is None or (change.of_weights and not weights.met):
            if taps is not None:
                taps.clear()
            return None
        return change.outputs(y)
