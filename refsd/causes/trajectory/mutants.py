"""Known bugs of samplers. A bug explains a wrong trajectory that agrees with the reference once it has the bug.

A bug changes the sampler's coefficients (rows), the model's outputs, or the sigmas. It is tested on the engine's
own latents.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from refsd.golden.case import Case
from refsd.golden.judge import Mutant
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.samplers.churn import Churn
from refsd.samplers.flow_time import OPENING
from refsd.samplers.levels import FlowLevels
from refsd.samplers.schedules import SCHEDULES
from refsd.trajectory import model as analytic
from refsd.trajectory.forms import Forms, Solver, forms
from refsd.trajectory.run import (
    FLOW,
    FLOW_LEVELS,
    churn_of,
    churning,
    from_one,
    levels_of,
    made,
    sigmas_of,
    solver_of,
    whole_sigmas,
)

# Samplers that use the outputs of earlier steps, with one model call a step.
_MULTISTEP = (
    *("lms", "dpm++2m", "dpm++2mv2", "dpm++2m_sde", "dpm++3m_sde", "ipndm", "ipndm_v", "deis"),
    *("res_multistep", "euler_ge", "res_multistep_a", "euler_ge_a", "dpm++2m_sde_heun", "dpm++2m_sde_bt"),
    *("deis_tab", "ipndm_v_published", "er_sde", "dpm++2m_cfg_pp", "res_multistep_cfg_pp"),
    *("res_multistep_a_cfg_pp", "euler_ge_cfg_pp", "dpm++2m_log_snr"),
)


class ModelCall(NamedTuple):
    """A model call. sigma_next: sigma at the step's end; signal: the weight of the data in x; number: from 0"""

    x: np.ndarray
    sigma: float
    sigma_next: float
    guidance: float
    signal: float
    number: int


Rows = Callable[[Case, Forms, np.ndarray], np.ndarray | Forms | None]
# (model call) -> denoised, denoised without the prompt
Answers = Callable[[ModelCall], tuple[np.ndarray, np.ndarray]]


class Change(NamedTuple):
    """What a bug changes.

    rows:     (case, right forms, sigmas) -> wrong rows, or wrong forms where the calls have other sigmas, too; None
              if the bug makes no difference
    answers:  (model call) -> wrong outputs
    sigmas:   case -> wrong sigmas
    of:       solver -> True if the bug is possible in it
    steps_on: sigmas that the sampler uses although it reports others
    """

    rows: Rows | None = None
    answers: Answers | None = None
    sigmas: Callable[[Case], np.ndarray | None] | None = None
    of: Callable[[Solver], bool] = lambda solver: True
    steps_on: np.ndarray | None = None


def wrong_forms(change: Change, case: Case, form: Forms, sigmas: np.ndarray) -> Forms | None:
    """Return the forms with a bug in them; None if it makes no difference."""
    if change.rows is None:
        return form
    wrong = change.rows(case, form, sigmas)
    if isinstance(wrong, np.ndarray):
        wrong = form._replace(rows=wrong)
    if wrong is None or (np.array_equal(wrong.rows, form.rows) and np.array_equal(wrong.sigmas, form.sigmas)):
        return None
    return wrong


