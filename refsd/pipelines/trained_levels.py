"""The noise levels that a diffusers folder's scheduler says its UNet was trained on."""

from pathlib import Path
from typing import Any

import numpy as np

from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.samplers.betas import BETAS
from refsd.samplers.levels import SD_LEVELS, DiscreteLevels, training_sigmas, zero_terminal_snr
from refsd.weights import Checkpoint
from refsd.weights.files import read_json

_MAX_STEPS = 100_000
# What stands for no signal at all, so that the largest sigma, 4096, is finite.
# Source: diffusers EulerDiscreteScheduler.
_ALMOST_NO_SIGNAL = 2.0**-24


def scheduler_config(checkpoint: Checkpoint) -> Path | None:
    path = checkpoint.path / "scheduler" / "scheduler_config.json"
    return path if path.is_file() else None


def trained_levels(checkpoint: Checkpoint, like: str) -> DiscreteLevels:
    """The levels of the folder's betas; Stable Diffusion's where no scheduler stands beside the UNet.

    Raises BadInput for betas that refsd cannot compute, and for any but Stable Diffusion's where the engine whose
    rules are followed knows no others.
    """
    path = scheduler_config(checkpoint)
    if path is None:
        return SD_LEVELS
    sigmas = _sigmas(path, read_json(path))
    if sigmas.shape == SD_LEVELS.sigmas.shape and np.array_equal(sigmas, SD_LEVELS.sigmas):
        return SD_LEVELS
    if like != "diffusers":
        raise BadInput(
            f"{path}: sigmas of {sigmas[0]:.6g} to {sigmas[-1]:.6g} in {len(sigmas)} steps; stable-diffusion.cpp "
            f"knows {SD_LEVELS.sigmas[0]:.6g} to {SD_LEVELS.sigmas[-1]:.6g} in 1000 only: say --like diffusers"
        )
    return DiscreteLevels(sigmas)


def _sigmas(path: Path, config: dict[str, Any]) -> np.ndarray:
    kept = np.cumprod(1.0 - _betas(path, config))
    if config.get("rescale_betas_zero_snr"):
        kept = zero_terminal_snr(kept)
        kept[-1] = _ALMOST_NO_SIGNAL
    if kept[-1] < np.finfo(np.float64).tiny or not (np.diff(kept) < 0).all():
        raise BadInput(f"{path}: its betas leave {kept[-1]:g} of the signal: rising, finite sigmas expected")
    return training_sigmas(kept)


def _betas(path: Path, config: dict[str, Any]) -> np.ndarray:
    """As diffusers reads them, its defaults in place of what is left out."""
    given = config.get("trained_betas")
    if given is not None:
        betas = given if isinstance(given, list) else []
        if not 2 <= len(betas) <= _MAX_STEPS or not all(_is_share(beta) for beta in betas):
            raise BadInput(f"{path}: trained_betas: expected 2 to {_MAX_STEPS} numbers between 0 and 1")
        return np.array(betas, np.float64)
    name = config.get("beta_schedule", "linear")
    if not isinstance(name, str) or name not in BETAS:
        meant = did_you_mean(name, BETAS) if isinstance(name, str) else ""
        raise BadInput(f"{path}: beta_schedule is {ascii(name)[:60]}{meant}; expected one of {', '.join(BETAS)}")
    steps = config.get("num_train_timesteps", 1000)
    if type(steps) is not int or not 2 <= steps <= _MAX_STEPS:
        raise BadInput(f"{path}: num_train_timesteps is {ascii(steps)[:60]}; expected 2 to {_MAX_STEPS}")
    start, end = config.get("beta_start", 0.0001), config.get("beta_end", 0.02)
    if not _is_share(start) or not _is_share(end):
        found = f"{ascii(start)[:40]} to {ascii(end)[:40]}"
        raise BadInput(f"{path}: beta_start to beta_end is {found}; expected numbers between 0 and 1")
    return BETAS[name](steps, start, end)


def _is_share(number: Any) -> bool:
    return isinstance(number, int | float) and 0 < number < 1
