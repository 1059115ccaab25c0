"""Turn a Plan into a picture, for every family and convention: encode, start, sample, decode."""

import numpy as np

from refsd.circular import CircularAxes
from refsd.families.family import Condition, EncodedPrompt
from refsd.models.vae.tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines import prompts
from refsd.pipelines.guided_network import Conditioning, GuidedNetwork, Listener
from refsd.pipelines.image_prompt import with_image_prompt
from refsd.pipelines.initial_latent import InitialLatent, generator, initial_latent, signed
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan
from refsd.pipelines.shown_pictures import ShownPictures, show
from refsd.samplers.cfg_pp import GuidedDenoiser
from refsd.samplers.noise import Noise
from refsd.samplers.parameterization import Denoiser, denoiser
from refsd.samplers.step import Callback, StepNoise, StepsError


def encode(pipe: Pipeline, plan: Plan) -> Conditioning:
    """Encode the prompt, and the negative prompt if the plan is guided; each with its image prompt."""
    shown = _shown(pipe, plan)
    uncond = encode_prompt(pipe, plan, negative=True, shown=shown) if plan.guided else None
    cond = encode_prompt(pipe, plan, shown=shown)
    if uncond is not None and plan.convention.row(pipe.variant.zeroed):
        uncond = cond._replace(context=np.zeros_like(cond.context))
    return with_image_prompt(pipe, Conditioning(cond, uncond), plan.images.ip)


def _shown(pipe: Pipeline, plan: Plan) -> ShownPictures | None:
    """Let the text encoder's vision tower see the pictures to edit, where the model wants that."""
    editing, rule = pipe.editing(plan.convention), pipe.variant.editing_rule
    if editing is None or rule is None or not plan.images.references:
        return None
    return show(pipe.image_encoders[editing.tower], editing, plan.images.references, rule)


def encode_prompt(
    pipe: Pipeline, plan: Plan, negative: bool = False, shown: ShownPictures | None = None
) -> Condition:
    prompt = plan.negative_prompt if negative else plan.prompt
    encoded = prompts.encode(
        pipe.variant, plan.convention, pipe.encoders, pipe.tokenizers, prompt, plan.clip_skip, negative, shown
    )
    size = plan.height, plan.width
    condition = pipe.variant.join(
        EncodedPrompt(encoded, pipe.denoiser.module, size, plan.convention, negative, empty=not prompt)
    )
    if plan.images.redux is None or negative:
        return condition
    words = words_of_picture(pipe, plan.images.redux).astype(condition.context.dtype)
    return condition._replace(context=np.concatenate([condition.context, words], axis=1))


def words_of_picture(pipe: Pipeline, picture: np.ndarray) -> np.ndarray:
    """Encode a picture, [1, 3, H, W], 0..1, to tokens that follow the text's. -> [1, L, E]

    Source: diffusers FluxPriorReduxPipeline; Black Forest Labs 2024, flux/modules/image_embedders.py.
    """
    seen = pipe.image_encoders["siglip"]({"x": signed(picture)}, "--redux-image")["last_hidden_state"]
    return pipe.image_encoders["redux"]({"x": seen}, "--redux-image")["out"]


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
              ".image", ".uncond", ".skipped", with a cache ".cond.reused", ...; for step i "steps.{i}.x",
              ".sigma", ".denoised", ".eps" (guided); "latent"
    start:    None: initial_latent of the seed
    -> plan.latent_shape, in the compute dtype, in the denoiser's scale
    """
    tell = listener or (lambda name, array: None)
    start = initial_latent(pipe, plan, seed) if start is None else start
    pipe.denoiser.module.circular = plan.circular
    tell("noise", start.noise)
    rng = start.rng
    if plan.sampler_rng is not None and (plan.convention.step_rng or plan.sampler_rng != plan.rng):
        rng = generator(plan, plan.sampler_rng, seed, plan.convention.step_seed if plan.sampler_rng == "cpu" else 0)

    def on_step(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        tell(f"steps.{i}.x", x)
        tell(f"steps.{i}.sigma", np.array(sigma))
        tell(f"steps.{i}.denoised", denoised)
        tell(f"steps.{i}.eps", (x - denoised) / sigma)
        if callback:
            callback(i, sigma, x, denoised)

    guide = plan.convention.row(pipe.variant.guide)
    network = GuidedNetwork(pipe.denoiser_of(plan.convention), plan, conditioning, start, tell, guide)
    model = _told_sigma(network, plan)
    noised = unmasked_noised(model, start, pipe.variant.flow is not None) if plan.convention.masks_input else model
    model = unmasked_kept(noised, start)
    x = start.first_x(plan, pipe.dtype)
    try:
        noise = _step_noise(plan, rng, x, seed)
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
    """Decode latents [1, C, h, w] -> picture [1, 3 or 4, H, W], about -1..1, not clipped.

    Of layers [1, 1 + L, C, h, w] the first, the whole picture, is left out -> [L, 4, H, W]
    """
    pictures = [latent] if latent.ndim == 4 else np.split(latent[0, 1:], latent.shape[1] - 1)
    return np.concatenate([pipe.autoencoder.decode(picture, tiling, circular) for picture in pictures])


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


def unmasked_noised(model: Denoiser, start: InitialLatent, flow: bool) -> Denoiser:
    """Wrap a model so that outside the mask it sees the initial latent with the first noise at the step's level.

    flow: True for a rectified flow, whose latent has the share 1 - sigma
    Source: ComfyUI comfy/samplers.py, KSamplerX0Inpaint.
    """
    if start.mask is None or start.latent is None:
        return model
    mask, latent, noise = start.mask, start.latent, start.noise

    def denoised(x: np.ndarray, sigma: float) -> np.ndarray:
        signal = 1 - sigma if flow else 1.0
        outside = signal * latent + sigma * noise.astype(x.dtype)
        return model((x * mask + outside * (1 - mask)).astype(x.dtype), sigma)

    return denoised


def _step_noise(plan: Plan, rng: Noise, x: np.ndarray, seed: int) -> StepNoise:
    """Return the noise between the steps of one picture. A whole batch has one Brownian motion."""
    if not (plan.convention.whole_batch and plan.method.brownian):
        return plan.method.noise(rng, x, plan.sigmas, seed)
    number = plan.seeds.index(seed)
    of_all = plan.method.noise(rng, np.repeat(x, len(plan.seeds), axis=0), plan.sigmas, plan.seeds[0])
    return lambda sigma, sigma_next: of_all(sigma, sigma_next)[number : number + 1]


def _told_sigma(network: GuidedNetwork, plan: Plan) -> Denoiser:
    """Return the network as a denoiser, which tells it the noise level of each call."""
    predict = denoiser(network, plan.levels, plan.output)

    def denoised(x: np.ndarray, sigma: float) -> np.ndarray:
        network.sigma = sigma
        return predict(x, sigma)

    return denoised


def _with_uncond(model: Denoiser, network: GuidedNetwork, plan: Plan) -> GuidedDenoiser:
    """Return a model that gives both denoised latents of CFG++, guided and without prompt, from the same calls."""
    without = denoiser(lambda x, t: network.uncond, plan.levels, plan.output)
    return lambda x, sigma: (model(x, sigma), without(x, sigma))
