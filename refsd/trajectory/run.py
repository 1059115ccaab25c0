"""The reference's answer to a trajectory case, and what any engine's answer consists of."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.errors import BadInput
from refsd.pipelines import sampling
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES
from refsd.trajectory import model as analytic

OP = "trajectory"

Model = Callable[[np.ndarray, float], np.ndarray]


class Dump(NamedTuple):
    """
    sigmas:   [steps + 1], falling
    x:        [calls, N, C, H, W], what the model was shown
    denoised: [calls, N, C, H, W], what it answered, after guidance
    latent:   [N, C, H, W], the end
    """

    sigmas: np.ndarray
    x: np.ndarray
    denoised: np.ndarray
    latent: np.ndarray


def method_of(case: Case) -> sampling.Method:
    """Raises BadInput for a sampler that refsd does not have."""
    return sampling.method(case.params["sampler"], case.params.get("eta"))


def sigmas_of(case: Case) -> np.ndarray:
    """Raises BadInput for a schedule that refsd does not have, or not with these steps."""
    name = case.params["schedule"]
    if name not in SCHEDULES:
        raise BadInput(f"{case.name}: schedule {name!r}, expected one of {', '.join(SCHEDULES)}")
    try:
        return SCHEDULES[name](case.params["steps"], SD_LEVELS)
    except ValueError as error:
        raise BadInput(f"{case.name}: {error}") from None


def model_of(case: Case) -> Model:
    guidance = float(case.params["guidance"])
    return lambda x, sigma: analytic.denoised(x, sigma, guidance)


def trajectory(run: Callable[..., np.ndarray], sigmas: np.ndarray, model: Model, noise: np.ndarray) -> Dump:
    """Sample from noise[0] * sigmas[0]; the steps draw noise[1], noise[2], ... In the dtype of noise."""
    shown, answers, drawn = [], [], iter(noise[1:])

    def listening(x: np.ndarray, sigma: float) -> np.ndarray:
        shown.append(x.copy())
        answers.append(model(x, sigma))
        return answers[-1].copy()

    latent = run(listening, noise[0] * float(sigmas[0]), sigmas, lambda sigma, sigma_next: next(drawn), None)
    return Dump(np.array(sigmas), np.stack(shown), np.stack(answers), latent)


def answer(case: Case, inputs: Mapping[str, Any], dtype: np.dtype) -> dict[str, np.ndarray]:
    """The outputs of a trajectory case. Raises BadInput for one that cannot be."""
    missing = {"sampler", "schedule", "steps", "guidance"} - case.params.keys()
    if missing or inputs.keys() != {"noise"}:
        raise BadInput(
            f"{case.name}: expected the input noise, and params {', '.join(sorted(missing)) or 'as they are'}"
        )
    noise = inputs["noise"].values().astype(dtype)
    try:
        found = trajectory(method_of(case).run, sigmas_of(case), model_of(case), noise)
    except StopIteration:
        raise BadInput(f"{case.name}: {len(noise)} noises are too few for this sampler") from None
    return found._asdict()
