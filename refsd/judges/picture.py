"""Judge cases of whole pictures: a prompt and settings, answered with the picture's bytes.

The parameters are those of refsd.pipelines.settings.Settings (one picture, no input pictures), and:

    first_noise   an engine of refsd.conventions.CARDS: scale a UNet's first noise as this engine does
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from refsd.conventions import CARDS
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles
from refsd.golden.explanation import Explanation
from refsd.golden.judge import Answer, Inputs, Judge, Mutant, Standard
from refsd.golden.metrics import Metrics, measure, not_asked_for
from refsd.golden.rounding import Bound
from refsd.golden.search_cuts import TimeLimit
from refsd.golden.verdict import judge
from refsd.golden.wording import did_you_mean
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import memory, one_answer
from refsd.numerics.profiles import FLOAT32, Numerics
from refsd.pipelines import txt2img
from refsd.pipelines.pipeline import Pipeline, open_pipeline
from refsd.pipelines.plan import Plan, resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights.checkpoint import Checkpoint, open_checkpoint

OP = "picture"
PIXELS = "pixels"
FIRST_NOISE, DEFAULT_NOISE = "first_noise", "sdcpp"
Params = dict[str, Any]

# Settings that a picture case may have; all others need a file, or draw more than one picture.
SETTINGS = (
    *("prompt", "negative_prompt", "width", "height", "steps", "cfg_scale", "sampler", "schedule", "rng"),
    *("clip_skip", "eta", "sigmas", "seed"),
)
# Seconds for trying known bugs; each trial draws a picture, by all threads.
_SEARCH = 240.0
# Half a level, and a little for float32 arithmetic in the conversion to bytes.
_BYTE = 0.5 + 2**-10


class PictureJudge(Judge):
    """Judges pictures. Truth and honest run stay unrounded; a byte is off by half a level at most.

    model_files: model recipe, layout -> file of its weights; without it, cases that need a model are refused
    """

    def __init__(self, model_files: ModelFiles | None = None):
        self._model_files = model_files
        self._opened: tuple[ModelRecipe, Checkpoint] | None = None

    def takes(self, op: str) -> bool:
        return op == OP

    def what(self, case: Case) -> str:
        return "a picture"

    def refuses(self, case: Case, numerics: Numerics) -> str | None:
        return "no model files" if case.model is None or self._model_files is None else None

    def complete(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        settings_of(case.params)
        return case.params

    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        return self._drawn(case.model, case.params, arithmetic)

    def measure(self, standard: Standard, actual: Answer) -> list[Metrics]:
        measured = _measured(actual.get(PIXELS), standard.truth[PIXELS], standard.honest[PIXELS])
        return [measured, *not_asked_for(actual, standard.truth)]

    def limits(self, standard: Standard) -> Answer:
        truth, honest = standard.truth[PIXELS], standard.honest[PIXELS]
        return {PIXELS: _bound(truth, honest).limit}

    def mutants(self, case: Case) -> Sequence[Mutant[Params]]:
        own = {FIRST_NOISE: DEFAULT_NOISE, **case.params}
        return [
            mutant for mutant in MUTANTS if any(own.get(name) != value for name, value in mutant.change.items())
        ]

    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant[Params]) -> Answer | None:
        return self._drawn(case.model, {**case.params, **mutant.change}, Arithmetic(FLOAT32))

    def explain(self, standard: Standard, actual: Answer, tap: str = "") -> Explanation:
        return Explanation(self._causes(standard, actual))

    def _causes(self, standard: Standard, actual: Answer) -> list[str]:
        """Return the first known bug with which the reference reproduces the picture."""
        case = standard.case
        y = actual.get(PIXELS)
        if y is None or y.shape != standard.truth[PIXELS].shape:
            return []
        for name, wrong in _TURNED.items():
            if _agrees(y, wrong(standard.truth[PIXELS]), wrong(standard.honest[PIXELS])):
                return [name]
        for mutant in TimeLimit(_SEARCH, time.monotonic).within(self.mutants(case)):
            right = self._drawn(case.model, {**case.params, **mutant.change}, Arithmetic(FLOAT32))[PIXELS]
            # To save a second drawing, take the rounding errors of the honest run without the bug.
            near = np.clip(right + standard.honest[PIXELS] - standard.truth[PIXELS], 0, 255)
            if _agrees(y, right, near):
                return [mutant.name]
        return []

    def _drawn(self, model: ModelRecipe | None, params: Params, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        assert model is not None and self._model_files is not None
        if self._opened is None or self._opened[0] != model:
            self._opened = model, open_checkpoint(self._model_files(model, "ldm"))
        settings, first_noise = settings_of(params)
        with one_answer(arithmetic.numerics):
            pipe = open_pipeline(self._opened[1], Tokenizers(), arithmetic, memory() // 8)
            plan = _scaled(resolve(pipe, settings), first_noise)
            return {PIXELS: _pixels(pipe, plan)}


def _measured(actual: np.ndarray | None, truth: np.ndarray, honest: np.ndarray) -> Metrics:
    return measure(PIXELS, actual, truth, honest, _bound(truth, honest), -1)


def _bound(truth: np.ndarray, honest: np.ndarray) -> Bound:
    """Half a level for the byte, plus 4 times the honest run's largest error: engines sum in other orders."""
    error = honest - truth
    limit = _BYTE + 4 * float(np.abs(error).max())
    spread = math.sqrt(1 / 12 + float(np.mean(error**2)))
    return Bound(np.full(truth.shape, limit), np.full(truth.shape, spread))