def _next_but_one(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """Make each step end at sigma_{i+2}, as if its index were one too high."""
    rows = form.rows.copy()
    for i in range(len(sigmas) - 3):
        other = sigmas.copy()
        other[i + 1] = sigmas[i + 2]
        # Keep the two sigmas different, so that no step has length 0.
        other[i + 2] = (sigmas[i + 2] + sigmas[i + 3]) / 2
        wrong = forms(solver_of(case), other)
        if wrong.rows.shape != rows.shape:  # the sampler's draws depend on sigma
            return None
        for k in range(1, len(rows)):
            if form.steps[k - 1] == i:
                rows[k] = wrong.rows[k]
    return rows


def _with_eta(of: Callable[[float], float], direction: bool = True, noise: bool = True) -> Change:
    """of: eta -> another. direction, noise: whether it stands in what leads down, and in what scales the noise"""

    def wrong(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
        eta = case.params.get("eta")
        if not eta:
            return None
        other = forms(solver_of(Case(case.name, case.op, case.inputs, {**case.params, "eta": of(eta)})), sigmas)
        if other.calls != form.calls:
            return None
        rows = np.zeros_like(form.rows)
        width = min(other.rows.shape[1], rows.shape[1])
        rows[:, :width] = other.rows[:, :width]
        changed = np.where(np.arange(rows.shape[1]) < form.known, direction, noise)
        return np.where(changed, rows, form.rows)

    return Change(wrong)


def _drawing(read: Callable[[int], int]) -> Change:
    """read: number of a draw, from 1 on -> the one that stands in its place; 0: the noise that x began with"""

    def wrong(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
        rows, noise = form.rows.copy(), form.rows[:, form.known :]
        if form.draws < 2 or not noise.any(axis=0).all():
            return None
        rows[:, form.known :] = 0
        for i, own in enumerate(noise.T, 1):
            rows[:, form.known + read(i) - 1 if read(i) else 0] += own if read(i) else own / sigmas[0]
        return rows

    return Change(wrong)


def _noise_of_next(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """Scale the noise by sigma_next instead of sigma_up."""
    rows = form.rows.copy()
    for k in range(1, len(rows)):
        noise = rows[k, form.known :]
        noise[noise != 0] = sigmas[form.steps[k - 1] + 1]
    return rows if form.draws else None


def _bare(case: Case) -> str:
    return case.params["sampler"].removeprefix(FLOW)


def _history_of_noise(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """Extrapolate eps = (x - denoised) / sigma where denoised is extrapolated: DPM-Solver for DPM-Solver++.

    With the same share c of an earlier output: x - (sigma - sigma_next) ((1 + c) eps - c eps_before).
    """
    if _bare(case) not in _MULTISTEP or form.draws or form.calls != len(sigmas) - 1:
        return None
    rows, n = form.rows.copy(), form.calls
    for k in range(2, len(rows)):
        weights, sigma, to = form.rows[k, n : n + k], sigmas[k - 1], sigmas[k]
        if to == 0 or not weights.sum():
            continue
        share = -weights[: k - 1] / weights.sum()
        rows[k, : n + k] = 0
        rows[k, n + k - 1] = (sigma - to) * (1 + share.sum()) / sigma
        rows[k, k - 1] = 1 - rows[k, n + k - 1]
        rows[k, n : n + k - 1] = -(sigma - to) * share / sigmas[: k - 1]
        rows[k, : k - 1] = -rows[k, n : n + k - 1]
    return rows


def scheduled(name: str, case: Case) -> np.ndarray | None:
    """Return another schedule's sigmas; None if it has not as many, or they do not fall."""
    try:
        sigmas = SCHEDULES[name](case.params["steps"], levels_of(case))
    except ValueError:
        return None
    falling = len(sigmas) == case.params["steps"] + 1 and (np.diff(sigmas) < 0).all()
    return made(case, sigmas) if falling else None


def _to_zero(case: Case) -> np.ndarray | None:
    """Remove all that is left of the noise in the last step."""
    return np.append(sigmas_of(case)[:-1], 0.0) if "end_at_step" in case.params else None


def _as_many_as_are_made(case: Case) -> np.ndarray | None:
    """Divide the whole schedule among the steps that are made."""
    steps = case.params.get("end_at_step")
    return steps and whole_sigmas(replace(case, params={**case.params, "steps": steps}))


def stepping_on(sigmas: np.ndarray) -> Change:
    """Ignore the given sigmas and use these."""

    def rows(case: Case, form: Forms, told: np.ndarray) -> np.ndarray | None:
        wrong = forms(solver_of(case), sigmas).rows
        return wrong if wrong.shape == form.rows.shape else None

    return Change(rows, steps_on=sigmas)


def _forgotten(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """Move the weight of earlier latents and outputs to the current one."""
    if _bare(case) not in _MULTISTEP:
        return None
    rows = form.rows.copy()
    for k in range(2, len(rows)):
        for start in range(0, form.known, form.calls):
            rows[k, start : start + k] = np.append(np.zeros(k - 1), rows[k, start : start + k].sum())
    return rows


def _unfinished(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    rows = form.rows.copy()
    rows[-1] = 0
    rows[-1, form.calls - 1] = 1
    return rows


def _towards_denoised(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """Go from the picture to where DDIM has it plus the noise, but by what the network predicts: the picture."""
    rows = np.where(np.arange(len(form.rows))[:, None] == 0, form.rows, 0.0)
    rows[np.arange(1, len(rows)), form.calls + np.arange(form.calls)] = 1 + sigmas[form.steps + 1]
    return rows


def _of_exploding(case: Case, form: Forms, sigmas: np.ndarray, from_1: bool = False) -> np.ndarray | Forms | None:
    """Use the solver for x = data + sigma noise on a flow's x and sigmas, from_1: on a first sigma of 1, too."""
    name = _bare(case).removesuffix("_log_snr").removesuffix("_below_one")
    wrong = forms(Solver(sampling.method(name, case.params.get("eta")).run, form.answers), sigmas)
    alike = wrong.rows.shape == form.rows.shape and (wrong.steps == form.steps).all()
    return (wrong if from_1 else wrong.rows) if alike else None


def _churned(change: Callable[[Churn, int], Churn]) -> Change:
    """change: churn, steps -> other churn"""

    def wrong(case: Case, form: Forms, sigmas: np.ndarray) -> Forms | None:
        right = churn_of(case)
        if right is None:
            return None
        other = forms(churning(case, change(right, len(sigmas) - 1)), sigmas)
        rows = np.zeros_like(form.rows)
        rows[:, : other.rows.shape[1]] = other.rows
        return other._replace(rows=rows)

    return Change(wrong)


def _told_before_churn(case: Case, form: Forms, sigmas: np.ndarray) -> Forms | None:
    """Tell the model each step's level, not the one that churn raised it to."""
    if churn_of(case) is None:
        return None
    raised = form.sigmas > sigmas[form.steps]
    return form._replace(sigmas=np.where(raised, sigmas[form.steps], form.sigmas))


def _guided_throughout(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray:
    """Use denoised where CFG++ uses denoised without the prompt, as in the solver without ++."""
    rows, calls = form.rows.copy(), form.calls
    rows[:, calls : 2 * calls] += rows[:, 2 * calls : 3 * calls]
    rows[:, 2 * calls : 3 * calls] = 0
    return rows


def _unguided_noise_scaled(case: Case, form: Forms, sigmas: np.ndarray) -> np.ndarray | None:
    """In a flow's CFG++ use the slope (x - uncond) / sigma, as if the data in x had weight 1."""
    if _bare(case) not in ("euler_cfg_pp", "euler_a_cfg_pp"):
        return None
    rows, calls = form.rows.copy(), form.calls
    for k in range(1, len(rows)):
        if rows[k, 2 * calls + k - 1] != 0:
            rows[k, 2 * calls + k - 1] = -rows[k, k - 1]
    return rows


def _shifted_twice(case: Case) -> np.ndarray | None:
    if levels_of(case) is not FLOW_LEVELS:
        return None
    return made(case, SCHEDULES[case.params["schedule"]](case.params["steps"], FlowLevels(shift=3.0)))


def _another_schedule(name: str) -> Mutant[Change]:
    def sigmas(case: Case) -> np.ndarray | None:
        other = scheduled(name, case)
        if other is None or levels_of(case) is not FLOW_LEVELS:
            return other
        return from_one(other) if from_one(other)[0] <= 1 else None

    return Mutant(f"the schedule is {name}", Change(sigmas=sigmas))


def _shifted(case: Case) -> np.ndarray | None:
    """Make the schedule one step longer and leave out its first sigma."""
    try:
        longer = SCHEDULES[case.params["schedule"]](case.params["steps"] + 1, levels_of(case))
    except (ValueError, BadInput):
        return None
    return made(case, longer[1:]) if len(longer) == case.params["steps"] + 2 else None


def guided_by(change: Callable[[float], float], without: Callable = analytic.uncond) -> Answers:
    """Return the analytic model's outputs under a changed guidance scale. without: what stands for uncond"""

    def answers(call: ModelCall) -> tuple[np.ndarray, np.ndarray]:
        x, sigma, _, guidance, signal, _ = call
        return analytic.denoised(x, sigma, change(guidance), signal), without(x, sigma, signal)

    return answers


def _unguided(numbers: Callable[[int], bool]) -> Answers:
    """Leave guidance out of some calls, which answer with the prompt alone."""
    return lambda call: guided_by(lambda guidance: 1.0 if numbers(call.number) else guidance)(call)


_with_prompt = guided_by(lambda guidance: guidance, analytic.cond)


def _told_next(call: ModelCall) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate the model at the next sigma, and a flow's model with that sigma's signal."""
    sigma = call.sigma_next or call.sigma
    signal = 1.0 if call.signal == 1.0 and call.sigma != 0 else 1 - sigma
    return guided_by(lambda guidance: guidance)(call._replace(sigma=sigma, signal=signal))


def _velocity(weight: Callable[[float], float]) -> Answers:
    """Make a bug that computes x - weight v instead of x - sigma v, with v = (x - denoised) / sigma."""

    def answers(call: ModelCall) -> tuple[np.ndarray, np.ndarray]:
        ratio = call.x.dtype.type(weight(call.sigma) / call.sigma)
        right = guided_by(lambda guidance: guidance)(call)
        first, second = (call.x - ratio * (call.x - y) for y in right)
        return first, second

    return answers


def _flow(solver: Solver) -> bool:
    return solver.flow


def _asks_twice(solver: Solver) -> bool:
    """True for CFG++, which calls its model with and without the prompt."""
    return solver.answers > 1


MUTANTS: tuple[Mutant[Change], ...] = (
    Mutant("each step goes to the sigma after the next", Change(_next_but_one)),
    Mutant("eta is missing: no noise is added", _with_eta(lambda eta: 0.0)),
    *(
        Mutant(f"{words} stands for eta{at}", _with_eta(of, *parts))
        for words, of in (("1", lambda eta: 1.0), ("eta's root", np.sqrt), ("eta squared", np.square))
        for at, *parts in (("", True, True), (" in what leads down", True, False), (" in the noise", False, True))
    ),
    Mutant("each step's noise is the start's again", _drawing(lambda i: 0)),
    Mutant("the first step's noise is the start's again", _drawing(lambda i: i if i > 1 else 0)),
    Mutant("each step's noise is that of the step before, the first's the start's", _drawing(lambda i: i - 1)),
    Mutant("each step's noise is the first step's", _drawing(lambda i: 1)),
    Mutant("noise is scaled by the next sigma, not by sigma_up", Change(_noise_of_next)),
    Mutant("churn is left out", _churned(lambda churn, n: churn._replace(s_churn=0.0))),
    Mutant("churn's s_noise is left out", _churned(lambda churn, n: churn._replace(s_noise=1.0))),
    Mutant("churn's lower limit is left out", _churned(lambda churn, n: churn._replace(s_tmin=0.0))),
    Mutant("churn's upper limit is left out", _churned(lambda churn, n: churn._replace(s_tmax=np.inf))),
    Mutant(
        "churn is not divided among the steps", _churned(lambda churn, n: churn._replace(s_churn=n * churn.s_churn))
    ),
    Mutant("churn draws only where it adds noise", _churned(lambda churn, n: churn._replace(every_step=False))),
    Mutant("the model is told the level before churn", Change(_told_before_churn)),
    Mutant("history is forgotten", Change(_forgotten)),
    Mutant("history is of the noise, not of denoised (DPM-Solver, not ++)", Change(_history_of_noise)),
    Mutant("the last step is left out", Change(_unfinished)),
    Mutant("DDIM's direction is denoised, not the noise", Change(_towards_denoised)),
    Mutant("the solver is that of data + sigma noise, not the flow's", Change(_of_exploding, of=_flow)),
    Mutant(
        "the solver is that of data + sigma noise, not the flow's, from a sigma of 1 on",
        Change(partial(_of_exploding, from_1=True), of=lambda solver: solver.opening == OPENING),
    ),
    Mutant("the prompt's denoised stands where CFG++ has it without", Change(_guided_throughout, of=_asks_twice)),
    Mutant(
        "uncond is not scaled by 1 - sigma",
        Change(_unguided_noise_scaled, of=lambda solver: _flow(solver) and _asks_twice(solver)),
    ),
    Mutant("guidance has the wrong sign", Change(answers=guided_by(lambda g: -g))),
    Mutant("cond and uncond are swapped", Change(answers=guided_by(lambda g: 1 - g, analytic.cond))),
    Mutant("guidance is added to cond", Change(answers=guided_by(lambda g: 1 + g))),
    Mutant("there is no guidance", Change(answers=guided_by(lambda g: 1.0))),
    Mutant("there is no guidance in the first call", Change(answers=_unguided(lambda number: number == 0))),
    Mutant("there is guidance in the first call alone", Change(answers=_unguided(lambda number: number > 0))),
    Mutant("the model is told the next sigma", Change(answers=_told_next)),
    Mutant("uncond is what the prompt gives", Change(answers=_with_prompt, of=_asks_twice)),
    Mutant("the velocity has the wrong sign", Change(answers=_velocity(lambda s: -s), of=_flow)),
    Mutant("the velocity is not multiplied by sigma", Change(answers=_velocity(lambda s: 1.0), of=_flow)),
    Mutant("the schedule's first sigma is left out", Change(sigmas=_shifted)),
    Mutant("the last step goes to 0, not to the level of end_at_step", Change(sigmas=_to_zero)),
    Mutant("the schedule is that of as many steps as are made", Change(sigmas=_as_many_as_are_made)),
    Mutant("a flow's levels are shifted by 3", Change(sigmas=_shifted_twice, of=_flow)),
    *(_another_schedule(name) for name in SCHEDULES),
)
