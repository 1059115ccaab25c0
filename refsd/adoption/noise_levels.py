"""Find the rule of a run's noise levels among those that `stage/sigmas` knows, from the levels alone."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from scipy.optimize import brentq

from refsd.golden.case import Case
from refsd.golden.wording import counted
from refsd.numerics.errors import BadInput
from refsd.stages import STAGES
from refsd.stages.stage import OP, StageInputs, case

_STAGE = STAGES[f"{OP}sigmas"]
# Schedulers multiply the signal's thousand shares in float32.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
_SPACINGS = "trailing", "linspace", "linspace_multistep", "karras"
# The last has two numbers to fit, so that it fits others, too.
_FLOWS = "flow_uniform", "flow_linspace", "flow_sgm_uniform", "flow_below_one", "flow_terminal"
_SHIFTS = 1e-2, 1e2
# Of fewer steps several rules give the same levels.
_FEWEST = 4


def case_of(name: str, sigmas: np.ndarray, timesteps: np.ndarray) -> Case:
    """Return a case of `stage/sigmas` that has these levels.

    sigmas: [steps + 1], timesteps: [steps]

    Raises BadInput for none and fewer than four steps, and where no rule gives them: it says the nearest.
    """
    steps, wanted = len(timesteps), np.concatenate([sigmas, timesteps])
    if not steps or not len(sigmas):
        raise BadInput("it has no list of noise levels")
    if steps < _FEWEST:
        raise BadInput(f"{counted(steps, 'step')}: too few steps to tell; {_FEWEST} or more")
    if len(sigmas) != steps + 1:
        raise BadInput(f"{len(sigmas)} sigmas for {steps} timesteps, expected {steps + 1}")
    fewest, nearest = len(wanted), ""
    for params in _rules(sigmas, steps):
        found = np.concatenate([*_levels(params).values()])
        if found.shape != wanted.shape:
            continue
        (apart,) = np.nonzero(~np.isclose(found, wanted, _RELATIVE, _ABSOLUTE))
        if not len(apart):
            return case("sigmas", name, **params)
        if len(apart) < fewest:
            fewest, i = len(apart), int(apart[0])
            place = f"sigmas[{i}]" if i <= steps else f"timesteps[{i - steps - 1}]"
            nearest = f"; {params['schedule']} is nearest, with {place} {found[i]:.6g}, not {wanted[i]:.6g}"
    raise BadInput(f"no rule of refsd gives them{nearest}")


def _levels(params: dict[str, Any]) -> dict[str, np.ndarray]:
    return _STAGE.run(_STAGE.rule, StageInputs({}, _STAGE.complete({}, params), np.dtype(np.float64)))


def _rules(sigmas: np.ndarray, steps: int) -> Iterator[dict[str, Any]]:
    """Yield parameters of the stage, those of a flow with the shift that the second level shows."""
    if sigmas[0] > 1:
        last = {"last": "lowest"} if sigmas[-1] > 0 else {}
        for levels in ("sd", "sd-zero-snr"):
            yield from (_params(levels, schedule, steps, **last) for schedule in _SPACINGS)
            for name, offset in itertools.product(("leading", "leading_multistep"), (0, 1)):
                yield _params(levels, name, steps, options={"offset": offset}, **last)
        return
    for schedule in _FLOWS:
        options = {"options": {"terminal": float(sigmas[-2])}} if schedule == "flow_terminal" else {}
        rule = functools.partial(_params, "flow", schedule, steps, **options)
        off = lambda shift, rule=rule: float(_levels(rule(shift=shift))["sigmas"][1] - sigmas[1])
        if off(_SHIFTS[0]) < 0 < off(_SHIFTS[1]):
            yield rule(shift=round(float(cast(Any, brentq(off, *_SHIFTS))), 6))


def _params(levels: str, schedule: str, steps: int, **more: Any) -> dict[str, Any]:
    return {"engine": "diffusers", "levels": levels, "schedule": schedule, "steps": steps, **more}
