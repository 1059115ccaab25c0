"""Compare a recorded run of stable-diffusion.cpp with refsd's sampler, one UNet call at a time.

Each call is predicted from the program's own earlier latents and outputs, so that errors do not add up.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sdcpp_float32 import DEVIATIONS, float32_sigmas
from sdcpp_float32 import sizes as terms_sizes

from refsd.engines.sdcpp.tap import Graph
from refsd.golden.rounding import gamma
from refsd.models.vae.latents import LATENT_SCALES
from refsd.pipelines import sampling
from refsd.samplers.guidance import guide
from refsd.samplers.levels import DiscreteLevels
from refsd.samplers.noise import RNGS
from refsd.samplers.schedules import SCHEDULES
from refsd.trajectory.forms import Solver, forms, sensitivities
from refsd.trajectory.measure import forced
from refsd.trajectory.run import Dump

_U = 2.0**-24


class SamplerRun(NamedTuple):
    """The sampling settings of a run, under stable-diffusion.cpp's names. eta: None: the program's default"""

    sampler: str
    schedule: str
    steps: int
    width: int = 64
    height: int = 64
    cfg_scale: float = 1.0
    eta: float | None = None
    seed: int = 42

    @property
    def key(self) -> str:
        """The run's name in a file of recorded runs."""
        return "|".join(map(str, self))

    @classmethod
    def of(cls, key: str) -> "SamplerRun":
        sampler, schedule, steps, width, height, cfg_scale, eta, seed = key.split("|")
        sizes = int(steps), int(width), int(height)
        return cls(sampler, schedule, *sizes, float(cfg_scale), None if eta == "None" else float(eta), int(seed))

    def sampling(self) -> dict[str, Any]:
        """Return the `sampling` arguments of sdcpp_server.Server.picture."""
        fields: dict[str, Any] = {"sample_method": self.sampler, "scheduler": self.schedule}
        fields["sample_steps"] = self.steps
        return fields if self.eta is None else {**fields, "eta": self.eta}


class Seen(NamedTuple):
    """The inputs and outputs of the UNet in one run.

    x, eps: [calls, C, H, W], the UNet's scaled input, and its output after guidance
    t:      [calls], timesteps
    latent: [C, H, W], the final latent
    """

    x: np.ndarray
    t: np.ndarray
    eps: np.ndarray
    latent: np.ndarray


class Apart(NamedTuple):
    """How far a run is from refsd's sampler.

    t:      greatest difference of a timestep
    steps:  [calls + 1], |engine - refsd| / |refsd| of each call's latent, and of the final latent
    margin: greatest error of an element, relative to the error that float32 may have
    """

    t: float
    steps: np.ndarray
    margin: float


def float32_levels() -> DiscreteLevels:
    """Compute the sigmas as stable-diffusion.cpp does: products, quotients and roots in float32.

    Source: stable-diffusion.cpp calculate_alphas_cumprod; sigma = sqrt((1 - abar) / abar).
    """
    one = np.float32(1)
    start, end = np.sqrt(np.float32(0.00085)), np.sqrt(np.float32(0.0120))
    beta = start + (end - start) * (np.arange(1000, dtype=np.float32) / np.float32(999))
    kept = np.multiply.accumulate(one - beta * beta, dtype=np.float32)
    return DiscreteLevels(np.sqrt((one - kept) / kept).astype(np.float64))


def seen(graphs: Iterable[Graph], cfg_scale: float) -> Seen:
    """Read one picture's graphs: those of the UNet, in pairs if guidance is on, then that of the decoder."""
    *rest, decoder = graphs
    unet = [graph for graph in rest if "768x77" in graph.signature]
    eps = [graph.output.astype(np.float64) for graph in unet]
    if cfg_scale != 1:
        eps = [guide(cond, without, cfg_scale) for cond, without in zip(eps[::2], eps[1::2], strict=True)]
        unet = unet[::2]
    x = np.stack([next(a for a in graph.inputs if a.ndim == 3 and a.shape[0] == 4) for graph in unet])
    t = np.array([next(a for a in graph.inputs if a.size == 1).item() for graph in unet])
    return Seen(x, t, np.stack(eps), decoder.inputs[0] * np.float32(LATENT_SCALES["sd1"].factor))


def compare(settings: SamplerRun, run: Seen, levels: DiscreteLevels, deviation: bool = False) -> Apart:
    """Predict each call's latent and the final one from the run's own data, and measure the program's error.

    The prediction uses the program's earlier latents and UNet outputs, and refsd's sampler, sigmas and noise.

    run:       the whole latents, or only their first channels, rows and columns
    deviation: use the sampler of sdcpp_float32, with its order of terms, instead of refsd's
    Raises ValueError if refsd's sampler makes a different number of UNet calls.
    """
    smooth = Solver(sampling.method(settings.sampler, settings.eta).run)
    sigmas = SCHEDULES[settings.schedule](settings.steps, levels)
    slopes, form, sizes = sensitivities(smooth, sigmas), forms(smooth, sigmas), None
    if deviation:
        its = float32_sigmas(settings.schedule, settings.steps, levels)
        sigmas = sigmas.astype(np.float32).astype(np.float64) if its is None else its
        eta = {} if settings.eta is None else {"eta": settings.eta}
        run_float32 = partial(DEVIATIONS[settings.sampler][1], **eta)
        form = forms(Solver(run_float32), sigmas)
        sizes = forms(Solver(partial(run_float32, total=terms_sizes)), sigmas)
        # Either sampler may draw noise that gets weight 0, so the numbers of draws can differ.
        more = max(form.rows.shape[1] - slopes.shape[-1], 0)
        slopes = np.pad(slopes, ((0, 0), (0, 0), (0, more)))[..., : form.rows.shape[1]]
    if form.calls != len(run.t):
        raise ValueError(f"{settings}: the program calls its UNet {len(run.t)} times, refsd {form.calls} times")
    sigma = form.sigmas.reshape(-1, 1, 1, 1)
    x = run.x.astype(np.float64) * np.sqrt(sigma**2 + 1)
    y = Dump(sigmas, x, x - sigma * run.eps, run.latent.astype(np.float64))
    rng = RNGS["cuda"](settings.seed)
    whole = (4, settings.height // 8, settings.width // 8)
    noise = np.stack([rng.randn(whole) for _ in range(1 + form.draws)]).astype(np.float64)
    noise = noise[:, *(slice(size) for size in x[0].shape)]
    expected, limits = forced(form, y, noise, _U, slopes)
    if sizes is not None:
        terms = np.concatenate([y.x, y.denoised, noise[1:]])
        limits += gamma(16, _U) * np.tensordot(sizes.rows, np.abs(terms), 1)
    # Undoing the UNet's input scaling and computing denoised from eps round x and denoised.
    rough = np.concatenate([gamma(3, _U) * np.abs(x), gamma(4, _U) * (np.abs(x) + np.abs(sigma * run.eps))])
    limits += np.tensordot(np.abs(form.rows[:, : 2 * form.calls]), rough, 1)
    limits[:-1] += gamma(3, _U) * np.abs(expected[:-1])
    shown = np.concatenate([y.x, y.latent[None]])
    flat = (len(shown), -1)
    distances = np.linalg.norm((shown - expected).reshape(flat), axis=1)
    timesteps = np.array([levels.to_t(float(s)) for s in form.sigmas])
    return Apart(
        float(np.abs(run.t - timesteps).max()),
        distances / np.linalg.norm(expected.reshape(flat), axis=1),
        float((np.abs(shown - expected) / limits).max()),
    )
