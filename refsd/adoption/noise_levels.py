"""Find the rule of a run's noise levels among those that `stage/sigmas` knows, from the levels alone."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from scipy.optimize import brentq

from refsd.golden.case import Case
from refsd.stages import STAGES
from refsd.stages.stage import OP, StageInputs, case

_STAGE = STAGES[f"{OP}sigmas"]
# Schedulers multiply the signal's thousand shares in float32.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
_SPACINGS = "leading", "leading_multistep", "trailing", "linspace", "linspace_multistep"
# The last has two numbers to fit, so that it fits others, too.
_FLOWS = "flow_uniform", "flow_linspace", "flow_sgm_uniform", "flow_below_one", "flow_terminal"
_SHIFTS = 1e-2, 1e2


def case_of(name: str, sigmas: np.ndarray, timesteps: np.ndarray) -> Case | None:
    """Return a case of `stage/sigmas` that has these levels; None if no rule gives them.

    sigmas: [steps + 1], timesteps: [steps]; a rule is told from four steps on
    """
    steps = len(sigmas) - 1
    if steps < 4 or len(timesteps) != steps:
        return None
    for params in _rules(sigmas, steps):
        found = _levels(params)
        pairs = (found["sigmas"], sigmas), (found["timesteps"], timesteps)
        if all(a.shape == b.shape and np.allclose(a, b, _RELATIVE, _ABSOLUTE) for a, b in pairs):
            return case("sigmas", name, **params)
    return None


def _levels(params: dict[str, Any]) -> dict[str, np.ndarray]:
    return _STAGE.run(_STAGE.rule, StageInputs({}, _STAGE.complete({}, params), np.dtype(np.float64)))


def _rules(sigmas: np.ndarray, steps: int) -> Iterator[dict[str, Any]]:
    """Yield parameters of the stage, those of a flow with the shift that the second level shows."""
    if sigmas[0] > 1:
        for levels in ("sd", "sd-zero-snr"):
            yield from (_params(levels, schedule, steps) for schedule in (*_SPACINGS, "karras"))
            yield from (_params(levels, name, steps, options={"offset": 1}) for name in _SPACINGS[:2])
        return
    for schedule in _FLOWS:
        options = {"terminal": float(sigmas[-2])} if schedule == "flow_terminal" else {}

        def rule(shift: float, schedule=schedule, options=options) -> dict[str, Any]:
            return _params("flow", schedule, steps, shift=shift, options=options)

        def off(shift: float, rule=rule) -> float:
            return float(_levels(rule(shift))["sigmas"][1] - sigmas[1])

        if off(_SHIFTS[0]) < 0 < off(_SHIFTS[1]):
            yield rule(round(float(cast(Any, brentq(off, *_SHIFTS))), 6))


def _params(levels: str, schedule: str, steps: int, **more: Any) -> dict[str, Any]:
    return {"engine": "diffusers", "levels": levels, "schedule": schedule, "steps": steps, **more}
