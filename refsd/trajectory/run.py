"""Compute the reference's answer to a trajectory case, and define the outputs of such an answer."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS, UNI_PC_OPENING
from refsd.samplers.churn import Churn
from refsd.samplers.flow_time import OPENING
from refsd.samplers.levels import SD_LEVELS, FlowLevels, Levels
from refsd.samplers.schedules import SCHEDULES
from refsd.trajectory import model as analytic
from refsd.trajectory.forms import Forms, Solver

# End of the name of a sampler that churns, by the case's s_churn, s_tmin, s_tmax and s_noise.
_CHURN = "_churn"
# Prefix of a sampler's name if its model is a rectified flow, with sigma = t / 1000.
FLOW = "flow/"
FLOW_LEVELS = FlowLevels(shift=1.0)
# First sigma of the solvers that convert a flow to x = data + sigma noise. Source: samplers/flow_time.py.
_IN_FLOW_TIME = (
    *("dpm++sde", "dpm++2m_sde", "dpm++2m_sde_heun", "dpm++3m_sde", "er_sde", "seeds_2", "seeds_3"),
    *("exp_heun_2_x0", "exp_heun_2_x0_sde", "sa_solver", "sa_solver_pece"),
    *("dpm++2m_log_snr", "dpm++2s_log_snr", "dpm++3s_log_snr", "deis_log_snr"),
)
_OPENINGS = {
    **dict.fromkeys(_IN_FLOW_TIME, OPENING),
    **dict.fromkeys(("uni_pc_log_snr", "uni_pc_bh2_log_snr"), UNI_PC_OPENING),
}

_ROUNDING = 2.0**-22  # error of a float32 engine's sigma near 1
_AWAY = 1000.0  # greatest plausible ratio between an engine's sigma and the schedule's range

# (x, sigma) -> denoised; for CFG++ a tuple with denoised without the prompt
Model = Callable[[np.ndarray, float], np.ndarray | tuple[np.ndarray, ...]]


class Dump(NamedTuple):
    """The outputs of a trajectory case.

    sigmas:   [steps + 1], falling
    x:        [calls, N, C, H, W], the model's input at each call
    denoised: [calls, N, C, H, W], the model's output after guidance
    latent:   [N, C, H, W], the final latent
    uncond:   [calls, N, C, H, W], the model's output without the prompt; None unless the sampler is a CFG++ one
    """

    sigmas: np.ndarray
    x: np.ndarray
    denoised: np.ndarray
    latent: np.ndarray
    uncond: np.ndarray | None = None

    def outputs(self) -> dict[str, np.ndarray]:
        """Return name -> array of the outputs that are present."""
        return {name: y for name, y in self._asdict().items() if y is not None}

    def answers(self) -> np.ndarray:
        """Stack all denoised, then all denoised without the prompt. -> [answers * calls, N, C, H, W]"""
        return self.denoised if self.uncond is None else np.concatenate([self.denoised, self.uncond])


def output_names(case: Case) -> tuple[str, ...]:
    """Return the names of the outputs that an engine must give for this case."""
    names = Dump._fields
    return names if solver_of(case).answers > 1 else names[:-1]


def solver_of(case: Case) -> Solver:
    """Find the case's sampler. Raises BadInput if refsd lacks it, or if it does not accept the case's eta."""
    given, eta = case.params["sampler"], case.params.get("eta")
    if given.endswith(_CHURN):
        return churning(case, churn_of(case))
    name = given.removeprefix(FLOW)
    method = sampling.method(name, eta, flow=None if given != name else False)
    answers = 2 if method.cfg_pp else 1
    if given == name:
        return Solver(method.run, answers)
    table = {**SAMPLERS, **CFG_PP_SAMPLERS, **FLOW_SAMPLERS}
    if name not in table:
        raise BadInput(f"{case.name}: sampler {given!r}, expected one of {', '.join(table)}")
    run = table[name] if eta is None else partial(table[name], eta=eta)
    return Solver(run, answers, True, _OPENINGS.get(name))


def churn_of(case: Case) -> Churn | None:
    """Return how the case's sampler churns; None if it does not."""
    if not case.params["sampler"].endswith(_CHURN):
        return None
    missing = [name for name in ("s_churn", "s_tmin", "s_tmax", "s_noise") if name not in case.params]
    if missing:
        raise BadInput(f"{case.name}: missing params {', '.join(missing)}")
    return Churn(*(case.params[name] for name in ("s_churn", "s_tmin", "s_tmax", "s_noise")))


def churning(case: Case, churn: Churn | None) -> Solver:
    """Return the case's sampler with other churn. Raises BadInput if it has none."""
    name = case.params["sampler"].removesuffix(_CHURN)
    if churn is None or "churn" not in inspect.signature(SAMPLERS.get(name, len)).parameters:
        raise BadInput(f"{case.name}: {name} has no churn")
    return Solver(partial(SAMPLERS[name], churn=churn))


def levels_of(case: Case) -> Levels:
    return FLOW_LEVELS if case.params["sampler"].startswith(FLOW) else SD_LEVELS


def sigmas_of(case: Case) -> np.ndarray:
    """Compute the sigmas of the steps that the case makes.

    Raises BadInput if refsd lacks the schedule, or has none of this many steps.
    """
    return made(case, whole_sigmas(case))


