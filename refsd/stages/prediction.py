"""A network's input and timestep at a noise level, and the denoised picture from its output."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.families.zimage import TO_DATA
from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.samplers.levels import Levels
from refsd.samplers.parameterization import EPS, FLOW, PREDICTIONS, X0, Prediction, V, denoiser, edm
from refsd.stages.sigmas import RULE as SIGMAS
from refsd.stages.sigmas import levels_of, timestep_size
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, magnitude, param, part

# What a flow's network is told at a noise level.
TIMES: dict[str, Callable[[float], float]] = {
    "sigma": lambda sigma: sigma,
    "1000 sigma": lambda sigma: 1000 * sigma,
    "1 - sigma": lambda sigma: 1 - sigma,
    "1000 (1 - sigma)": lambda sigma: 1000 * (1 - sigma),
}
_PREDICTIONS = {**PREDICTIONS, TO_DATA.name: TO_DATA, "edm": edm(0.5)}


class _Timed:
    """Levels whose timestep is another function of sigma. unit: its name in TIMES"""

    def __init__(self, levels: Levels, unit: str):
        if unit not in TIMES:
            raise BadInput(f"stage/prediction: time {unit!r}: expected one of {', '.join(TIMES)}")
        self.sigmas, self.to_sigma, self._unit = levels.sigmas, levels.to_sigma, unit

    def to_t(self, sigma: float) -> float:
        return TIMES[self._unit](sigma)


def _scaled(x: np.ndarray, c_in: float) -> np.ndarray:
    return x * c_in


def _joined(shown: np.ndarray, extra: np.ndarray, c_in: float) -> np.ndarray:
    return np.concatenate([shown, extra], axis=1)


def _followed(shown: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return np.concatenate([shown, reference], axis=2)


class PredictionRule(NamedTuple):
    """The parts of the rule.

    prediction: name -> prediction type: how the network's output is read
    shown:      x, c_in -> the network's input
    joined:     the network's input, the channels behind it, c_in -> both
    followed:   the network's input, latents of the pictures to edit -> both
    own:        the network's output, rows of x -> the output for x
    kept:       latents of the pictures to edit, what the output makes of them -> those of the next call
    control:    x, c_in -> the ControlNet's input
    read:       x, c_in -> the x to which the output is added
    to_t:       levels, sigma -> timestep that the network receives
    """

    prediction: Callable[[str], Prediction] = lambda name: _PREDICTIONS[name]
    shown: Callable[[np.ndarray, float], np.ndarray] = _scaled
    joined: Callable[[np.ndarray, np.ndarray, float], np.ndarray] = _joined
    followed: Callable[[np.ndarray, np.ndarray], np.ndarray] = _followed
    own: Callable[[np.ndarray, int], np.ndarray] = lambda answer, rows: answer[:, :, :rows]
    kept: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda reference, denoised: reference
    control: Callable[[np.ndarray, float], np.ndarray] = _scaled
    read: Callable[[np.ndarray, float], np.ndarray] = lambda x, c_in: x
    to_t: Callable[[Levels, float], float] = lambda levels, sigma: levels.to_t(sigma)


RULE = PredictionRule()


def _run(rule: PredictionRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p, x, answer = inputs.params, inputs.tensors["x"], inputs.tensors["answer"]
    sigma, prediction = p["sigma"], rule.prediction(p["prediction"])
    c_in = prediction.scalings(sigma)[2]
    levels = levels_of(SIGMAS, p)
    if p["time"] is not None:
        levels = _Timed(levels, p["time"])
    rows, reference = x.shape[2], inputs.tensors.get("reference")
    read = lambda x, answer: denoiser(lambda shown, t: answer, levels, prediction)(x, sigma)
    denoised = read(rule.read(x, c_in), answer if reference is None else rule.own(answer, rows))
    shown, control = rule.shown(x, c_in), rule.control(x, c_in)
    if "extra" in inputs.tensors:
        shown = rule.joined(shown, inputs.tensors["extra"], c_in)
    found = {"control": control, "t": np.array([rule.to_t(levels, sigma)]), "denoised": denoised}
    if reference is not None:
        shown = rule.followed(shown, reference)
        found["reference"] = rule.kept(reference, read(reference, answer[:, :, rows:]))
    return {"shown": shown, **found}


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    c_skip, c_out, _ = _PREDICTIONS[inputs.params["prediction"]].scalings(inputs.params["sigma"])
    x = inputs.tensors["x"]
    return np.abs(c_skip * x) + np.abs(c_out * inputs.tensors["answer"][:, :, : x.shape[2]])


# --- what engines got wrong --------------------------------------------------------------------------------------


def _with(change: Callable[[float, float, float, float], tuple[float, float, float]]):
    """Return name -> prediction with changed scalings. change: sigma, c_skip, c_out, c_in -> c_skip, c_out, c_in"""

    def prediction(name: str) -> Prediction:
        right = _PREDICTIONS[name]
        return Prediction(name, lambda sigma: change(sigma, *right.scalings(sigma)))

    return prediction


_IMAGE = ("item", "channel", "row", "column")
_SHAPE = (2, 4, 5, 7)


def _case(
    label: str,
    prediction: str,
    levels: str,
    sigma: float,
    engine: str = "k-diffusion",
    extra: int = 0,
    reference: int = 0,
    **params,
):
    """extra: channels behind x; reference: rows behind it"""
    N, C, H, W = _SHAPE
    inputs = {
        "x": Recipe(_SHAPE, exponent=-14, offset=0.5),
        "answer": Recipe((N, C, H + reference, W), offset=-0.125),
    }
    if reference:
        inputs |= {"reference": Recipe((N, C, reference, W), offset=0.25)}
    if extra:
        inputs |= {"extra": Recipe((_SHAPE[0], extra, *_SHAPE[2:]), exponent=-15)}
    more = {"prediction": prediction, "levels": levels, "sigma": sigma, "engine": engine, **params}
    return case("prediction", label, inputs, **more)


STAGES = (
    Stage(
        "prediction",
        "What a network is shown and told at a noise level, and its answer as the picture that it believes in.",
        inputs={
            "x": "[N, C, H, W]",
            "answer": "[N, C, H, W]: the network's; [N, C, H + R, W] if there is a picture to edit",
            "extra?": "[N, E, H, W]: the mask and the masked picture, or the picture to edit, behind x",
            "reference?": "[N, C, R, W]: of the picture to edit, whose tokens follow those of x, as rows here",
        },
        params={
            "prediction": REQUIRED,
            "levels": REQUIRED,
            "sigma": REQUIRED,
            "engine": "k-diffusion",
            "shift": 3.0,
            "tokens": 4096,
            "steps": 20,
            "time": None,
        },
        outputs={
            "shown": Output(_IMAGE, magnitude, 8),
            "control": Output(_IMAGE, magnitude, 8),
            "t": Output(("item",), timestep_size, 1200),
            "denoised": Output(_IMAGE, _size, 12),
            # as the next call sees it
            "reference": Output(_IMAGE, magnitude, 1),
        },
        rule=RULE,
        choices={"prediction": _PREDICTIONS},
        run=_run,
        known=(
            *(
                part(f"read as {name}", prediction=lambda name, other=other: other)
                for name, other in (
                    ("eps", EPS),
                    ("v", V),
                    ("x0", X0),
                    ("flow", FLOW),
                    ("data - noise", TO_DATA),
                    ("EDM of sigma_data 1", edm(1.0)),
                    ("EDM of sigma_data 0.5", edm(0.5)),
                )
            ),
            part("answer of the other sign", prediction=_with(lambda s, skip, out, into: (skip, -out, into))),
            part("x left out", prediction=_with(lambda s, skip, out, into: (0.0, out, into))),
            part("x whole", prediction=_with(lambda s, skip, out, into: (1.0, out, into))),
            part("the answer times sigma once more", prediction=_with(lambda s, a, b, c: (a, s * b, c))),
            part("the answer not scaled", prediction=_with(lambda s, a, b, c: (a, b / abs(b), c))),
            part("c_in 1 / (sigma^2 + 1)", prediction=_with(lambda s, a, b, c: (a, b, c * c))),
            part("x not scaled for the network", shown=lambda x, c_in: x),
            part(
                "the mask and the masked picture scaled together with x",
                joined=lambda shown, extra, c_in: _joined(shown, extra * c_in, c_in),
            ),
            part("the mask and the masked picture before x", joined=lambda x, extra, c_in: _joined(extra, x, c_in)),
            part(
                "the masked picture before the mask",
                joined=lambda x, extra, c_in: _joined(x, np.roll(extra, -1, 1), c_in),
            ),
            part("the picture to edit before x", followed=lambda shown, reference: _followed(reference, shown)),
            part("the picture to edit is not shown", followed=lambda shown, reference: shown),
            part("the answer for the picture to edit is read", own=lambda answer, rows: answer[:, :, -rows:]),
            part("the picture to edit is denoised, too", kept=lambda reference, denoised: denoised),
            part("x divided by c_in", shown=lambda x, c_in: x / c_in),
            part("x not scaled for the ControlNet", control=lambda x, c_in: x),
            part("scaled x read back", read=_scaled),
            part("timestep one too high", to_t=lambda levels, sigma: levels.to_t(sigma) + 1),
            part("timestep one too low", to_t=lambda levels, sigma: levels.to_t(sigma) - 1),
            part("sigma for the timestep", to_t=lambda levels, sigma: sigma),
            part("1 - t", to_t=lambda levels, sigma: 1 - levels.to_t(sigma)),
            part("t of 0 to 1000", to_t=lambda levels, sigma: 1000 * levels.to_t(sigma)),
            part("t of 0 to 1", to_t=lambda levels, sigma: levels.to_t(sigma) / 1000),
            part("ln sigma, not a quarter of it", to_t=lambda levels, sigma: 4 * levels.to_t(sigma)),
            param("EDM's levels taken for Stable Diffusion's", levels=lambda levels: "sd"),
        ),
        cases=(
            _case("eps-high", "eps", "sd", 9.7),
            _case("eps-low-nearest", "eps", "sd", 0.31, "comfyui"),
            _case("v", "v", "sd", 3.3),
            _case("v-zero-snr", "v", "sd-zero-snr", 120.0, "diffusers"),
            _case("x0", "x0", "sd", 2.2),
            _case("eps-inpaint", "eps", "sd", 5.7, "diffusers", extra=5),
            _case("flow", "flow", "flow", 0.73),
            # FLUX.1 Kontext, FLUX.2, Qwen-Image Edit: clean latents beside noisy ones.
            _case("flow-reference", "flow", "flow", 0.81, reference=6),
            _case("flow-low", "flow", "flow", 0.0625, "comfyui"),
            _case("flux", "flow", "flux", 0.61, tokens=1024),
            _case("edm-v", "v", "edm", 5.5),
            _case("edm", "edm", "edm", 0.7),
            _case("to-data", "to-data", "flow", 0.4),
        ),
    ),
)
