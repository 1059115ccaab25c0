"""Schedules that were optimised for a model and published as tables: Align Your Steps, GITS."""

import functools
import json
from importlib import resources

import numpy as np

from refsd.samplers.levels import Levels

# Sabour et al. 2024, 10 steps; as published with the paper, three decimals.
AYS_SD1 = (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029)
AYS_SDXL = (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029)
# The levels of the same timesteps with all decimals, from stable-diffusion.cpp.
AYS_SD1_LEVELS = (
    *(14.6146412293, 6.4745760956, 3.8636745985, 2.6946151520, 1.8841921177, 1.3943805092),
    *(0.9642583904, 0.6523686016, 0.3977456272, 0.1515232662, 0.0291671582),
)
AYS_SDXL_LEVELS = (
    *(14.6146412293, 6.3184485287, 3.7681790315, 2.1811480769, 1.3405244945, 0.8620721141),
    *(0.5550693289, 0.3798540708, 0.2332364134, 0.1114188177, 0.0291671582),
)
# 32 levels by the same method, and eleven by the method of GITS. Source: Forge modules/sd_schedulers.py.
AYS_SD1_32 = (
    *(14.615, 11.23951352, 8.64363081, 6.64729424, 5.57250862, 4.71648546, 3.99196065, 3.5195609),
    *(3.13490466, 2.79228788, 2.48773628, 2.21663865, 1.97508351, 1.7793172, 1.61475335, 1.46540953),
    *(1.314849, 1.16642497, 1.03475547, 0.91573744, 0.80748169, 0.71202361, 0.621739, 0.53065202),
    *(0.45290960, 0.37491455, 0.27461819, 0.2011529, 0.14105873, 0.06682881, 0.03166121, 0.015),
)
AYS_SDXL_32 = (
    *(14.615, 11.1491618, 8.50522127, 6.48827151, 5.43707402, 4.60398619, 3.89854704, 3.27407457),
    *(2.74396527, 2.29968659, 1.95448514, 1.67108715, 1.42878152, 1.23181009, 1.06789649, 0.92579443),
    *(0.80290886, 0.69660121, 0.60436903, 0.52852552, 0.46773344, 0.41393379, 0.36258186, 0.31008517),
    *(0.26518925, 0.22326461, 0.17653877, 0.13959192, 0.10587381, 0.05519369, 0.02877334, 0.015),
)
AYS_GITS_SD1 = (14.615, 4.617, 2.507, 1.236, 0.702, 0.402, 0.240, 0.156, 0.104, 0.094, 0.029)
AYS_GITS_SDXL = (14.615, 4.734, 2.567, 1.529, 0.987, 0.652, 0.418, 0.268, 0.179, 0.127, 0.029)


def stretched(sigmas: tuple[float, ...] | np.ndarray, count: int) -> np.ndarray:
    """Resample a table to another length, linearly in ln sigma; a single value is the first. -> [count]"""
    places = np.linspace(0, 1, len(sigmas))
    return np.exp(np.interp(np.linspace(0, 1, count), places, np.log(sigmas)))


def align_your_steps(n: int, table: tuple[float, ...]) -> np.ndarray:
    """Resample the table's eleven levels to n + 1 and replace the last by 0. -> [n + 1]

    Source: the authors' howto; stable-diffusion.cpp AYSScheduler; ComfyUI AlignYourStepsScheduler. A1111 and
    Forge resample to n and append 0: align_your_steps_appended.
    """
    sigmas = np.array(table) if n + 1 == len(table) else stretched(table, n + 1)
    return np.append(sigmas[:-1], 0.0)


def align_your_steps_appended(n: int, table: tuple[float, ...]) -> np.ndarray:
    """Resample the table's levels to n and append 0; at the table's own length return the table.

    -> [n + 1]
    Source: A1111 and Forge modules/sd_schedulers.py, get_align_your_steps_sigmas.
    """
    sigmas = np.array(table) if n == len(table) else stretched(table[::-1], n)[::-1]
    return np.append(sigmas, 0.0)


@functools.cache
def _gits() -> dict:
    return json.loads(resources.files("refsd.samplers.schedules").joinpath("gits.json").read_text())


def gits(n: int, levels: Levels | None = None, coefficient: float = 1.2) -> np.ndarray:
    """Look up the levels that GITS derived from SD 1.5's trajectories, for 2 to 20 steps; resample 20's for more.

    levels:      not used: the table is for SD 1.5
    coefficient: 0.80 .. 1.50, to the nearest 0.05; 0.80 lacks 16, 18 and 20 steps, 1.15 lacks 19
    Raises ValueError for 1 step, and for numbers of steps that the table lacks.
    Source: Chen et al. 2024 (On the trajectory regularity of ODE-based diffusion sampling), with the authors'
    diff-sampler; the figures are copied from stable-diffusion.cpp's table.
    """
    data = _gits()
    rows = data["places"][f"{round(coefficient * 20) / 20:.2f}"]
    key = str(min(n, 20))
    if key not in rows:
        raise ValueError(f"GITS has no table of {n} steps at coefficient {coefficient}")
    sigmas = np.array(data["sigmas"])[rows[key]]
    if n > 20:
        sigmas = stretched(sigmas, n + 1)
    return np.append(sigmas[:-1], 0.0)