def made(case: Case, sigmas: np.ndarray) -> np.ndarray:
    """Leave out the sigmas behind end_at_step, where what is left of the noise stays in the latent."""
    end = case.params.get("end_at_step")
    if end is not None and not 0 < end < len(sigmas):
        raise BadInput(f"{case.name}: end_at_step {end}, expected one of the {len(sigmas) - 1} steps")
    return sigmas if end is None else sigmas[: end + 1]


def whole_sigmas(case: Case) -> np.ndarray:
    name = case.params["schedule"]
    if name not in SCHEDULES:
        raise BadInput(f"{case.name}: schedule {name!r}, expected one of {', '.join(SCHEDULES)}")
    try:
        sigmas = SCHEDULES[name](case.params["steps"], levels_of(case))
    except ValueError as error:
        raise BadInput(f"{case.name}: {error}") from None
    if levels_of(case) is not FLOW_LEVELS:
        return sigmas
    if sigmas[0] > 1 + _ROUNDING:
        raise BadInput(f"{case.name}: schedule {name} begins at {sigmas[0]:g}, expected one of a flow, 1 at most")
    return from_one(sigmas)


def from_one(sigmas: np.ndarray) -> np.ndarray:
    """Set a flow's sigmas to 1 where they differ from 1 only by float32 rounding."""
    return np.where(np.abs(sigmas - 1) < _ROUNDING, 1.0, sigmas)


def can_be_stepped(case: Case, sigmas: np.ndarray) -> bool:
    """True if a solver can run on an engine's sigmas: they fall, are not negative, and have a plausible size.

    Solvers compute logarithms and powers of them. Sigmas that fail this test also exceed their own error limits.
    """
    right, solver = sigmas_of(case), solver_of(case)
    most = 1.0 if solver.flow else _AWAY * right[0]
    least = right[right > 0].min() / _AWAY
    fall = bool((np.diff(sigmas) < 0).all())
    first = from_one(sigmas)[0] if solver.flow else sigmas[0]
    return fall and first <= most and bool(((sigmas >= least) | (sigmas == 0)).all())


def signal_of(solver: Solver, sigma: float) -> float:
    """Return the weight of the data in x."""
    return 1 - sigma if solver.flow else 1.0


def model_of(case: Case) -> Model:
    guidance, solver = float(case.params["guidance"]), solver_of(case)

    def model(x: np.ndarray, sigma: float):
        signal = signal_of(solver, sigma)
        y = analytic.denoised(x, sigma, guidance, signal)
        return (y, analytic.uncond(x, sigma, signal)) if solver.answers > 1 else y

    return model


def trajectory(solver: Solver, sigmas: np.ndarray, model: Model, noise: np.ndarray) -> Dump:
    """Sample from noise[0] * sigmas[0], in the dtype of noise; the steps draw noise[1], noise[2], ..."""
    shown, answers, drawn = [], [], iter(noise[1:])

    def listening(x: np.ndarray, sigma: float):
        shown.append(x.copy())
        y = model(x, sigma)
        answers.append(y if isinstance(y, tuple) else (y,))
        copies = tuple(one.copy() for one in answers[-1])
        return copies if isinstance(y, tuple) else copies[0]

    latent = solver.run(listening, noise[0] * float(sigmas[0]), sigmas, lambda sigma, sigma_next: next(drawn), None)
    denoised, *uncond = (np.stack(column) for column in zip(*answers, strict=True))
    return Dump(np.array(sigmas), np.stack(shown), denoised, latent, *uncond)


def first_shown(form: Forms, noise: np.ndarray, sigma) -> np.ndarray:
    """Return the latent of the first call: the first noise times the first sigma, and what churn adds."""
    x, added = noise[0] * sigma, form.rows[0, form.known :]
    return x + np.tensordot(added.astype(noise.dtype), noise[1 : 1 + form.draws], 1) if added.any() else x


def by_forms(form: Forms, sigmas: np.ndarray, model: Model, noise: np.ndarray) -> Dump:
    """Sample as `trajectory` does, but with a sampler's linear forms, which add in another order.

    If the model modifies its x in place, later latents are computed from the modified x.
    """
    terms = np.zeros((form.rows.shape[1], *noise.shape[1:]), noise.dtype)
    terms[form.known :] = noise[1 : 1 + form.draws]
    rows = form.rows.astype(noise.dtype)
    for k, sigma in enumerate(form.sigmas):
        x = np.tensordot(rows[k], terms, 1) if k else first_shown(form, noise, noise.dtype.type(sigmas[0]))
        answers = model(x, float(sigma))
        terms[k] = x
        for block, y in enumerate(answers if isinstance(answers, tuple) else (answers,), 1):
            terms[block * form.calls + k] = y
    x, denoised, *uncond = np.split(terms[: form.known], 1 + form.answers)
    return Dump(sigmas, x, denoised, np.tensordot(rows[-1], terms, 1), *uncond)


def answer(case: Case, inputs: Mapping[str, Any], dtype: np.dtype) -> dict[str, np.ndarray]:
    """Compute the outputs of a trajectory case. Raises BadInput if its parameters or inputs are invalid."""
    missing = {"sampler", "schedule", "steps", "guidance"} - case.params.keys()
    if missing or inputs.keys() != {"noise"}:
        raise BadInput(
            f"{case.name}: expected the input noise, and params {', '.join(sorted(missing)) or 'as they are'}"
        )
    noise = inputs["noise"].values().astype(dtype)
    try:
        found = trajectory(solver_of(case), sigmas_of(case), model_of(case), noise)
    except StopIteration:
        raise BadInput(f"{case.name}: {len(noise)} noises are too few for this sampler") from None
    return found.outputs()
