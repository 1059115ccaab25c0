"""The noise that a stochastic step adds: churn before it, or ancestral noise after it, and its deviation."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.churn import Churn, churned
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES
from refsd.stages.stage import REQUIRED, Output, Params, Stage, StageInputs, case, magnitude, param, part

_KINDS = "churn", "ancestral"


def _churn(p: Params) -> Churn:
    return Churn(p["s_churn"], p["s_tmin"], p["s_tmax"] or math.inf, p["s_noise"])


def _split(sigma: float, sigma_next: float, eta: float) -> tuple[float, float]:
    return ancestral_step(sigma, sigma_next, eta)[:2]


class StepNoiseRule(NamedTuple):
    """The parts of the rule.

    churn:  case's parameters -> parameters of churn
    steps:  steps of the trajectory -> steps among which churn is divided
    split:  sigma, sigma_next, eta -> sigma_down, sigma_up
    share:  s_noise -> factor of the added noise
    """

    churn: Callable[[Params], Churn] = _churn
    steps: Callable[[int], int] = lambda steps: steps
    split: Callable[[float, float, float], tuple[float, float]] = _split
    share: Callable[[float], float] = lambda s_noise: s_noise


RULE = StepNoiseRule()


def _run(rule: StepNoiseRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    sigmas = SCHEDULES["karras"](p["steps"], SD_LEVELS)
    starts, deviations, ends = [], [], []
    for sigma, sigma_next in zip(sigmas[:-1].tolist(), sigmas[1:].tolist(), strict=True):
        if p["kind"] == "churn":
            churn = rule.churn(p)._replace(s_noise=rule.share(p["s_noise"]))
            # x = 0 and noise = 1 give the factor of the noise.
            noised, start = churned(np.zeros(1), sigma, rule.steps(p["steps"]), lambda a, b: np.ones(1), churn)
            starts.append(start)
            deviations.append(float(noised[0]))
            ends.append(sigma_next)
        else:
            down, up = rule.split(sigma, sigma_next, p["eta"])
            starts.append(sigma)
            deviations.append(up * rule.share(p["s_noise"]))
            ends.append(down)
    return {"start": np.array(starts), "deviation": np.array(deviations), "end": np.array(ends)}


def _differences(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """Roots of differences of squares: near levels cancel, so the size is that of the highest level."""
    return np.full(truth.shape, 4 * (1 + inputs.params["s_noise"]) * SD_LEVELS.sigmas[-1])


# --- what engines got wrong --------------------------------------------------------------------------------------


def _field(**values) -> Callable[[Params], Churn]:
    return lambda p: _churn({**p, **values})


def _eta_behind(sigma: float, sigma_next: float, eta: float) -> tuple[float, float]:
    """Apply eta to sigma_up only, not to sigma_down."""
    down, up = _split(sigma, sigma_next, 1.0)
    return down, eta * up


def _eta_before(sigma: float, sigma_next: float, eta: float) -> tuple[float, float]:
    return _split(sigma, sigma_next, eta)[0], _split(sigma, sigma_next, 1.0)[1]


def _unlimited(sigma: float, sigma_next: float, eta: float) -> tuple[float, float]:
    up = eta * sigma_next * math.sqrt(max(sigma**2 - sigma_next**2, 0.0)) / sigma
    return math.sqrt(abs(sigma_next**2 - up**2)), up


def _not_less(sigma: float, sigma_next: float, eta: float) -> tuple[float, float]:
    return sigma_next, _split(sigma, sigma_next, eta)[1]


def _swapped(sigma: float, sigma_next: float, eta: float) -> tuple[float, float]:
    down, up = _split(sigma, sigma_next, eta)
    return up, down


def _case(label: str, kind: str, steps: int, **params):
    return case("step_noise", label, kind=kind, steps=steps, **params)


STAGES = (
    Stage(
        "step_noise",
        "For each step: where it starts after churn, the deviation of the noise that it adds, and "
        "the level to which the solver goes; karras' levels of Stable Diffusion.",
        inputs={},
        params={
            "kind": REQUIRED,
            "steps": REQUIRED,
            "eta": 1.0,
            "s_noise": 1.0,
            "s_churn": 0.0,
            "s_tmin": 0.0,
            "s_tmax": 0.0,  # 0: without limit
        },
        outputs={
            "start": Output(("step",), magnitude, 1200),
            "deviation": Output(("step",), _differences, 1200),
            "end": Output(("step",), _differences, 1200),
        },
        rule=RULE,
        choices={"kind": _KINDS},
        run=_run,
        known=(
            part("s_noise left out", share=lambda s_noise: 1.0),
            part("s_noise squared", share=lambda s_noise: s_noise**2),
            part("no noise is added", share=lambda s_noise: 0.0),
            part("churn left out", churn=_field(s_churn=0.0)),
            part("churn's lower limit left out", churn=_field(s_tmin=0.0)),
            part("churn's upper limit left out", churn=_field(s_tmax=0.0)),
            part("churn's whole amount in every step", steps=lambda steps: 1),
            part("churn divided among one step more", steps=lambda steps: steps + 1),
            part("eta on the noise alone", split=_eta_behind),
            part("eta on the level alone", split=_eta_before),
            part("eta left out", split=lambda a, b, eta: _split(a, b, 1.0)),
            part("eta 0 taken for none given", split=lambda a, b, eta: _split(a, b, eta or 1.0)),
            part("eta squared", split=lambda a, b, eta: _split(a, b, eta**2)),
            part("noise beyond the level's own", split=_unlimited),
            part("noise added to a whole step", split=_not_less),
            part("down and up swapped", split=_swapped),
            param("one step less", steps=lambda steps: steps - 1),
        ),
        cases=(
            _case("ancestral", "ancestral", 6, eta=0.7, s_noise=1.05),
            _case("ancestral-eta-2", "ancestral", 5, eta=2.0, s_noise=0.9),
            _case("ancestral-eta-0", "ancestral", 4, eta=0.0, s_noise=0.95),
            _case("churn", "churn", 9, s_churn=2.5, s_noise=1.007, s_tmin=0.3, s_tmax=8.0),
            _case("churn-limited", "churn", 4, s_churn=3.0, s_noise=0.97),
        ),
    ),
)
