"""Cases of samplers on an analytic model. An answer is the whole trajectory: every input and output of the model.

The noises are inputs: a trajectory begins at the first noise times the first sigma, and each later draw takes the
next noise. The model is a formula (refsd/engines/exec/protocol.md), so an engine needs no weights. Under flow/ the
model is that of a rectified flow. CFG++ answers also have the model's output without the prompt.
"""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_SHAPE = (1, 4, 5, 7)
_GUIDANCE = 3.0
# CFG++ interpolates between the outputs with and without the prompt.
_INTERPOLATED = 0.6

# sampler -> noise draws in five steps, and eta if it has one
_SOLVERS: dict[str, tuple[int, float | None]] = {
    **dict.fromkeys(
        (
            *("euler", "heun", "dpm2", "lms", "dpm_fast", "dpm++2m", "dpm++2mv2", "ipndm", "ipndm_v", "plms"),
            *("deis", "deis_tab", "uni_pc", "uni_pc_bh2", "euler_ge", "heunpp2", "exp_heun_2_x0", "restart"),
            *("ipndm_v_published", "dpm++2s", "dpm++3s"),
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
# The same for CFG++ samplers and for the solvers of a rectified flow.
_CFG_PP: dict[str, tuple[int, float | None]] = {
    **dict.fromkeys(("euler_cfg_pp", "dpm++2m_cfg_pp", "res_multistep_cfg_pp", "euler_ge_cfg_pp"), (0, None)),
    **dict.fromkeys(("euler_a_cfg_pp", "dpm++2s_a_cfg_pp", "dpm++2s_a_cfg_pp_first"), (4, 1.0)),
    "res_multistep_a_cfg_pp": (4, 1.0),
}
_FLOW: dict[str, tuple[int, float | None]] = {
    **dict.fromkeys(("euler", "heun", "dpm++2m"), (0, None)),
    **dict.fromkeys(("dpm++2m_log_snr", "deis_log_snr", "uni_pc_log_snr", "uni_pc_bh2_log_snr"), (0, None)),
    **dict.fromkeys(("euler_a", "dpm2_a", "dpm++2s_a", "res_multistep", "res_2s", "euler_ge_a"), (4, 1.0)),
    "dpm++2s_a_below_one": (4, 1.0),
    **dict.fromkeys(("dpm++2m_sde", "dpm++2m_sde_heun", "dpm++3m_sde"), (4, 1.0)),
    **dict.fromkeys(("lcm", "er_sde"), (4, None)),
    **dict.fromkeys(("dpm++sde", "seeds_2", "exp_heun_2_x0_sde"), (8, 1.0)),
    "seeds_3": (12, 1.0),
    "exp_heun_2_x0": (0, None),
    **dict.fromkeys(("sa_solver", "sa_solver_pece"), (3, None)),
    "euler_cfg_pp": (0, None),
    **dict.fromkeys(("euler_a_cfg_pp", "dpm++2s_a_cfg_pp"), (4, 1.0)),
}
# At eta 1 some formulas agree that differ elsewhere: sigma_next is the root of sigma times sigma_down.
_PARTIAL_ETA = (
    *("euler_a", "dpm2_a", "dpm++2s_a", "res_multistep_a", "dpm++2m_sde", "dpm++3m_sde"),
    *("dpm++2m_sde_heun", "dpm++sde", "seeds_2", "exp_heun_2_x0_sde", "euler_ge_a"),
)
# Schedules other than karras, for the cases with 7 steps; no two of them are equal at 7 steps.
_SCHEDULES = ("discrete", "exponential", "sgm_uniform", "simple", "smoothstep", "kl_optimal", "lcm", "beta", "ays")


_FLOW_SCHEDULES = ("discrete", "sgm_uniform", "beta", "kl_optimal")


# Of five levels of karras (14.6, 5.7, 1.8, 0.42, 0.03) the middle three get noise. No limit is near a level.
_CHURN = {"s_churn": 1.5, "s_tmin": 0.2, "s_tmax": 9.0, "s_noise": 1.05}


def _churned(sampler: str) -> Case:
    """Noise is drawn in every step, as k-diffusion does, also where none is added."""
    case = _case(f"{sampler}_churn", "karras", 5, 5, None)
    return Case(case.name, case.op, case.inputs, {**case.params, **_CHURN})


def _case(
    sampler: str,
    schedule: str,
    steps: int,
    draws: int,
    eta: float | None,
    label: str = "",
    guidance: float = 0.0,
    **more: int,
) -> Case:
    """guidance: 0: the usual one of the sampler; more: other parameters"""
    guidance = guidance or (_GUIDANCE if "cfg_pp" not in sampler else _INTERPOLATED)
    params = {"sampler": sampler, "schedule": schedule, "steps": steps, "guidance": guidance, **more}
    if eta is not None:
        params["eta"] = eta
    noise = Recipe((1 + draws, *_SHAPE))
    return Case(f"trajectory/{sampler.replace('+', 'p')}/{schedule}{label}", "trajectory", {"noise": noise}, params)


CASES = [
    *(_case(sampler, "karras", 5, draws, eta) for sampler, (draws, eta) in (_SOLVERS | _CFG_PP).items()),
    *(_case(sampler, "karras", 5, _SOLVERS[sampler][0], 0.6, "-eta-0.6") for sampler in _PARTIAL_ETA),
    # With 6 steps, this solver of two steps at a time ends with an unpaired one.
    _case("dpm++2s", "discrete", 6, 0, None),
    # Its orders are 3, 2, 1 where 3 divides the steps, and 3, 3, 1 with 7.
    *(_case("dpm_fast", schedule, n, 0, None) for schedule, n in (("exponential", 6), ("discrete", 7))),
    # From 20 steps on it restarts.
    _case("restart", "karras", 20, 1, None, "-20"),
    *(_churned(sampler) for sampler in ("euler", "heun", "dpm2", "heunpp2")),
    # The answer without the prompt is needed at scale 1, too.
    _case("euler_cfg_pp", "karras", 5, 0, None, "-scale-1", 1.0),
    # Another model goes on from here, as of SDXL's or Wan's two: the noise is not all removed.
    *(_case(sampler, "karras", 6, 0, None, "-ends-above-0", end_at_step=4) for sampler in ("euler", "dpm++2m")),
    _case("flow/euler", "simple", 5, 0, None, "-ends-above-0", end_at_step=3),
    # Without noise it rescales, as stable-diffusion.cpp does.
    _case("tcd", "karras", 5, 0, 0.0, "-eta-0"),
    *(_case("dpm++2m", schedule, 7, 0, None) for schedule in _SCHEDULES[::2]),
    *(_case("euler_a", schedule, 7, 6, 1.0) for schedule in _SCHEDULES[1::2]),
    *(_case(f"flow/{sampler}", "simple", 5, draws, eta) for sampler, (draws, eta) in _FLOW.items()),
    *(_case("flow/euler_a", schedule, 7, 6, 1.0) for schedule in _FLOW_SCHEDULES),
]
