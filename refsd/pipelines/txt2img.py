"""Turn a Plan into a picture, for every family and convention: encode, start, sample, decode."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.circular import CircularAxes
from refsd.families.family import Condition, EncodedPrompt
from refsd.models.vae_tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines import prompts
from refsd.pipelines.initial_latent import InitialLatent, initial_latent
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan
from refsd.samplers.cfg_pp import GuidedDenoiser
from refsd.samplers.guidance import guide, guide_image
from refsd.samplers.noise import RNGS
from refsd.samplers.parameterization import Denoiser, denoiser
from refsd.samplers.step import Callback, StepsError

Listener = Callable[[str, np.ndarray], None]


class Conditioning(NamedTuple):
    """Conditions with and without the prompt, with a batch size of 1. uncond: None if the plan is not guided."""

    cond: Condition
    uncond: Condition | None

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the existing tensors by name: cond, cond.y, cond.mask, uncond, ..."""
        arrays: dict[str, np.ndarray | None] = {}
        for which, text in self._asdict().items():
            if text is not None:
                arrays |= {which: text.context, f"{which}.y": text.y, f"{which}.mask": text.mask}
        return {name: array for name, array in arrays.items() if array is not None}


def encode(pipe: Pipeline, plan: Plan) -> Conditioning:
    """Encode the prompt, and the negative prompt if the plan is guided."""
    return Conditioning(
        encode_prompt(pipe, plan), encode_prompt(pipe, plan, negative=True) if plan.guided else None
    )


def encode_prompt(pipe: Pipeline, plan: Plan, negative: bool = False) -> Condition:
    prompt = plan.negative_prompt if negative else plan.prompt
    encoded = prompts.encode(
        pipe.variant, plan.convention, pipe.encoders, pipe.tokenizers, prompt, plan.clip_skip, negative
    )
    size = plan.height, plan.width
    return pipe.variant.join(
        EncodedPrompt(encoded, pipe.denoiser.module, size, plan.convention, negative, empty=not prompt)
    )


