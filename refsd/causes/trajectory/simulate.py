"""A trajectory with a known bug, computed from the sampler's linear form."""

import numpy as np

from refsd.causes.trajectory.mutants import Change, ModelCall, guided_by, wrong_forms
from refsd.golden.case import Case
from refsd.trajectory.forms import Forms, forms
from refsd.trajectory.run import Dump, by_forms, signal_of, solver_of


def simulate(case: Case, noise: np.ndarray, sigmas: np.ndarray, change: Change | None = None) -> Dump | None:
    """Compute a trajectory with a bug from its rows, in the dtype of noise; None if the bug makes no difference.

    Wrong sigmas within 1e-3 (relative) of the right ones make no difference.

    change: None gives the trajectory of an honest engine that adds in another order than the sampler.
    """
    solver, change = solver_of(case), change or Change()
    if not change.of(solver):
        return None
    if change.sigmas is not None:
        other = change.sigmas(case)
        if other is None or np.allclose(other, sigmas, rtol=1e-3, atol=0):
            return None
        sigmas = other
    form = forms(solver, sigmas)
    if form.draws >= len(noise):
        return None
    wrong = wrong_forms(change, case, form, sigmas)
    if wrong is None:
        return None
    calls = iter(range(wrong.calls))
    answers = lambda x, sigma: answer(case, wrong, sigmas, next(calls), x, sigma, change)
    return by_forms(wrong, sigmas, answers, noise)


def answer(
    case: Case, form: Forms, sigmas: np.ndarray, k: int, x: np.ndarray, sigma: float, change: Change
) -> tuple[np.ndarray, ...]:
    """Compute the model outputs at call k, with the bug if it changes the model or its sigma."""
    if change.steps_on is not None:
        sigmas = change.steps_on
        sigma = float(forms(solver_of(case), sigmas).sigmas[k])
    to, guidance = float(sigmas[form.steps[k] + 1]), float(case.params["guidance"])
    call = ModelCall(x, float(sigma), to, guidance, signal_of(solver_of(case), float(sigma)), k)
    answers = change.answers or guided_by(lambda g: g)
    return answers(call)[: form.answers]
