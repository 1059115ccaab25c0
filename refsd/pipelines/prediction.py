"""Find what a UNet predicts: from the flag, the folder's scheduler, the file, or a trial run."""

import warnings
from collections.abc import Mapping

import numpy as np

from refsd.families import VARIANTS
from refsd.numerics.errors import BadInput
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.scheduler_config import SchedulerConfig
from refsd.samplers.levels import SD_LEVELS, EdmLevels, Levels
from refsd.samplers.parameterization import EPS, Prediction, V
from refsd.weights import Checkpoint
from refsd.weights.checkpoint import PREDICTION_KEY

# Value of --prediction -> (what the network predicts, noise levels).
PREDICTIONS: Mapping[str, tuple[Prediction, Levels]] = {
    "eps": (EPS, SD_LEVELS),
    "v": (V, SD_LEVELS),
    "edm_v": (V, EdmLevels()),
}


def prediction_of(
    checkpoint: Checkpoint, scheduler: SchedulerConfig | None, unet: LoadedComponent, flag: str | None = None
) -> str:
    """Return a key of PREDICTIONS. Raises BadInput for an unknown --prediction or an unsupported scheduler."""
    if flag is not None:
        if flag not in PREDICTIONS:
            raise BadInput(f"--prediction {flag}: expected one of {', '.join(PREDICTIONS)}")
        return flag
    if scheduler is not None:
        return scheduler.prediction()
    if checkpoint.marked_prediction is not None:
        return checkpoint.marked_prediction
    if (specified := checkpoint.specified_prediction) is not None:
        if specified == "v":
            warnings.warn(
                f"{checkpoint.path}: predicts v by its metadata ({PREDICTION_KEY}), not by the key v_pred: engines "
                "that read the key alone take it for eps",
                stacklevel=2,
            )
        return specified
    variant = VARIANTS.get(checkpoint.family.name) if checkpoint.family else None
    return "v" if variant is not None and variant.may_predict_v and _predicts_v(unet) else "eps"


def _predicts_v(unet: LoadedComponent) -> bool:
    """Run the network once on noise alone, where v is minus the picture: the output is then far below the input.

    Source: stable-diffusion.cpp, is_using_v_parameterization_for_sd2: 8x8 constants of 0.5, t = 999, mean below -1.
    """
    C, E = unet.fits["C"].n, unet.fits["E"].n
    x = np.zeros((1, C, 8, 8))
    x[:, : unet.fits["K"].n] = 0.5
    inputs = {"x": x, "timesteps": np.array([999.0]), "context": np.full((1, 2, E), 0.5)}
    out = unet(inputs, "the trial of what the UNet predicts")["out"].astype(np.float64)
    return float((out - 0.5).mean()) < -1
