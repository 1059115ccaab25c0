"""Schedules: functions (number of steps, the model's levels) -> sigmas, falling to 0.

SCHEDULES has those that suit any discrete-time model. Some schedules of flow models take the number
of tokens (flow.py); schedules of one model family are tables (tables.py).
"""

from collections.abc import Callable

import numpy as np

from refsd.samplers.levels import Levels
from refsd.samplers.schedules.sigmas import (
    bong_tangent,
    exponential,
    karras,
    kl_optimal,
    kl_optimal_to_smin,
    linear_quadratic,
    polyexponential,
    vp,
)
from refsd.samplers.schedules.tables import (
    AYS_GITS_SD1,
    AYS_SD1,
    AYS_SD1_32,
    AYS_SD1_LEVELS,
    align_your_steps,
    align_your_steps_appended,
    gits,
)
from refsd.samplers.schedules.timesteps import (
    beta,
    beta_of_sigma,
    ddim_uniform,
    discrete,
    lcm,
    leading,
    leading_multistep,
    linspace,
    linspace_multistep,
    sgm_uniform,
    simple,
    smoothstep,
    trailing,
    turbo,
)

Schedule = Callable[[int, Levels], np.ndarray]

SCHEDULES: dict[str, Schedule] = {
    "discrete": discrete,
    "karras": karras,
    "exponential": exponential,
    "polyexponential": polyexponential,
    "vp": vp,
    "sgm_uniform": sgm_uniform,
    "simple": simple,
    "ddim_uniform": ddim_uniform,
    "beta": beta,
    "beta_of_sigma": beta_of_sigma,
    "linear_quadratic": linear_quadratic,
    "kl_optimal": kl_optimal,
    "kl_optimal_to_smin": kl_optimal_to_smin,
    "ays": lambda n, levels: align_your_steps(n, AYS_SD1_LEVELS),
    "ays_11": lambda n, levels: align_your_steps_appended(n, AYS_SD1),
    "ays_32": lambda n, levels: align_your_steps_appended(n, AYS_SD1_32),
    "ays_gits": lambda n, levels: align_your_steps_appended(n, AYS_GITS_SD1),
    "gits": gits,
    "smoothstep": smoothstep,
    "lcm": lcm,
    "bong_tangent": bong_tangent,
    "turbo": turbo,
    "leading": leading,
    "leading_multistep": leading_multistep,
    "linspace": linspace,
    "linspace_multistep": linspace_multistep,
    "trailing": trailing,
}

__all__ = ["SCHEDULES", "Schedule", "discrete", "karras"]
