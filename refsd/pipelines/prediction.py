"""Find what a UNet predicts, and at which noise levels: from the flag, the checkpoint, or a trial run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refsd.families import VARIANTS
from refsd.numerics.errors import BadInput
from refsd.pipelines.part import Part
from refsd.pipelines.trained_levels import scheduler_config
from refsd.samplers.levels import SD_LEVELS, EdmLevels, Levels
from refsd.samplers.parameterization import EPS, Prediction, V
from refsd.weights import Checkpoint
from refsd.weights.files import read_json

# sd-cli's --prediction -> what the answer means, the levels
PREDICTIONS: Mapping[str, tuple[Prediction, Levels]] = {
    "eps": (EPS, SD_LEVELS),
    "v": (V, SD_LEVELS),
    "edm_v": (V, EdmLevels()),
}
_DIFFUSERS = {"epsilon": "eps", "v_prediction": "v"}
# A tensor that stands in the file to say it. Source: stable-diffusion.cpp src/stable-diffusion.cpp.
_MARKS = {"edm_vpred.sigma_max": "edm_v", "v_pred": "v"}


def prediction_of(checkpoint: Checkpoint, unet: Part, said: str | None = None) -> str:
    """A key of PREDICTIONS: from the flag, the folder's scheduler, a mark in the file, or a trial run.

    Raises BadInput for another word, or for a scheduler of something that refsd does not sample.
    """
    if said is not None:
        if said not in PREDICTIONS:
            raise BadInput(f"--prediction {said}: expected one of {', '.join(PREDICTIONS)}")
        return said
    scheduler = scheduler_config(checkpoint)
    if scheduler is not None:
        return _of_scheduler(scheduler)
    for mark, name in _MARKS.items():
        if mark in checkpoint.extras:
            return name
    variant = VARIANTS.get(checkpoint.family.name) if checkpoint.family else None
    return "v" if variant is not None and variant.may_predict_v and _answers_v(unet) else "eps"


def _of_scheduler(path: Path) -> str:
    config = read_json(path)
    kind = config.get("_class_name", "")
    if str(kind).startswith("EDM") or config.get("timestep_type") == "continuous":
        raise BadInput(
            f"{path}: the scheduler of an EDM model ({ascii(kind)[:60]}), of which refsd reads no settings; if it "
            "predicts v with sigma_data 1, as CosXL does, say --prediction edm_v"
        )
    word = config.get("prediction_type", "epsilon")
    if word not in _DIFFUSERS:
        raise BadInput(
            f"{path}: prediction_type is {ascii(word)[:40]}; expected {' or '.join(_DIFFUSERS)}; say --prediction"
        )
    return _DIFFUSERS[word]


def _answers_v(unet: Part) -> bool:
    """Of noise alone, v is minus the picture: a network that predicts it answers far below its input.

    Source: stable-diffusion.cpp, is_using_v_parameterization_for_sd2: 8x8 constants of 0.5, t = 999, mean below -1.
    """
    C, E = unet.fits["C"].n, unet.fits["E"].n
    x = np.zeros((1, C, 8, 8))
    x[:, : unet.fits["K"].n] = 0.5
    inputs = {"x": x, "timesteps": np.array([999.0]), "context": np.full((1, 2, E), 0.5)}
    out = unet(inputs, "the trial of what the UNet predicts")["out"].astype(np.float64)
    return float((out - 0.5).mean()) < -1


def shift_of(checkpoint: Checkpoint) -> float | None:
    """The shift of a diffusers folder's scheduler, if that is one number for all sizes."""
    path = scheduler_config(checkpoint)
    if path is None:
        return None
    config = read_json(path)
    shift = config.get("shift")
    if config.get("use_dynamic_shifting") or not isinstance(shift, int | float):
        return None
    return float(shift) if 0 < shift < 1000 else None
