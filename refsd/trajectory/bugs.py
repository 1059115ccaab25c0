"""Known bugs of samplers, each named when an engine's trajectory agrees with it and not with the reference.

A bug is another sum of the same terms (its rows), another answer of the model, or other sigmas. Each is tested on
the engine's own states.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.errors import BadInput
from refsd.pipelines import sampling
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES
from refsd.trajectory import model as analytic
from refsd.trajectory.forms import Forms, forms
from refsd.trajectory.run import Dump, method_of

# Those that look back over several steps, one call a step.
_MULTISTEP = (
    *("lms", "dpm++2m", "dpm++2mv2", "dpm++2m_sde", "dpm++3m_sde", "ipndm", "ipndm_v", "deis"),
    *("res_multistep", "euler_ge", "res_multistep_a", "euler_ge_a", "dpm++2m_sde_heun", "dpm++2m_sde_bt"),
    *("deis_tab", "ipndm_v_published"),
)
# Those whose weight of denoised is 1 - e^-h.
_EXPONENTIAL = ("dpm++2m", "dpm++2mv2")

Rows = Callable[[Case, Forms, np.ndarray], np.ndarray | None]
Answers = Callable[[np.ndarray, float, float, float], np.ndarray]


class Bug(NamedTuple):
    """
    rows:    (case, the right forms, sigmas) -> the wrong ones; None where the bug makes no difference
    answers: (x, sigma, the next step's sigma, guidance) -> the wrong denoised
    sigmas:  case -> the wrong ones
    """

    name: str
    rows: Rows | None = None
    answers: Answers | None = None
    sigmas: Callable[[Case], np.ndarray | None] | None = None


def _step_of(form: Forms, k: int) -> int:
    """The step in which row k is computed."""
    return int(form.steps[k - 1])


def _next_but_one(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """Each step goes to sigma_{i+2}, as if its index were one too high."""
    rows = form.rows.copy()
    for i in range(len(sigmas) - 3):
        other = sigmas.copy()
        other[i + 1] = sigmas[i + 2]
        # Apart from equal ones, so that no step has length 0.
        other[i + 2] = (sigmas[i + 2] + sigmas[i + 3]) / 2
        wrong = forms(method_of(case).run, other)
        if wrong.rows.shape != rows.shape:  # where it draws depends on sigma
            return None
        for k in range(1, len(rows)):
            if _step_of(form, k) == i:
                rows[k] = wrong.rows[k]
    return rows


def _without_eta(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    if not case.params.get("eta"):
        return None
    wrong = forms(sampling.method(case.params["sampler"], 0.0).run, sigmas).rows
    rows = np.zeros_like(form.rows)
    width = min(wrong.shape[1], rows.shape[1])
    rows[:, :width] = wrong[:, :width]
    return rows


def _noise_of_next(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """sigma_next in place of sigma_up."""
    rows = form.rows.copy()
    for k in range(1, len(rows)):
        noise = rows[k, 2 * form.calls :]
        noise[noise != 0] = sigmas[_step_of(form, k) + 1]
    return rows if form.draws else None


def _noise_late(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """Each step takes the noise of the draw before its own; the first takes its own."""
    if form.draws < 2:
        return None
    rows = form.rows.copy()
    noise = form.rows[:, 2 * form.calls :]
    rows[:, 2 * form.calls : -1] = noise[:, 1:]
    rows[:, 2 * form.calls] += noise[:, 0]
    rows[:, -1] = 0
    return rows


def _past(rows: np.ndarray, form: Forms, change: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Change the coefficients of the latents, and those of the answers, that a row looks back on."""
    rows = rows.copy()
    for k in range(2, len(rows)):
        for start in (0, form.calls):
            rows[k, start : start + k] = change(rows[k, start : start + k].copy(), k)
    return rows


def _one_too_old(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """What ought to be the last step's is the one's before it."""

    def change(c: np.ndarray, k: int) -> np.ndarray:
        if k < 3:
            return c
        shifted = np.append(c[1:-1], [0.0, c[-1]])
        shifted[0] += c[0]
        return shifted

    return _past(form.rows, form, change) if case.params["sampler"] in _MULTISTEP else None


def _forgotten(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """All weight on the present."""

    def change(c: np.ndarray, k: int) -> np.ndarray:
        return np.append(np.zeros(k - 1), c.sum())

    return _past(form.rows, form, change) if case.params["sampler"] in _MULTISTEP else None


def _log10(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """1 - e^-h with h a decimal logarithm: 1 - (sigma_next / sigma)^(1 / ln 10)."""
    if case.params["sampler"] not in _EXPONENTIAL:
        return None
    rows = form.rows.copy()
    for k in range(1, len(rows)):
        a = sigmas[k] / sigmas[k - 1]
        if a > 0:
            rows[k, form.calls : 2 * form.calls] *= (1 - a ** (1 / math.log(10))) / (1 - a)
    return rows


def _unfinished(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    rows = form.rows.copy()
    rows[-1] = 0
    rows[-1, form.calls - 1] = 1
    return rows


def _another_schedule(name: str) -> Bug:
    def sigmas(case: Case) -> np.ndarray | None:
        try:
            other = SCHEDULES[name](case.params["steps"], SD_LEVELS)
        except ValueError:
            return None
        return other if len(other) == case.params["steps"] + 1 else None

    return Bug(f"the schedule is {name}", sigmas=sigmas)


def _shifted(case: Case) -> np.ndarray | None:
    """One step more, and the first left out."""
    try:
        longer = SCHEDULES[case.params["schedule"]](case.params["steps"] + 1, SD_LEVELS)
    except (ValueError, BadInput):
        return None
    return longer[1:] if len(longer) == case.params["steps"] + 2 else None


BUGS: tuple[Bug, ...] = (
    Bug("each step goes to the sigma after the next", _next_but_one),
    Bug("eta is missing: no noise is added", _without_eta),
    Bug("noise is scaled by the next sigma, not by sigma_up", _noise_of_next),
    Bug("noise is the last draw's", _noise_late),
    Bug("history is one step too old", _one_too_old),
    Bug("history is forgotten", _forgotten),
    Bug("h is a decimal logarithm", _log10),
    Bug("the last step is left out", _unfinished),
    Bug("guidance has the wrong sign", answers=lambda x, s, n, g: analytic.denoised(x, s, -g)),
    Bug("cond and uncond are swapped", answers=lambda x, s, n, g: analytic.denoised(x, s, 1 - g)),
    Bug("guidance is added to cond", answers=lambda x, s, n, g: analytic.denoised(x, s, 1 + g)),
    Bug("there is no guidance", answers=lambda x, s, n, g: analytic.denoised(x, s, 1.0)),
    Bug("the model is told the next sigma", answers=lambda x, s, n, g: analytic.denoised(x, n or s, g)),
    Bug("the schedule's first sigma is left out", sigmas=_shifted),
    *(_another_schedule(name) for name in SCHEDULES),
)


def simulate(case: Case, noise: np.ndarray, sigmas: np.ndarray, bug: Bug | None = None) -> Dump | None:
    """A trajectory with a bug, by its rows, in the dtype of noise; None where the bug makes no difference.

    Where sigmas differ by less than a float32 engine's may, they make none.

    Without a bug: an honest engine that sums in another order than the sampler.
    """
    if bug is not None and bug.sigmas is not None:
        other = bug.sigmas(case)
        if other is None or np.allclose(other, sigmas, rtol=1e-3, atol=0):
            return None
        sigmas = other
    form = forms(method_of(case).run, sigmas)
    if form.draws >= len(noise):
        return None
    rows = form.rows
    if bug is not None and bug.rows is not None:
        wrong = bug.rows(case, form, sigmas)
        if wrong is None or np.array_equal(wrong, rows):
            return None
        rows = wrong
    terms = np.zeros((rows.shape[1], *noise.shape[1:]), noise.dtype)
    terms[2 * form.calls :] = noise[1 : 1 + form.draws]
    coefficients = rows.astype(noise.dtype)
    for k, sigma in enumerate(form.sigmas):
        x = noise[0] * noise.dtype.type(sigmas[0]) if k == 0 else np.tensordot(coefficients[k], terms, 1)
        terms[k], terms[form.calls + k] = x, answer(case, form, sigmas, k, x, sigma, bug)
    return Dump(
        sigmas, terms[: form.calls], terms[form.calls : 2 * form.calls], np.tensordot(coefficients[-1], terms, 1)
    )


def answer(case: Case, form: Forms, sigmas: np.ndarray, k: int, x: np.ndarray, sigma: float, bug: Bug | None):
    """What the model says at call k, with the bug if it is one of the model's."""
    guidance = float(case.params["guidance"])
    if bug is None or bug.answers is None:
        return analytic.denoised(x, float(sigma), guidance)
    return bug.answers(x, float(sigma), float(sigmas[form.steps[k] + 1]), guidance)