def _agrees(actual: np.ndarray, truth: np.ndarray, honest: np.ndarray) -> bool:
    return judge([_measured(actual, truth, honest)]).passed


def settings_of(params: Params) -> tuple[Settings, str]:
    """Read a case's parameters. -> settings, engine whose first noise is used. Raises BadInput."""
    for name in params:
        if name not in (*SETTINGS, FIRST_NOISE):
            raise BadInput(
                f"picture: no setting {name!r}{did_you_mean(name, SETTINGS)}: there are {', '.join(SETTINGS)}"
            )
    if not isinstance(params.get("prompt"), str):
        raise BadInput("picture: expected a prompt")
    given = {name: value for name, value in params.items() if name in SETTINGS}
    if given.get("sigmas") is not None:
        given["sigmas"] = tuple(map(float, given["sigmas"]))
    engine = params.get(FIRST_NOISE, DEFAULT_NOISE)
    if engine not in CARDS:
        raise BadInput(f"picture: first_noise {engine!r}{did_you_mean(engine, CARDS)}: expected {', '.join(CARDS)}")
    return Settings(**given), engine


def _scaled(plan: Plan, engine: str) -> Plan:
    if plan.prediction is None:
        return plan
    first = CARDS[engine].first(float(plan.sigmas[0]), float(plan.levels.sigmas[-1]))
    return replace(plan, first_noise=first)


def _pixels(pipe: Pipeline, plan: Plan) -> np.ndarray:
    """Draw the plan's first picture. -> [H, W, 3], 0..255, float64, not rounded"""
    latent = txt2img.sample(pipe, plan, txt2img.encode(pipe, plan), plan.seeds[0])
    image = np.asarray(txt2img.decode(pipe, latent), np.float64)
    return np.clip((image[0] + 1) * 127.5, 0, 255).transpose(1, 2, 0)


# Bugs that change a picture after it is drawn.
_TURNED = {
    "blue before red": lambda y: y[..., ::-1],
    "rows from the bottom up": lambda y: y[::-1],
    "columns from the right": lambda y: y[:, ::-1],
    "of range 0 to 1 taken for -1 to 1": lambda y: np.clip(y * 2 - 255, 0, 255),
}
# The likeliest first.
MUTANTS = (
    Mutant("the noise of torch's CPU generator (rng cpu)", {"rng": "cpu"}),
    Mutant("the noise of torch's GPU generator (rng cuda)", {"rng": "cuda"}),
    Mutant("the first noise scaled by sqrt(sigma^2 + 1)", {FIRST_NOISE: "comfyui"}),
    Mutant("the first noise scaled by sigma", {FIRST_NOISE: DEFAULT_NOISE}),
    Mutant("the negative prompt is not read", {"negative_prompt": ""}),
    Mutant("no guidance (cfg 1)", {"cfg_scale": 1.0}),
    Mutant("guidance 7", {"cfg_scale": 7.0}),
    Mutant("CLIP's last layer skipped (clip_skip 2)", {"clip_skip": 2}),
    Mutant("the sampler euler", {"sampler": "euler"}),
    Mutant("the sampler euler_a", {"sampler": "euler_a"}),
    Mutant("the sampler heun", {"sampler": "heun"}),
    Mutant("the sampler dpm++2m", {"sampler": "dpm++2m"}),
    Mutant("the schedule discrete", {"schedule": "discrete", "sigmas": None}),
    Mutant("the schedule karras", {"schedule": "karras", "sigmas": None}),
    Mutant("the schedule sgm_uniform", {"schedule": "sgm_uniform", "sigmas": None}),
    Mutant("the schedule simple", {"schedule": "simple", "sigmas": None}),
    Mutant("seed 0", {"seed": 0}),
    Mutant("another prompt: none", {"prompt": ""}),
)
