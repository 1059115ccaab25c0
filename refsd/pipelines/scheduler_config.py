"""Read a diffusers folder's scheduler_config.json: prediction type, noise levels, flow shift, timesteps.

Each sampler reads the file as its class in diffusers does with from_config. Options that refsd does not support
are refused.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions.sampling import in_range_of
from refsd.files.json_files import read_json
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.samplers.betas import BETAS
from refsd.samplers.levels import SD_LEVELS, DiscreteLevels, Levels, nearest_t, training_sigmas, zero_terminal_snr
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import TERMINAL
from refsd.samplers.schedules.timesteps import leading, leading_multistep, linspace, linspace_multistep, trailing
from refsd.weights import Checkpoint

_MAX_STEPS = 100_000
# Replaces alphas_cumprod 0, so that the largest sigma is 4096. Source: diffusers EulerDiscreteScheduler.
_ALMOST_NO_SIGNAL = 2.0**-24
_PREDICTIONS = {"epsilon": "eps", "v_prediction": "v"}


# (n, levels, steps_offset) -> [n + 1] sigmas.
Spacing = Callable[[int, Levels, int], np.ndarray]


def _linspace_rounded(n: int, levels: Levels, offset: int) -> np.ndarray:
    """Space timesteps linearly and round them to integers. Source: diffusers DDIMScheduler.set_timesteps."""
    t = np.rint(np.linspace(0, len(levels.sigmas) - 1, n)[::-1]).astype(int)
    return np.append(levels.sigmas[t], 0.0)


class SchedulerClass(NamedTuple):
    """How one of diffusers' schedulers computes its timesteps.

    spacing:       its default timestep_spacing
    spacings:      timestep_spacing -> sigmas
    integers:      True if its timesteps are integers
    ranges:        range of use_karras_sigmas and similar flags: "spacing": the range of its spacing's sigmas,
                   "levels": the range of the model's; None: it ignores these flags
    unit_variance: True if its latents are x / sqrt(sigma^2 + 1)
    alpha_to_one:  default of set_alpha_to_one; None: it ignores this key
    fixed:         keys that it reads -> the only value that refsd supports
    defaults:      defaults of these keys that differ from the supported value
    """

    spacing: str
    spacings: Mapping[str, Spacing]
    integers: bool = False
    ranges: str | None = None
    unit_variance: bool = False
    alpha_to_one: bool | None = None
    fixed: Mapping[str, Any] = {}
    defaults: Mapping[str, Any] = {}


_FLAGS = {
    "use_karras_sigmas": "karras",
    "use_exponential_sigmas": "exponential",
    "use_beta_sigmas": "beta_of_sigma",
}
_LINSPACE: Spacing = lambda n, levels, offset: linspace(n, levels)
_TRAILING: Spacing = lambda n, levels, offset: trailing(n, levels)
_EULER_ANCESTRAL = SchedulerClass("linspace", {"linspace": _LINSPACE, "leading": leading, "trailing": _TRAILING})
_K_DIFFUSION = _EULER_ANCESTRAL._replace(ranges="spacing")
_EULER = _K_DIFFUSION._replace(
    fixed={"interpolation_type": "linear", "final_sigmas_type": "zero", "sigma_min": None, "sigma_max": None}
)
_MULTISTEP = SchedulerClass(
    "linspace",
    {
        "linspace": lambda n, levels, offset: linspace_multistep(n, levels),
        "leading": leading_multistep,
        "trailing": _TRAILING,
    },
    integers=True,
    ranges="levels",
    unit_variance=True,
    fixed={
        "final_sigmas_type": "zero",
        "thresholding": False,
        "use_flow_sigmas": False,
        "use_lu_lambdas": False,
        "lambda_min_clipped": -float("inf"),
    },
)
_DDIM = SchedulerClass(
    "leading",
    {"linspace": _linspace_rounded, "leading": leading, "trailing": _TRAILING},
    integers=True,
    unit_variance=True,
    alpha_to_one=True,
    fixed={"clip_sample": False, "thresholding": False},
    defaults={"clip_sample": True},
)
_PNDM = _DDIM._replace(alpha_to_one=False, fixed={"skip_prk_steps": True}, defaults={"skip_prk_steps": False})
# Sampler -> its scheduler in diffusers; other samplers count as k-diffusion's and are read like Heun's.
_CLASSES = {
    "euler": _EULER,
    "euler_a": _EULER_ANCESTRAL,
    "ddim_strided": _DDIM,
    "pndm": _PNDM,
    "pndm_v": _PNDM,
    **dict.fromkeys(("dpm++2m", "dpm++2m_sde", "dpm++2m_sde_heun", "dpm++3m_sde"), _MULTISTEP),
    **dict.fromkeys(("uni_pc", "uni_pc_bh2"), _MULTISTEP),
}
# _class_name -> default sampler.
_SAMPLERS = {
    "EulerDiscreteScheduler": "euler",
    "EulerAncestralDiscreteScheduler": "euler_a",
    "HeunDiscreteScheduler": "heun",
    "DDIMScheduler": "ddim_strided",
    "PNDMScheduler": "pndm",
    "DPMSolverMultistepScheduler": "dpm++2m",
}
_DPMPP_2M = {"algorithm_type": "dpmsolver++", "solver_order": 2, "solver_type": "midpoint"}
# Keys of a flow's scheduler that must be false, unless the user names a schedule.
_FLOW_ONLY_FALSE = (*_FLAGS, "invert_sigmas", "stochastic_sampling")


class ConfiguredSchedule(NamedTuple):
    """The schedule that a scheduler_config.json defines.

    name:       spacing, and the flag that replaces its sigmas
    sigmas:     [n + 1], falling; the last is 0, or the lowest noise level if set_alpha_to_one is false
    timesteps:  [n], the network's inputs
    unit_noise: True if the initial latents have variance sigma_0^2 + 1 (noise plus unit data), False if sigma_0^2
    """

    name: str
    sigmas: np.ndarray
    timesteps: np.ndarray
    unit_noise: bool


class ScheduledLevels(DiscreteLevels):
    """A model's noise levels that return the schedule's own timesteps at its sigmas."""

    def __init__(self, sigmas: np.ndarray, schedule: ConfiguredSchedule):
        super().__init__(sigmas)
        self._timesteps = dict(zip(schedule.sigmas.tolist(), schedule.timesteps.tolist(), strict=False))

    def to_t(self, sigma: float) -> float:
        return self._timesteps.get(float(sigma), super().to_t(sigma))


class SchedulerConfig(NamedTuple):
    path: Path
    values: dict[str, Any]

    def prediction(self) -> str:
        """Return a key of prediction.PREDICTIONS. Raises BadInput for an EDM model or another prediction type."""
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
        """Return a flow's shift; None if it depends on the size or is not set."""
        shift = self.values.get("shift")
        if self.values.get("use_dynamic_shifting") or not isinstance(shift, int | float):
            return None
        return float(shift) if 0 < shift < 1000 else None

    def sampler(self) -> str | None:
        """Return the sampler of its class; None for an unknown class. Raises BadInput for unsupported options."""
        name = _SAMPLERS.get(str(self.values.get("_class_name")))
        if name == "dpm++2m":
            self._check(_DPMPP_2M, advice="name a sampler with --sampling-method")
        return "pndm_v" if name == "pndm" and self.prediction() == "v" else name

    def schedule(self, sampler: str, n: int, levels: DiscreteLevels, corrected: bool) -> ConfiguredSchedule:
        """Return a schedule of n steps, as the sampler's class in diffusers computes it.

        corrected: True if the pipeline sets steps_offset to 1 and clip_sample to False
        Raises BadInput for an unsupported option, or more steps than timesteps.
        """
        of = _CLASSES.get(sampler, _K_DIFFUSION)
        self._check({k: v for k, v in of.fixed.items() if not (corrected and k == "clip_sample")}, of.defaults)
        spacing = self.values.get("timestep_spacing", of.spacing)
        if spacing not in of.spacings:
            raise BadInput(
                f"{self.path}: timestep_spacing is {ascii(spacing)[:40]}; expected one of {', '.join(of.spacings)}"
            )
        offset = 1 if corrected else self.values.get("steps_offset", 0)
        T = len(levels.sigmas)
        if type(offset) is not int or not 0 <= offset < T:
            raise BadInput(f"{self.path}: steps_offset is {ascii(offset)[:40]}; expected 0 to {T - 1}")
        if n > T:
            raise BadInput(f"--steps {n}: {self.path} has {T} timesteps")
        spaced: Callable[[int, Levels], np.ndarray] = lambda n, levels: of.spacings[spacing](n, levels, offset)
        flags = [flag for flag in _FLAGS if of.ranges and self.values.get(flag)]
        if len(flags) > 1:
            raise BadInput(f"{self.path}: {' and '.join(flags)} are set; expected one of them")
        if not flags:
            sigmas = spaced(n, levels)
            timesteps = _timesteps(sigmas[:-1], levels, of.integers)
        else:
            rule = SCHEDULES[_FLAGS[flags[0]]]
            sigmas = (in_range_of(spaced, rule) if of.ranges == "spacing" else rule)(n, levels)
            timesteps = _interpolated_timesteps(sigmas[:-1], levels)
            if of.integers:
                rounds = flags[0] == "use_karras_sigmas" and self.values.get("beta_schedule") != "squaredcos_cap_v2"
                # Round away the last bits first, so that 9.9999999999 becomes 10.
                timesteps = np.rint(timesteps) if rounds else np.floor(np.round(timesteps, 9))
        if of.alpha_to_one is not None:
            if not self.values.get("set_alpha_to_one", of.alpha_to_one):
                sigmas[-1] = levels.sigmas[0]
            if self.values.get("rescale_betas_zero_snr") and sigmas[0] == levels.sigmas[-1]:
                raise BadInput(
                    f"{self.path}: with rescale_betas_zero_snr {sampler} starts at timestep {T - 1}, where sigma "
                    "is infinite: say --sampling-method euler"
                )
        name = "_".join([spacing, *(_FLAGS[flag] for flag in flags)])
        return ConfiguredSchedule(name, sigmas, timesteps, of.unit_variance or spacing == "leading")

    def check_flow(self, schedule: str) -> None:
        """Raise BadInput for options of a rectified flow's timesteps that the family's schedule does not have."""
        terminal = TERMINAL if schedule == "flow_terminal" else None
        fixed = {**dict.fromkeys(_FLOW_ONLY_FALSE, False), "shift_terminal": terminal}
        self._check(fixed, {"shift_terminal": None})

    def _check(
        self, fixed: Mapping[str, Any], defaults: Mapping[str, Any] = {}, advice: str = "say --scheduler"
    ) -> None:
        for key, only in fixed.items():
            value = self.values.get(key, defaults.get(key, only))
            if value != only and not (value is None and not only):
                raise BadInput(f"{self.path}: {key} is {ascii(value)[:40]}, which refsd does not sample: {advice}")

    def levels(self) -> DiscreteLevels:
        """Return the noise levels of its betas, or SD_LEVELS itself if equal. Raises BadInput for invalid betas."""
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
    """Read the scheduler's config; None if the checkpoint is no diffusers folder or has no scheduler."""
    path = checkpoint.path / "scheduler" / "scheduler_config.json"
    return SchedulerConfig(path, read_json(path)) if path.is_file() else None


