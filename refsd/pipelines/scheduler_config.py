"""A diffusers folder's scheduler_config.json: prediction type, noise levels, flow shift."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.samplers.betas import BETAS
from refsd.samplers.levels import SD_LEVELS, DiscreteLevels, training_sigmas, zero_terminal_snr
from refsd.weights import Checkpoint
from refsd.weights.files import read_json

_MAX_STEPS = 100_000
# alphas_cumprod in place of 0, so that the largest sigma is finite: 4096. Source: diffusers EulerDiscreteScheduler.
_ALMOST_NO_SIGNAL = 2.0**-24
_PREDICTIONS = {"epsilon": "eps", "v_prediction": "v"}


class SchedulerConfig(NamedTuple):
    path: Path
    values: dict[str, Any]

    def prediction(self) -> str:
        """Key of prediction.PREDICTIONS. Raises BadInput for an EDM model or another prediction type."""
        kind = self.values.get("_class_name", "")
        if str(kind).startswith("EDM") or self.values.get("timestep_type") == "continuous":
            raise BadInput(
                f"{self.path}: the scheduler of an EDM model ({ascii(kind)[:60]}), of which refsd reads no "
                "settings; if it predicts v with sigma_data 1, as CosXL does, say --prediction edm_v"
            )
        word = self.values.get("prediction_type", "epsilon")
        if word not in _PREDICTIONS:
            raise BadInput(
                f"{self.path}: prediction_type is {ascii(word)[:40]}; expected {' or '.join(_PREDICTIONS)}; "
                "say --prediction"
            )
        return _PREDICTIONS[word]

    def shift(self) -> float | None:
        """A flow's shift; None where it depends on the size, or is not set."""
        shift = self.values.get("shift")
        if self.values.get("use_dynamic_shifting") or not isinstance(shift, int | float):
            return None
        return float(shift) if 0 < shift < 1000 else None

    def levels(self) -> DiscreteLevels:
        """The levels of its betas; SD_LEVELS itself where they are equal. Raises BadInput for other betas."""
        kept = np.cumprod(1.0 - self._betas())
        if self.values.get("rescale_betas_zero_snr"):
            kept = zero_terminal_snr(kept)
            kept[-1] = _ALMOST_NO_SIGNAL
        if kept[-1] < np.finfo(np.float64).tiny or not (np.diff(kept) < 0).all():
            raise BadInput(
                f"{self.path}: its betas leave {kept[-1]:g} of the signal: rising, finite sigmas expected"
            )
        sigmas = training_sigmas(kept)
        return SD_LEVELS if np.array_equal(sigmas, SD_LEVELS.sigmas) else DiscreteLevels(sigmas)

    def _betas(self) -> np.ndarray:
        path, config = self
        given = config.get("trained_betas")
        if given is not None:
            betas = given if isinstance(given, list) else []
            if not 2 <= len(betas) <= _MAX_STEPS or not all(_is_share(beta) for beta in betas):
                raise BadInput(f"{path}: trained_betas: expected 2 to {_MAX_STEPS} numbers between 0 and 1")
            return np.array(betas, np.float64)
        name = config.get("beta_schedule", "linear")
        if not isinstance(name, str) or name not in BETAS:
            meant = did_you_mean(name, BETAS) if isinstance(name, str) else ""
            raise BadInput(
                f"{path}: beta_schedule is {ascii(name)[:60]}{meant}; expected one of {', '.join(BETAS)}"
            )
        steps = config.get("num_train_timesteps", 1000)
        if type(steps) is not int or not 2 <= steps <= _MAX_STEPS:
            raise BadInput(f"{path}: num_train_timesteps is {ascii(steps)[:60]}; expected 2 to {_MAX_STEPS}")
        start, end = config.get("beta_start", 0.0001), config.get("beta_end", 0.02)
        if not _is_share(start) or not _is_share(end):
            found = f"{ascii(start)[:40]} to {ascii(end)[:40]}"
            raise BadInput(f"{path}: beta_start to beta_end is {found}; expected numbers between 0 and 1")
        return BETAS[name](steps, start, end)


def scheduler_config(checkpoint: Checkpoint) -> SchedulerConfig | None:
    """None where the checkpoint is no diffusers folder, or has no scheduler."""
    path = checkpoint.path / "scheduler" / "scheduler_config.json"
    return SchedulerConfig(path, read_json(path)) if path.is_file() else None


def _is_share(number: Any) -> bool:
    return isinstance(number, int | float) and 0 < number < 1
