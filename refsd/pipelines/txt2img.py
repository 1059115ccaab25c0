"""From a prompt to a picture: one loop, whatever the family (refsd/families) and whoever's conventions (`like`).

Whose convention is what, besides the cards of prompts and samplers:
- stable-diffusion.cpp: a UNet's latents start as noise * sigma_0 (diffusers: * sqrt(sigma_0^2 + 1) where its
  spacing is "leading"); the noise of picture b is drawn from seed + b, in one call over [C, h, w], and Euler a goes
  on drawing from the same stream; timesteps are real numbers; conditions pass through the network one by one;
  an empty negative prompt is encoded like any other, but SDXL's; a cfg scale of 1 leaves uncond out; sizes go up; a
  masked picture is put back into what was denoised.
- diffusers: a given picture's posterior and the noise are drawn from one stream; --clip-skip counts for the prompt,
  not for the negative one.
- A rectified flow starts from (1 - sigma_0) latent + sigma_0 noise everywhere.
"""

import numpy as np

from refsd.families.family import Condition, EncodedPrompt
from refsd.models.vae_tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines import prompts, sampling
from refsd.pipelines.denoising import CallCondition, Guided, Listener
from refsd.pipelines.noise_levels import levels_of, sigmas
from refsd.pipelines.pipeline import Conditioning, Pipeline, filled
from refsd.pipelines.prediction import PREDICTIONS
from refsd.pipelines.settings import Settings
from refsd.pipelines.start import Start, start
from refsd.samplers.cfg_pp import GuidedDenoiser
from refsd.samplers.conventions import CARDS
from refsd.samplers.levels import Levels
from refsd.samplers.noise import RNGS
from refsd.samplers.parameterization import Denoiser, Prediction, denoiser
from refsd.samplers.step import Callback, StepsError
from refsd.seams import Seams


def encode_prompt(pipe: Pipeline, settings: Settings, negative: bool = False) -> Condition:
    prompt = settings.negative_prompt if negative else settings.prompt
    encoded = prompts.encode(
        pipe.variant, settings.like, pipe.encoders, pipe.tokenizers, prompt, settings.clip_skip, negative
    )
    size = settings.height, settings.width
    return pipe.variant.join(
        EncodedPrompt(encoded, pipe.denoiser.module, size, settings.like, negative, empty=not prompt)
    )


def encode(pipe: Pipeline, settings: Settings) -> Conditioning:
    """Both prompts; CFG++ needs the negative one at any scale."""
    settings = filled(pipe, settings)
    cond = encode_prompt(pipe, settings)
    guided = settings.cfg_scale != 1 or settings.image_cfg_scale not in (None, 1)
    if not guided and not sampling.method(settings.sampler or "", settings.eta).cfg_pp:
        return Conditioning(cond, None)
    return Conditioning(cond, encode_prompt(pipe, settings, negative=True))