def sample(
    pipe: Pipeline,
    plan: Plan,
    conditioning: Conditioning,
    seed: int,
    callback: Callback | None = None,
    listener: Listener | None = None,
    start: InitialLatent | None = None,
) -> np.ndarray:
    """Sample one picture's latents.

    seed:     one of plan.seeds
    callback: called at each step, before x changes, with (i, sigma, x, denoised)
    listener: called with (name, array): "noise"; for network call n "calls.{n}.x", ".timesteps", ".cond",
              ".image", ".uncond"; for step i "steps.{i}.x", ".sigma", ".denoised", ".eps" (guided); "latent"
    start:    None: initial_latent of the seed
    -> [1, C, h, w], in the compute dtype, in the denoiser's scale
    """
    tell = listener or (lambda name, array: None)
    start = initial_latent(pipe, plan, seed) if start is None else start
    pipe.denoiser.module.circular = plan.circular
    tell("noise", start.noise)
    rng = start.rng
    if plan.sampler_rng not in (None, plan.rng):
        rng = RNGS[plan.sampler_rng](seed)

    def on_step(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        tell(f"steps.{i}.x", x)
        tell(f"steps.{i}.sigma", np.array(sigma))
        tell(f"steps.{i}.denoised", denoised)
        tell(f"steps.{i}.eps", (x - denoised) / sigma)
        if callback:
            callback(i, sigma, x, denoised)

    network = GuidedNetwork(pipe.denoiser, plan, conditioning, start, tell)
    model = unmasked_kept(denoiser(network, plan.levels, plan.output), start)
    x = start.first_x(plan, pipe.dtype)
    try:
        noise = plan.method.noise(rng, x, plan.sigmas, seed)
        run = _with_uncond(model, network, plan) if plan.method.cfg_pp else model
        x = plan.method.run(run, x, plan.sigmas, noise, on_step)
    except StepsError as error:
        steps = len(plan.sigmas) - 1
        raise BadInput(f"--sampling-method {plan.sampler}, --steps {steps}: {error}") from None
    x = x * plan.last_scale
    tell("latent", x)
    return x


def decode(
    pipe: Pipeline, latent: np.ndarray, tiling: Tiling | None = None, circular: CircularAxes | None = None
) -> np.ndarray:
    """Decode latents [1, C, h, w] -> picture [1, 3, H, W], about -1..1, not clipped."""
    return pipe.autoencoder.decode(latent, tiling, circular)


def unmasked_kept(model: Denoiser, start: InitialLatent) -> Denoiser:
    """Wrap a model so that its denoised latent is the initial image's outside the mask.

    Source: stable-diffusion.cpp, denoise_mask. With Euler, diffusers' mixing after each step gives the same, except
    at strength 1, where its x starts as noise alone.
    """
    if start.mask is None or start.latent is None:
        return model
    mask, latent = start.mask, start.latent

    def denoised(x: np.ndarray, sigma: float) -> np.ndarray:
        return (model(x, sigma) * mask + latent * (1 - mask)).astype(x.dtype)

    return denoised


def _with_uncond(model: Denoiser, network: "GuidedNetwork", plan: Plan) -> GuidedDenoiser:
    """Return a model that gives both denoised latents of CFG++, guided and without prompt, from the same calls."""
    without = denoiser(lambda x, t: network.uncond, plan.levels, plan.output)
    return lambda x, sigma: (model(x, sigma), without(x, sigma))


class _CallCondition(NamedTuple):
    """Condition of one network call.

    text:  the encoded prompt
    extra: [1, C, h, w], channels after x in the network's input; None: there are none
    """

    text: Condition
    extra: np.ndarray | None


class GuidedNetwork:
    """A denoiser with classifier-free guidance, as a function of x and the timestep; a network call per condition.

    conditions: "cond"; if the plan is guided also "uncond", without the prompt, and for two guidance scales
                "image", without the prompt but with the image to edit
    constants:  further inputs of every call, by argument: guidance, hint, reference
    uncond:     the last output without the prompt
    """

    def __init__(
        self, network: LoadedComponent, plan: Plan, conditioning: Conditioning, start: InitialLatent, tell: Listener
    ):
        (cond, uncond), extra = conditioning, start.extra
        self.conditions = {"cond": _CallCondition(cond, extra and extra.cond)}
        if uncond is not None:
            if plan.image_cfg_scale not in (None, plan.cfg_scale):
                self.conditions["image"] = _CallCondition(uncond, extra and extra.cond)
            self.conditions["uncond"] = _CallCondition(uncond, extra and extra.uncond)
        guidance = {} if plan.guidance is None else {"guidance": np.array([plan.guidance])}
        self.constants: Mapping[str, np.ndarray] = {**start.constants, **guidance}
        self.params: Mapping[str, Any] = {}
        if "hint" in self.constants:
            self.params = {"control_strength": float(plan.control_strength)}
        self.network, self.patch, self.tell = network, network.patch, tell
        self.cfg_scale, self.image_cfg_scale = plan.cfg_scale, plan.image_cfg_scale
        self.calls = 0
        self.uncond = np.empty(0)

    def __call__(self, x: np.ndarray, t: float) -> np.ndarray:
        call = f"calls.{self.calls}"
        timesteps = np.array([t])
        self.tell(f"{call}.x", x)
        self.tell(f"{call}.timesteps", timesteps)
        outputs = {}
        for name, condition in self.conditions.items():
            outputs[name] = self._output(condition, x, timesteps)
            self.tell(f"{call}.{name}", outputs[name])
        self.calls += 1
        if "uncond" not in outputs:
            return outputs["cond"]
        self.uncond = outputs["uncond"]
        if self.image_cfg_scale is not None and "image" in outputs:
            return guide_image(outputs["cond"], outputs["image"], self.uncond, self.cfg_scale, self.image_cfg_scale)
        return guide(outputs["cond"], self.uncond, self.cfg_scale)

    def _output(self, condition: _CallCondition, x: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        text, extra = condition
        inputs = {
            "x": self._whole_patches(x if extra is None else np.concatenate([x, extra.astype(x.dtype)], axis=1)),
            "timesteps": timesteps,
            "context": text.context,
            **({} if text.y is None else {"y": text.y}),
            **({} if text.mask is None else {"context_mask": text.mask}),
            **self.constants,
        }
        out = self.network(inputs, f"{self.network.name} call {self.calls}", **self.params)["out"]
        return out[:, :, : x.shape[2], : x.shape[3]].astype(x.dtype)

    def _whole_patches(self, x: np.ndarray) -> np.ndarray:
        """Pad x with zeros at the bottom and right to whole patches.

        Source: stable-diffusion.cpp common_dit.hpp, pad_to_patch_size, unpatchify_and_crop.
        """
        return np.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % self.patch), (0, -x.shape[3] % self.patch)))
