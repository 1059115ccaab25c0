"""Judge cases of trajectories: samplers give the truth, step by step from the engine's own latents."""

from collections.abc import Sequence

import numpy as np

from refsd.causes.trajectory.diagnose import diagnose
from refsd.causes.trajectory.mutants import MUTANTS, Change
from refsd.causes.trajectory.simulate import simulate
from refsd.golden.case import Case
from refsd.golden.explanation import Explanation
from refsd.golden.judge import Answer, Inputs, Judge, Mutant, Standard
from refsd.golden.metrics import Metrics
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import FLOAT32, Numerics
from refsd.trajectory.measure import measure_trajectory
from refsd.trajectory.run import answer, sigmas_of


class TrajectoryJudge(Judge):
    """Judges trajectories. Each output is measured from the engine's earlier ones: the first wrong is the place."""

    def takes(self, op: str) -> bool:
        return op == "trajectory"

    def what(self, case: Case) -> str:
        return "a trajectory"

    def refuses(self, case: Case, numerics: Numerics) -> str | None:
        known = numerics.storage in ("float64", "float32")
        return None if known else f"no engine keeps its latents in {numerics.storage}"

    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        with one_answer(arithmetic.numerics):
            return answer(case, inputs, arithmetic.numerics.compute_dtype)

    def measure(self, standard: Standard, actual: Answer) -> list[Metrics]:
        case, inputs, truth, honest, numerics, _ = standard
        return measure_trajectory(case, inputs, actual, truth, honest, numerics)

    def mutants(self, case: Case) -> Sequence[Mutant[Change]]:
        return MUTANTS

    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant[Change]) -> Answer | None:
        noise = inputs["noise"].values().astype(FLOAT32.compute_dtype)
        dump = simulate(case, noise, sigmas_of(case), mutant.change)
        return None if dump is None else dump.outputs()

    def explain(self, standard: Standard, actual: Answer, tap: str = "") -> Explanation:
        return Explanation(diagnose(standard.case, standard.inputs, actual, standard.numerics))
