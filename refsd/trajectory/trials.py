"""A trajectory case put to every known bug that makes a difference to it."""

import numpy as np

from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.golden.mutants import Trial
from refsd.golden.numerics import FLOAT32, FLOAT64
from refsd.trajectory.bugs import BUGS, simulate
from refsd.trajectory.measure import measure_trajectory
from refsd.trajectory.run import answer


def try_all(case: Case) -> list[Trial]:
    """Judged as an engine that declares float32: each step from its own latents, then free-running."""
    inputs = case.realize()
    truth, honest = (answer(case, inputs, n.compute_dtype) for n in (FLOAT64, FLOAT32))
    trials = []
    for bug in BUGS:
        wrong = simulate(case, inputs["noise"].values().astype(np.float32), truth["sigmas"], bug)
        if wrong is not None:
            metrics = measure_trajectory(case, inputs, wrong.outputs(), truth, honest, FLOAT32)
            judged = verdict.judge_in_order(metrics)
            trials.append(Trial(case.name, bug.name, not judged.passed, judged))
    return trials
