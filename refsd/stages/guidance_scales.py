"""The guidance scale of each step: from a list, or along a curve."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.samplers.guidance_variants import scale_schedule
from refsd.samplers.mimic_threshold import CURVES, scale_at
from refsd.stages.stage import Output, Stage, StageInputs, case, magnitude, param, part


class ScalesRule(NamedTuple):
    """The parts of the rule.

    listed: text -> scales
    curved: scale, lowest scale, curve, step, steps, the curve's value -> scale of the step
    """

    listed: Callable[[str], list[float]]
    curved: Callable[..., float]


def _run_scales(rule: ScalesRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    if p["listed"]:
        return {"scales": np.array(rule.listed(p["listed"]), inputs.dtype)}
    of = p["scale"], p["lowest"], p["curve"]
    scales = [rule.curved(*of, step, p["steps"], p["value"]) for step in range(p["steps"])]
    return {"scales": np.array(scales, inputs.dtype)}


def _steps_before_scale(text: str) -> list[float]:
    """Read SCALExSTEPS as STEPSxSCALE: 3x2, two steps at scale 3, becomes three at 2."""
    pairs = [piece.split("x") for piece in text.split("+")]
    return [float(scale) for steps, scale in pairs for _ in range(max(1, round(float(steps))))]


_SCALES = (
    part("counts before scales", listed=_steps_before_scale),
    part(
        "the first scale for all steps", listed=lambda text: [scale_schedule(text)[0]] * len(scale_schedule(text))
    ),
    part("each scale for one step", listed=lambda text: [float(piece.split("x")[0]) for piece in text.split("+")]),
    part(
        "share of all steps, so that the last is not 1",
        curved=lambda s, l, c, i, n, v: scale_at(s, l, c, i, n + 1, v),
    ),
    part("the lowest scale left out", curved=lambda s, l, c, i, n, v: scale_at(s, 0.0, c, i, n, v)),
    part("the lowest scale added whole", curved=lambda s, l, c, i, n, v: l + s * CURVES[c](i / (n - 1), v)),
    part("the curve reversed", curved=lambda s, l, c, i, n, v: scale_at(s, l, c, n - 1 - i, n, v)),
    part("one scale for all steps", curved=lambda s, l, c, i, n, v: s),
    param("the curve's own value for the case's", value=4.0),
)

STAGES = (
    Stage(
        "guidance_scales",
        "A guidance scale for each step, by a list or by a curve.",
        inputs={},
        params={
            "listed": "",
            "curve": "Constant",
            "scale": 7.0,
            "lowest": 1.5,
            "steps": 7,
            "value": 4.0,
        },
        outputs={"scales": Output(("step",), magnitude, 16)},
        rule=ScalesRule(listed=scale_schedule, curved=scale_at),
        choices={"curve": CURVES},
        run=_run_scales,
        known=_SCALES,
        cases=(
            case("guidance_scales", "listed", listed="7.5x3+4x2+1x1"),
            *(
                case("guidance_scales", curve.lower().replace(" ", "-"), curve=curve, value=value)
                for curve, value in (
                    ("Linear Down", 4.0),
                    ("Half Cosine Down", 4.0),
                    ("Cosine Up", 4.0),
                    ("Power Up", 3.0),
                    ("Cosine Repeating", 2.5),
                )
            ),
        ),
    ),
)
