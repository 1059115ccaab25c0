"""Each option of each of diffusers' schedulers: refsd's equivalent ends where it ends, or the page tells why not.

The equivalents are diffusers_equivalents.py's. Of the product of the options below a part is run: each value with
the first values of the others, and combinations that are drawn with a fixed seed.
"""

import itertools
import random
import re
from pathlib import Path

import diffusers
import numpy as np
import pytest
from diffusers import (
    CogVideoXDDIMScheduler,
    DDIMParallelScheduler,
    DDIMScheduler,
    DDPMParallelScheduler,
    DDPMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
    HeunDiscreteScheduler,
    KDPM2AncestralDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LCMScheduler,
    LMSDiscreteScheduler,
    LTXEulerAncestralRFScheduler,
    PNDMScheduler,
    SASolverScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from diffusers.pipelines.ltx.pipeline_ltx_condition import linear_quadratic_schedule
from diffusers_equivalents import SOLVERS as EQUIVALENTS
from diffusers_equivalents import NotOfferedError, run
from diffusers_steps import SD, set_to, sigmas_of, step

from refsd.conventions import CARDS
from refsd.samplers.levels import SD_LEVELS, FlowLevels
from refsd.samplers.schedules import SCHEDULES, flow

pytestmark = [
    pytest.mark.peer,
    # diffusers' own
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Tensor with requires_grad"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # logarithms of 0, in schedulers that end at 0
    pytest.mark.filterwarnings("ignore:.*algorithm_type:FutureWarning"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "samplers.md").read_text()
STEPS = (1, 2, 3, 7, 20)
EITHER = (True, False)
PREDICTED = {"prediction_type": ("epsilon", "v_prediction", "sample")}
SPACED = {"timestep_spacing": ("linspace", "leading", "trailing"), "steps_offset": (0, 1)}
OF_SIGMAS = {"use": (None, "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")}
ENDING = {"final_sigmas_type": ("zero", "sigma_min")}
ORDERED = {"solver_order": (2, 1, 3), "lower_order_final": EITHER}
DPM = {
    **ORDERED,
    **ENDING,
    "algorithm_type": ("dpmsolver++", "sde-dpmsolver++"),
    "solver_type": ("midpoint", "heun"),
}
FLOWING = {"use_flow_sigmas": (True,), "flow_shift": (1.0, 3.0), "prediction_type": ("flow_prediction", "epsilon")}
UNI_PC = {**ORDERED, **ENDING, "solver_type": ("bh2", "bh1")}
SA = {"predictor_order": (2, 1, 3), "corrector_order": (2, 1, 3, 4), "lower_order_final": EITHER}
# Name -> scheduler, the values that each of its options is given; those of step begin with "step ".
OPTIONS = {
    "euler": (
        EulerDiscreteScheduler,
        {**SPACED, **PREDICTED, **OF_SIGMAS, **ENDING, "rescale_betas_zero_snr": (False, True)}
        | {"interpolation_type": ("linear", "log_linear")},
    ),
    "euler ancestral": (
        EulerAncestralDiscreteScheduler,
        {**SPACED, "prediction_type": ("epsilon", "v_prediction"), "rescale_betas_zero_snr": EITHER},
    ),
    "lms": (LMSDiscreteScheduler, {**SPACED, **PREDICTED, **OF_SIGMAS}),
    "heun": (HeunDiscreteScheduler, {**SPACED, **PREDICTED, **OF_SIGMAS, "clip_sample": EITHER}),
    "kdpm2": (KDPM2DiscreteScheduler, {**SPACED, **PREDICTED, **OF_SIGMAS}),
    "kdpm2 ancestral": (KDPM2AncestralDiscreteScheduler, {**SPACED, **PREDICTED, **OF_SIGMAS}),
    "multistep": (
        DPMSolverMultistepScheduler,
        {
            **SPACED,
            **PREDICTED,
            **OF_SIGMAS,
            **DPM,
            "euler_at_final": (False, True),
            "use_lu_lambdas": (False, True),
        }
        | {"rescale_betas_zero_snr": (False, True)},
    ),
    "multistep of a flow": (DPMSolverMultistepScheduler, {**FLOWING, **DPM, "euler_at_final": (False, True)}),
    "singlestep": (DPMSolverSinglestepScheduler, {**PREDICTED, **OF_SIGMAS, **ORDERED, **ENDING}),
    "singlestep of a flow": (DPMSolverSinglestepScheduler, {**FLOWING, **ORDERED, **ENDING}),
    "deis": (DEISMultistepScheduler, {**SPACED, **PREDICTED, **OF_SIGMAS, **ORDERED}),
    "deis of a flow": (DEISMultistepScheduler, {**FLOWING, **ORDERED}),
    "unipc": (
        UniPCMultistepScheduler,
        {**SPACED, **PREDICTED, **OF_SIGMAS, **UNI_PC, "rescale_betas_zero_snr": (False, True)},
    ),
    "unipc of a flow": (
        UniPCMultistepScheduler,
        {**FLOWING, **OF_SIGMAS, **UNI_PC, "shift_terminal": (None, 0.1)},
    ),
    "sa solver": (SASolverScheduler, {**SPACED, **PREDICTED, **OF_SIGMAS, **SA}),
    "sa solver of a flow": (SASolverScheduler, {**FLOWING, **SA}),
    "ddim": (
        DDIMScheduler,
        {**SPACED, **PREDICTED, "set_alpha_to_one": EITHER, "clip_sample": (False, True), "step eta": (0.0, 0.6)}
        | {"rescale_betas_zero_snr": (False, True), "step use_clipped_model_output": (True,)},
    ),
    "ddim parallel": (
        DDIMParallelScheduler,
        {**SPACED, **PREDICTED, "set_alpha_to_one": EITHER, "clip_sample": (False,), "step eta": (0.0, 0.6)},
    ),
    "ddim of cogvideox": (
        CogVideoXDDIMScheduler,
        {**SPACED, **PREDICTED, "set_alpha_to_one": EITHER, "snr_shift_scale": (3.0, 1.0)},
    ),
    "pndm": (
        PNDMScheduler,
        {**SPACED, "prediction_type": ("epsilon", "v_prediction"), "set_alpha_to_one": EITHER}
        | {"skip_prk_steps": (True,)},
    ),
    "ddpm": (
        DDPMScheduler,
        {**SPACED, **PREDICTED, "clip_sample": EITHER, "rescale_betas_zero_snr": (False, True)},
    ),
    "ddpm parallel": (DDPMParallelScheduler, {**SPACED, **PREDICTED, "clip_sample": EITHER}),
    "lcm": (
        LCMScheduler,
        {**PREDICTED, "clip_sample": EITHER, "set_alpha_to_one": EITHER, "timestep_scaling": (10.0, 1.0)},
    ),
    "tcd": (TCDScheduler, {**PREDICTED, "set_alpha_to_one": EITHER, "step eta": (0.3, 0.0, 1.0)}),
    "edm euler": (
        EDMEulerScheduler,
        {**ENDING, "prediction_type": ("epsilon", "v_prediction"), "sigma_schedule": ("karras", "exponential")},
    ),
    "edm multistep": (
        EDMDPMSolverMultistepScheduler,
        {**DPM, "prediction_type": ("epsilon", "v_prediction"), "sigma_schedule": ("karras", "exponential")}
        | {"euler_at_final": (False, True)},
    ),
    "flow euler": (
        FlowMatchEulerDiscreteScheduler,
        {"shift": (1.0, 3.0), **OF_SIGMAS, "shift_terminal": (None, 0.1), "stochastic_sampling": (False, True)},
    ),
    "flow heun": (FlowMatchHeunDiscreteScheduler, {"shift": (1.0, 3.0)}),
    "flow lcm": (FlowMatchLCMScheduler, {"shift": (1.0, 3.0), **OF_SIGMAS}),
    "flow euler ancestral": (LTXEulerAncestralRFScheduler, {"eta": (1.0, 0.0, 0.6)}),
}
TO_SIGMA_MIN = {"final_sigmas_type": "sigma_min"}
SDE = {"algorithm_type": "sde-dpmsolver++"}
# Options under which refsd has no equivalent. Name of the above -> them.
DECLINED = {
    "euler": ({"step s_churn": 3.0},),
    "edm euler": ({"step s_churn": 3.0},),
    "multistep": (
        {"thresholding": True},
        {"algorithm_type": "dpmsolver", **TO_SIGMA_MIN},
        {"algorithm_type": "sde-dpmsolver", **TO_SIGMA_MIN},
        {"solver_order": 3, **SDE},
        {"solver_order": 3, "euler_at_final": True, "lower_order_final": False, **TO_SIGMA_MIN},
        {"prediction_type": "flow_prediction"},
    ),
    "multistep of a flow": ({"solver_order": 1, **SDE}, {"solver_order": 3, **SDE}),
    "edm multistep": ({**SDE, **TO_SIGMA_MIN},),
    "singlestep": (SDE, {"solver_type": "heun"}, {"algorithm_type": "dpmsolver", **TO_SIGMA_MIN}),
    "unipc": ({"predict_x0": False, **TO_SIGMA_MIN}, {"disable_corrector": [0]}),
    "sa solver": ({"algorithm_type": "noise_prediction"},),
    "ddim": ({"clip_sample": True, "step use_clipped_model_output": False},),
    "pndm": ({"skip_prk_steps": False},),
    "ddpm": ({"variance_type": "fixed_large"},),
    "flow euler": ({"invert_sigmas": True},),
}
# What differs by more than 1e-12, as docs/samplers.md says.
BOUNDS = {"euler": 2e-12, "euler ancestral": 3e-12, "deis of a flow": 2e-12, "flow euler ancestral": 3e-11}
BOUNDS_OF_BETA = {"deis": 2e-11, "sa solver": 2e-11}
COMBINATIONS = 40


def configurations(name: str):
    """-> (options, steps), each once"""
    _, options = OPTIONS[name]
    first = {key: values[0] for key, values in options.items()}
    found = [(first, n) for n in STEPS]
    found += [({**first, key: value}, 7) for key, values in options.items() for value in values[1:]]
    whole = list(itertools.product(*options.values(), STEPS))
    drawn = random.Random(name).sample(whole, min(COMBINATIONS, len(whole)))
    return found + [(dict(zip(options, values, strict=False)), n) for *values, n in drawn]


def apart(kind: type, options: dict, n: int) -> float | str:
    """How far refsd ends from the scheduler; or why it is not asked to end there."""
    config = {key: value for key, value in options.items() if not key.startswith("step ") and key != "use"}
    if options.get("use"):
        config[options["use"]] = True
    step_with = {key.removeprefix("step "): v for key, v in options.items() if key.startswith("step ") and v}
    trained = {} if kind.__name__.startswith(("EDM", "FlowMatch", "LTX")) else SD
    try:
        theirs = step(kind, {**trained, **config}, n, step_with=step_with)
    except (
        IndexError,
        UnboundLocalError,
        NotImplementedError,
        ValueError,
        np.linalg.LinAlgError,
        RuntimeError,
    ) as error:
        return f"diffusers raises {type(error).__name__}"
    if not np.isfinite(theirs.end).all():
        return "diffusers gives no numbers"
    try:
        mine = run(theirs, step_with)
    except NotOfferedError as reason:
        return str(reason)
    return float(np.linalg.norm(mine - theirs.end) / np.linalg.norm(theirs.end))


def bound(name: str, options: dict) -> float:
    known = BOUNDS | BOUNDS_OF_BETA if options.get("use") == "use_beta_sigmas" else BOUNDS
    return known.get(name, 1e-12)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name):
    kind, _ = OPTIONS[name]
    found = [(apart(kind, options, n), options, n) for options, n in configurations(name)]
    assert [one for one in found if not isinstance(one[0], str) and not one[0] <= bound(name, one[1])] == []
    met = sum(not isinstance(one[0], str) for one in found)
    assert met >= 0.4 * len(found), f"{met} of {len(found)} met"
    assert {one[0] for one in found if isinstance(one[0], str) and not one[0].startswith("diffusers")} <= told()


@pytest.mark.parametrize(("name", "declined"), [(name, one) for name, ones in DECLINED.items() for one in ones])
def test_what_is_declined(name, declined):
    kind, options = OPTIONS[name]
    found = apart(kind, {**{key: values[0] for key, values in options.items()}, **declined}, 7)
    assert found in told()


def told() -> set[str]:
    """The reasons that the page gives."""
    return {reason.replace("\n", " ") for reason in re.findall(r"^- (.+?):", PAGE, re.MULTILINE | re.DOTALL)}


LISTED = ("linspace", "leading", "trailing")


@pytest.mark.parametrize("n", [1, 2, 7, 150, 999])
def test_schedules(n):
    """By spacing, of Euler and of the multistep solvers; with Karras's, ... between the ends of the spacing."""
    card = CARDS["diffusers"]

    def same(name, kind, **options):
        scheduler = set_to(kind, n, {**SD, **options})
        ours = card.sigmas(n, name, "euler", SD_LEVELS)
        np.testing.assert_allclose(ours, sigmas_of(scheduler), rtol=1e-11, atol=1e-14, err_msg=name)

    for spacing in LISTED:
        spaced = {"timestep_spacing": spacing, "steps_offset": int(spacing == "leading")}
        same(spacing, EulerDiscreteScheduler, **spaced)
        if spacing != "trailing":
            same(f"{spacing}_multistep", DPMSolverMultistepScheduler, **spaced)
        for rule in ("karras", "exponential", "beta"):
            name = rule if spacing == "linspace" else f"{spacing}_{rule}"
            same(name, EulerDiscreteScheduler, **spaced, **{f"use_{rule}_sigmas": True})
            same(f"{rule}_multistep", DPMSolverMultistepScheduler, **spaced, **{f"use_{rule}_sigmas": True})


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("n", [1, 2, 7, 150])
def test_schedules_of_flows(n, shift):
    """FlowMatchEuler's without sigmas; the multistep solvers', UniPC's but for its 1e-6 below 1."""
    levels = FlowLevels(shift)
    for ours, kind, options in (
        (flow.FLOW_SCHEDULES["flow_linspace"], FlowMatchEulerDiscreteScheduler, {"shift": shift}),
        (
            flow.FLOW_SCHEDULES["flow_below_one"],
            DPMSolverMultistepScheduler,
            {"use_flow_sigmas": True, "flow_shift": shift},
        ),
        (SCHEDULES["sgm_uniform"], UniPCMultistepScheduler, {"use_flow_sigmas": True, "flow_shift": shift}),
    ):
        theirs = sigmas_of(set_to(kind, n, options))
        if kind is UniPCMultistepScheduler:
            assert theirs[0] == 1 - 1e-6 and ours(n, levels)[0] == 1
            theirs = np.append(1.0, theirs[1:])
        # Its ends are rounded to float32 before they are shifted again.
        np.testing.assert_allclose(ours(n, levels), theirs, rtol=2e-7 if "Match" in kind.__name__ else 1e-12)


def test_flow_shifts():
    for tokens in (256, 1000, 4096, 5000):
        assert abs(flow.flux_mu(tokens) - calculate_shift(tokens)) < 1e-12
        for n in (4, 28, 50):
            assert abs(flow.flux2_mu(tokens, n) - compute_empirical_mu(tokens, n)) < 1e-12
    sigmas = {"sigmas": flow.flow_uniform(9)[:-1], "mu": flow.flux_mu(1000)}
    scheduler = set_to(FlowMatchEulerDiscreteScheduler, None, {"use_dynamic_shifting": True}, **sigmas)
    np.testing.assert_allclose(sigmas_of(scheduler), flow.flow_uniform(9, np.exp(flow.flux_mu(1000))), rtol=1e-12)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_linear_quadratic(n):
    theirs = [*linear_quadratic_schedule(n), 0.0]
    np.testing.assert_allclose(
        SCHEDULES["linear_quadratic"](n, SD_LEVELS) / SD_LEVELS.sigmas[-1], theirs, atol=1e-12
    )


def test_every_scheduler_with_options_is_here():
    assert {kind.__name__ for kind, _ in OPTIONS.values()} == set(EQUIVALENTS)
    assert all(hasattr(diffusers, name) or name in dir(diffusers.schedulers) for name in EQUIVALENTS)
