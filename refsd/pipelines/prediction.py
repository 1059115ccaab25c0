"""What a UNet predicts, and the noise levels it knows: said, or written beside it, or tried out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refsd.golden.errors import BadInput
from refsd.pipelines.part import Part
from refsd.samplers.levels import SD_LEVELS, EdmLevels, Levels
from refsd.samplers.parameterization import EPS, Prediction, V
from refsd.weights import Checkpoint

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
    """A key of PREDICTIONS: as said, as the folder's scheduler or a mark in the file has it, else as it behaves.

    Raises BadInput for another word, or for a scheduler of something that refsd does not sample.
    """
    if said is not None:
        if said not in PREDICTIONS:
            raise BadInput(f"--prediction {said}: expected one of {', '.join(PREDICTIONS)}")
        return said
    scheduler = checkpoint.path / "scheduler" / "scheduler_config.json"
    if scheduler.is_file():
        return _of_scheduler(scheduler)
    for mark, name in _MARKS.items():
        if mark in checkpoint.extras:
            return name
    family = checkpoint.family.name if checkpoint.family else ""
    return "v" if family.startswith("sd2") and _answers_v(unet) else "eps"


def _of_scheduler(path: Path) -> str:
    word = _json(path).get("prediction_type", "epsilon")
    if word not in _DIFFUSERS:
        raise BadInput(
            f"{path}: prediction_type is {ascii(word)[:40]}; expected {' or '.join(_DIFFUSERS)}; say --prediction"
        )
    return _DIFFUSERS[word]


def _json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: no JSON: {str(error)[:120]}") from None
    if not isinstance(config, dict):
        raise BadInput(f"{path}: a JSON object expected, found another value")
    return config


def _answers_v(unet: Part) -> bool:
    """Of noise alone, v is minus the picture: a network that predicts it answers far below its input.

    Source: stable-diffusion.cpp, is_using_v_parameterization_for_sd2: constants of 0.5, t = 999, mean below -1.
    """
    C, side, E = unet.fits["C"].n, unet.fits["H"].n, unet.fits["E"].n
    x = np.zeros((1, C, side, side))
    x[:, : unet.fits["K"].n] = 0.5
    inputs = {"x": x, "timesteps": np.array([999.0]), "context": np.full((1, 2, E), 0.5)}
    out = unet(inputs, "the trial of what the UNet predicts")["out"].astype(np.float64)
    return float((out - 0.5).mean()) < -1


def shift_of(checkpoint: Checkpoint) -> float | None:
    """The shift of a diffusers folder's scheduler, if that is one number for all sizes."""
    path = checkpoint.path / "scheduler" / "scheduler_config.json"
    if not path.is_file():
        return None
    config = _json(path)
    shift = config.get("shift")
    if config.get("use_dynamic_shifting") or not isinstance(shift, int | float):
        return None
    return float(shift) if 0 < shift < 1000 else None
