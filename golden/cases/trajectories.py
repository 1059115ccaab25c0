"""Samplers on an analytic model, whole trajectories: what the model is shown and what it answers, step by step.

The noises are given: the first, times the first sigma, is where a trajectory begins; each step that draws takes the
next. The model is a formula (exec_protocol.md), so that an engine needs no weights.
"""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_SHAPE = (1, 4, 5, 7)
_GUIDANCE = 3.0

# sampler -> (eta or None, draws in a step but the last)
_SOLVERS: dict[str, tuple[float | None, int]] = {
    "euler": (None, 0),
    "euler_a": (1.0, 1),
    "heun": (None, 0),
    "dpm2": (None, 0),
    "dpm2_a": (1.0, 1),
    "lms": (None, 0),
    "dpm++2s_a": (1.0, 1),
    "dpm++sde": (1.0, 2),
    "dpm++2m": (None, 0),
    "dpm++2mv2": (None, 0),
    "dpm++2m_sde": (1.0, 1),
    "dpm++3m_sde": (1.0, 1),
    "ipndm": (None, 0),
    "ipndm_v": (None, 0),
    "deis": (None, 0),
    "uni_pc": (None, 0),
    "uni_pc_bh2": (None, 0),
    "lcm": (None, 1),
    "res_multistep": (0.0, 0),
    "res_2s": (0.0, 0),
    "er_sde": (1.0, 1),
    "euler_ge": (None, 0),
}
# The schedules that the solvers' cases leave out, in a number of steps at which no two are the same.
_SCHEDULES = ("discrete", "exponential", "sgm_uniform", "simple", "smoothstep", "kl_optimal", "lcm", "beta", "ays")


def _case(sampler: str, schedule: str, steps: int = 5) -> Case:
    eta, draws = _SOLVERS[sampler]
    params = {"sampler": sampler, "schedule": schedule, "steps": steps, "guidance": _GUIDANCE}
    if eta is not None:
        params["eta"] = eta
    noise = Recipe((1 + draws * (steps - 1), *_SHAPE))
    return Case(f"trajectory/{sampler.replace('+', 'p')}/{schedule}", "trajectory", {"noise": noise}, params)


CASES = [
    *(_case(sampler, "karras") for sampler in _SOLVERS),
    *(_case("euler_a" if i % 2 else "dpm++2m", schedule, 7) for i, schedule in enumerate(_SCHEDULES)),
]