def sample_sigmas(checkpoint: Checkpoint) -> tuple[float, ...]:
    """Return the noise levels that a folder names for a flow's steps, before their shift; (): it names none.

    Source: diffusers QwenImage21Pipeline, whose Turbo has them.
    """
    path = checkpoint.path / "model_index.json"
    sigmas = read_json(path).get("sample_sigmas") if path.is_file() else None
    if sigmas is None:
        return ()
    listed = isinstance(sigmas, list) and 0 < len(sigmas) <= _MAX_STEPS and all(map(_is_level, sigmas))
    if not listed or any(a <= b for a, b in itertools.pairwise(sigmas)):
        raise BadInput(f"{path}: sample_sigmas is {ascii(sigmas)[:60]}; expected falling numbers from 1 to above 0")
    return tuple(map(float, sigmas))


def _is_level(number: Any) -> bool:
    return type(number) in (int, float) and 0 < number <= 1


def _is_share(number: Any) -> bool:
    return isinstance(number, int | float) and 0 < number < 1


def _timesteps(sigmas: np.ndarray, levels: Levels, integers: bool) -> np.ndarray:
    """Return the timesteps of sigmas: the nearest level's, or interpolated linearly in sigma between levels."""
    if integers:
        return nearest_t(sigmas, levels.sigmas).astype(np.float64)
    return np.interp(sigmas, levels.sigmas, np.arange(len(levels.sigmas)))


def _interpolated_timesteps(sigmas: np.ndarray, levels: Levels) -> np.ndarray:
    """Interpolate timesteps in log sigma, in diffusers' order of operations, because some are then cut to integers.

    Source: diffusers EulerDiscreteScheduler._sigma_to_t.
    """
    log, logs = np.log(sigmas), np.log(levels.sigmas)
    low = np.clip(np.searchsorted(logs, log, side="right") - 1, 0, len(logs) - 2)
    w = np.clip((logs[low] - log) / (logs[low] - logs[low + 1]), 0, 1)
    return (1 - w) * low + w * (low + 1)