def sample(
    pipe: Pipeline,
    settings: Settings,
    conditioning: Conditioning,
    seed: int,
    callback: Callback | None = None,
    listener: Listener | None = None,
    begin: Start | None = None,
) -> np.ndarray:
    """One picture's latents, from noise.

    callback: called at each step, before x moves, with (i, sigma, x, denoised)
    listener: called with (name, array): "noise"; for network call n "calls.{n}.x", ".timesteps", ".cond",
              ".uncond"; for step i "steps.{i}.x", ".sigma", ".denoised", ".eps" (after guidance); "latent"
    begin:    of `start`; None: from the seed's noise, no picture given
    -> [1, C, h, w], in the compute dtype, as the denoiser sees latents
    """
    tell = listener or (lambda name, array: None)
    settings = filled(pipe, settings)
    begin = start(pipe, settings, seed) if begin is None else begin
    pipe.denoiser.module.seams = settings.seams
    tell("noise", begin.noise)
    rng = begin.rng
    if settings.sampler_rng not in (None, settings.rng):
        rng = RNGS[settings.sampler_rng](seed)
    levels = sigmas(pipe, settings, begin.latent is not None)

    def on_step(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        tell(f"steps.{i}.x", x)
        tell(f"steps.{i}.sigma", np.array(sigma))
        tell(f"steps.{i}.denoised", denoised)
        tell(f"steps.{i}.eps", (x - denoised) / sigma)
        if callback:
            callback(i, sigma, x, denoised)

    flow = pipe.variant.flow
    method = sampling.method(settings.sampler or "", settings.eta, flow is not None)
    known = levels_of(pipe, settings, settings.steps or 1)
    prediction = flow.prediction if flow else PREDICTIONS[settings.prediction or "eps"][0]
    network = _guided(pipe, settings, conditioning, begin, tell)
    model = _put_back(denoiser(network, known, prediction), begin)
    x = _noised(begin, pipe, settings, float(levels[0]), float(known.sigmas[-1]))
    try:
        draw = method.noise(rng, x, levels, seed)
        run = _with_uncond(model, network, known, prediction) if method.cfg_pp else model
        x = method.run(run, x, levels, draw, on_step)
    except StepsError as error:
        steps = len(levels) - 1
        raise BadInput(f"--sampling-method {settings.sampler}, --steps {steps}: {error}") from None
    tell("latent", x)
    return x


def _guided(pipe, settings, conditioning, begin, tell) -> Guided:
    """The network with every input of its calls but x and the timestep."""
    cond, uncond, extra = conditioning.cond, conditioning.uncond, begin.extra
    conditions = {"cond": CallCondition(cond, extra and extra.cond)}
    if uncond is not None:
        conditions["uncond"] = CallCondition(uncond, extra and extra.uncond)
        if settings.image_cfg_scale not in (None, settings.cfg_scale):
            conditions["image"] = CallCondition(uncond, extra and extra.cond)
    constants = dict(begin.constants)
    if settings.guidance is not None:
        constants["guidance"] = np.array([settings.guidance])
    params = {"control_strength": float(settings.control_strength)} if "hint" in constants else {}
    return Guided(pipe.denoiser, conditions, settings.cfg_scale, settings.image_cfg_scale, constants, params, tell)


def _noised(begin: Start, pipe: Pipeline, settings: Settings, sigma: float, sigma_max: float) -> np.ndarray:
    """The first x, of what is given and the noise."""
    noise = begin.noise.astype(pipe.dtype)
    latent = None if begin.latent is None else begin.latent.astype(pipe.dtype)
    if pipe.variant.flow is not None:
        return noise * sigma if latent is None else latent * (1 - sigma) + noise * sigma
    if latent is not None:
        return latent + noise * sigma
    spread = settings.like == "diffusers" and settings.schedule not in ("linspace", "trailing")
    return noise * (CARDS["diffusers"].first(sigma, sigma_max) if spread else sigma)


def _put_back(model: Denoiser, begin: Start) -> Denoiser:
    """What is not drawn anew stays as it was given.

    Source: stable-diffusion.cpp, denoise_mask; with Euler, diffusers' mixing behind each step is the same, but at
    strength 1, where its x begins as noise alone.
    """
    if begin.mask is None or begin.latent is None:
        return model
    mask, latent = begin.mask, begin.latent

    def denoised(x: np.ndarray, sigma: float) -> np.ndarray:
        return (model(x, sigma) * mask + latent * (1 - mask)).astype(x.dtype)

    return denoised


def _with_uncond(model: Denoiser, network: Guided, levels: Levels, prediction: Prediction) -> GuidedDenoiser:
    """Both denoised latents that CFG++ asks for, of the same calls of the network."""
    without = denoiser(lambda x, t: network.uncond, levels, prediction)
    return lambda x, sigma: (model(x, sigma), without(x, sigma))


def decode(
    pipe: Pipeline, latent: np.ndarray, tiling: Tiling | None = None, seams: Seams | None = None
) -> np.ndarray:
    """[1, C, h, w] -> picture [1, 3, H, W], about -1..1, not clipped"""
    return pipe.autoencoder.decode(latent, tiling, seams)
