"""The reference's answer to a trajectory case, and what any engine's answer consists of."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS, UNI_PC_OPENING
from refsd.samplers.flow_time import OPENING
from refsd.samplers.levels import SD_LEVELS, FlowLevels, Levels
from refsd.samplers.schedules import SCHEDULES
from refsd.trajectory import model as analytic
from refsd.trajectory.forms import Forms, Solver

# A sampler's name where its model is a rectified flow, of levels t / 1000.
FLOW = "flow/"
FLOW_LEVELS = FlowLevels(shift=1.0)
# Solvers that see a flow as data + sigma noise begin at this share of noise. Source: samplers/flow_time.py.
_IN_FLOW_TIME = (
    *("dpm++sde", "dpm++2m_sde", "dpm++2m_sde_heun", "dpm++3m_sde", "er_sde", "seeds_2", "seeds_3"),
    *("exp_heun_2_x0", "exp_heun_2_x0_sde", "sa_solver", "sa_solver_pece"),
    *("dpm++2m_log_snr", "dpm++2s_log_snr", "dpm++3s_log_snr", "deis_log_snr"),
)
_OPENINGS = {
    **dict.fromkeys(_IN_FLOW_TIME, OPENING),
    **dict.fromkeys(("uni_pc_log_snr", "uni_pc_bh2_log_snr"), UNI_PC_OPENING),
}

_ROUNDING = 2.0**-22  # about 1, of a float32 engine
_AWAY = 1000.0  # a sigma of any schedule is within this factor of another schedule's

# x, sigma -> denoised; for CFG++ also what it is without the prompt
Model = Callable[[np.ndarray, float], np.ndarray | tuple[np.ndarray, ...]]


class Dump(NamedTuple):
    """
    sigmas:   [steps + 1], falling
    x:        [calls, N, C, H, W], what the model was shown
    denoised: [calls, N, C, H, W], what it answered, after guidance
    latent:   [N, C, H, W], the end
    uncond:   [calls, N, C, H, W], what it answered without the prompt; None where the sampler does not ask
    """

    sigmas: np.ndarray
    x: np.ndarray
    denoised: np.ndarray
    latent: np.ndarray
    uncond: np.ndarray | None = None

    def outputs(self) -> dict[str, np.ndarray]:
        """By name, those that there are."""
        return {name: y for name, y in self._asdict().items() if y is not None}

    def answers(self) -> np.ndarray:
        """All denoised, then all without the prompt. -> [answers * calls, N, C, H, W]"""
        return self.denoised if self.uncond is None else np.concatenate([self.denoised, self.uncond])


def output_names(case: Case) -> tuple[str, ...]:
    """Of an engine's answer to this case."""
    names = Dump._fields
    return names if solver_of(case).answers > 1 else names[:-1]


def solver_of(case: Case) -> Solver:
    """Raises BadInput for a sampler that refsd does not have, or an eta that it does not take."""
    told, eta = case.params["sampler"], case.params.get("eta")
    name = told.removeprefix(FLOW)
    method = sampling.method(name, eta, flow=None if told != name else False)
    answers = 2 if method.cfg_pp else 1
    if told == name:
        return Solver(method.run, answers)
    table = {**SAMPLERS, **CFG_PP_SAMPLERS, **FLOW_SAMPLERS}
    if name not in table:
        raise BadInput(f"{case.name}: sampler {told!r}, expected one of {', '.join(table)}")
    run = table[name] if eta is None else partial(table[name], eta=eta)
    return Solver(run, answers, True, _OPENINGS.get(name))


def levels_of(case: Case) -> Levels:
    return FLOW_LEVELS if case.params["sampler"].startswith(FLOW) else SD_LEVELS


def sigmas_of(case: Case) -> np.ndarray:
    """Raises BadInput for a schedule that refsd does not have, or not with these steps."""
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
    """A flow's sigmas, whose first, rounded to the side of 1, is 1."""
    return np.where(np.abs(sigmas - 1) < _ROUNDING, 1.0, sigmas)


def can_be_stepped(case: Case, sigmas: np.ndarray) -> bool:
    """Whether a solver can run on an engine's sigmas: they fall to 0 or above, and are about as large as any.

    Solvers take logarithms and powers of them. Sigmas that fail this have failed their own limits by far.
    """
    right, solver = sigmas_of(case), solver_of(case)
    most = 1.0 if solver.flow else _AWAY * right[0]
    least = right[right > 0].min() / _AWAY
    fall = bool((np.diff(sigmas) < 0).all())
    first = from_one(sigmas)[0] if solver.flow else sigmas[0]
    return fall and first <= most and bool(((sigmas >= least) | (sigmas == 0)).all())


def signal_of(solver: Solver, sigma: float) -> float:
    """The weight of the data in x."""
    return 1 - sigma if solver.flow else 1.0


def model_of(case: Case) -> Model:
    guidance, solver = float(case.params["guidance"]), solver_of(case)

    def model(x: np.ndarray, sigma: float):
        signal = signal_of(solver, sigma)
        y = analytic.denoised(x, sigma, guidance, signal)
        return (y, analytic.uncond(x, sigma, signal)) if solver.answers > 1 else y

    return model


def trajectory(solver: Solver, sigmas: np.ndarray, model: Model, noise: np.ndarray) -> Dump:
    """Sample from noise[0] * sigmas[0]; the steps draw noise[1], noise[2], ... In the dtype of noise."""
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


def by_forms(form: Forms, sigmas: np.ndarray, model: Model, noise: np.ndarray) -> Dump:
    """The same by a sampler's linear forms: its sums in another order, and nothing remembered but what was shown.

    A model that changes its x changes what the sampler goes on from.
    """
    terms = np.zeros((form.rows.shape[1], *noise.shape[1:]), noise.dtype)
    terms[form.known :] = noise[1 : 1 + form.draws]
    rows = form.rows.astype(noise.dtype)
    for k, sigma in enumerate(form.sigmas):
        x = noise[0] * noise.dtype.type(sigmas[0]) if k == 0 else np.tensordot(rows[k], terms, 1)
        answers = model(x, float(sigma))
        terms[k] = x
        for block, y in enumerate(answers if isinstance(answers, tuple) else (answers,), 1):
            terms[block * form.calls + k] = y
    x, denoised, *uncond = np.split(terms[: form.known], 1 + form.answers)
    return Dump(sigmas, x, denoised, np.tensordot(rows[-1], terms, 1), *uncond)


def answer(case: Case, inputs: Mapping[str, Any], dtype: np.dtype) -> dict[str, np.ndarray]:
    """The outputs of a trajectory case. Raises BadInput for one that cannot be."""
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
