"""Samplers on an analytic model, whole trajectories: what the model is shown and what it answers, step by step.

The noises are given: the first, times the first sigma, is where a trajectory begins; each step that draws takes the
next. The model is a formula (exec_protocol.md), so that an engine needs no weights.
"""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_SHAPE = (1, 4, 5, 7)
_GUIDANCE = 3.0

# sampler -> its draws in five steps, and its eta where it has one
_SOLVERS: dict[str, tuple[int, float | None]] = {
    **dict.fromkeys(
        (
            *("euler", "heun", "dpm2", "lms", "dpm_fast", "dpm++2m", "dpm++2mv2", "ipndm", "ipndm_v", "plms"),
            *("deis", "deis_tab", "uni_pc", "uni_pc_bh2", "euler_ge", "heunpp2", "exp_heun_2_x0", "restart"),
            "ipndm_v_published",
        ),
        (0, None),
    ),
    **dict.fromkeys(("euler_a", "dpm2_a", "dpm++2s_a", "er_sde", "euler_ge_a", "res_multistep_a"), (4, 1.0)),
    **dict.fromkeys(("dpm++2m_sde", "dpm++2m_sde_heun", "dpm++2m_sde_bt", "dpm++3m_sde"), (4, 1.0)),
    **dict.fromkeys(("dpm++sde", "seeds_2", "exp_heun_2_x0_sde"), (8, 1.0)),
    **dict.fromkeys(("res_multistep", "res_2s"), (0, 0.0)),
    "seeds_3": (12, 1.0),
    "lcm": (4, None),
    "ddpm": (4, None),
    "tcd": (4, 0.3),
    "sa_solver": (2, None),
    "sa_solver_pece": (2, None),
}
# The schedules that the solvers' cases leave out, in a number of steps at which no two are the same.
_SCHEDULES = ("discrete", "exponential", "sgm_uniform", "simple", "smoothstep", "kl_optimal", "lcm", "beta", "ays")


def _case(sampler: str, schedule: str, steps: int, draws: int) -> Case:
    eta = _SOLVERS[sampler][1]
    params = {"sampler": sampler, "schedule": schedule, "steps": steps, "guidance": _GUIDANCE}
    if eta is not None:
        params["eta"] = eta
    noise = Recipe((1 + draws, *_SHAPE))
    return Case(f"trajectory/{sampler.replace('+', 'p')}/{schedule}", "trajectory", {"noise": noise}, params)


CASES = [
    *(_case(sampler, "karras", 5, draws) for sampler, (draws, _) in _SOLVERS.items()),
    *(_case("dpm++2m", schedule, 7, 0) for schedule in _SCHEDULES[::2]),
    *(_case("euler_a", schedule, 7, 6) for schedule in _SCHEDULES[1::2]),
]
