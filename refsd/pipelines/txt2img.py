"""Stable Diffusion 1.x from a prompt to a picture, in stable-diffusion.cpp's order of operations.

Whose convention is what:
- stable-diffusion.cpp: latents start as noise * sigma_0 (diffusers: * sqrt(sigma_0^2 + 1)); the noise of
  picture b is drawn from seed + b, in one call over [C, H/8, W/8], and Euler a goes on drawing from the same
  stream; timesteps are real numbers; cond and uncond pass through the UNet one after the other; an empty
  negative prompt is encoded like any other; a cfg scale of 1 leaves uncond out; sizes go up to a multiple of 64.
- A1111: prompt weights, with the mean of the hidden states restored; clip_skip n takes the n-th layer from the
  last, then the final LayerNorm.
- The original: last hidden state of CLIP-L, latents / 0.18215 into the decoder.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refsd.components import forward, load
from refsd.golden.arithmetic import Arithmetic
from refsd.golden.errors import BadInput
from refsd.models.vae import LATENT_SCALES
from refsd.models.vae_tiling import Tiling
from refsd.module import Kept, Module
from refsd.pipelines import sampling
from refsd.pipelines.settings import Settings
from refsd.pipelines.tiles import decode_as_asked
from refsd.samplers.cfg_pp import GuidedDenoiser
from refsd.samplers.guidance import guide
from refsd.samplers.levels import DiscreteLevels, scaled_linear_alphas_cumprod, training_sigmas
from refsd.samplers.noise import RNGS
from refsd.samplers.parameterization import Denoiser, denoiser
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.step import Callback, StepsError
from refsd.seams import Seams
from refsd.tokenizers import Tokenizer, chunks
from refsd.tokenizers.emphasis import mean_kept
from refsd.weights import Checkpoint
from refsd.weights.adapters import AdapterFile

PICTURES_OF = ("sd15", "parts")  # families; parts are asked for one by one
LATENT_SCALE = LATENT_SCALES["sd1"].factor
LEVELS = DiscreteLevels(training_sigmas(scaled_linear_alphas_cumprod()))

Listener = Callable[[str, np.ndarray], None]


class Part(NamedTuple):
    """A component ready to run: its weights, and what its config sets."""

    name: str
    module: Module
    params: Mapping[str, Any]

    def __call__(self, inputs: Mapping[str, np.ndarray], source: str, **params) -> dict[str, np.ndarray]:
        return forward(self.name, self.module, inputs, {**self.params, **params}, source)


class StableDiffusion(NamedTuple):
    clip: Part
    unet: Part
    decoder: Part
    tokenizer: Tokenizer

    @property
    def dtype(self) -> np.dtype:
        """In which latents are kept and sampled: the numerics' compute dtype."""
        return self.unet.module.arithmetic.numerics.compute_dtype


class Conditioning(NamedTuple):
    """cond, uncond: [1, 77 * chunks, E]; uncond is None where the cfg scale is 1"""

    cond: np.ndarray
    uncond: np.ndarray | None


def open_pipeline(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    arithmetic: Arithmetic,
    budget: int = 0,
    loras: Sequence[tuple[AdapterFile, float]] = (),
) -> StableDiffusion:
    """
    budget: bytes of expanded UNet weights to keep between steps
    loras:  adapter files and their strengths, for the UNet and the text encoder

    Raises BadInput where a component is missing, or the model is no Stable Diffusion 1.x.
    """
    family = checkpoint.family
    if family is not None and family.name not in PICTURES_OF:
        raise BadInput(
            f"{checkpoint.path}: {family.title} ({family.why}); txt2img makes pictures with Stable Diffusion 1.x: "
            "run this model's components with refsd forward"
        )
    kept = {"unet": Kept(budget)}
    clip, unet, decoder = (
        Part(name, *load(checkpoint, name, arithmetic, kept.get(name), loras))
        for name in ("clip", "unet", "vae-decoder")
    )
    return StableDiffusion(clip, unet, decoder, tokenizer)


def pixels_per_latent(sd: StableDiffusion) -> int:
    """8 for SD 1.x's autoencoder of four levels."""
    return 2 ** (sd.decoder.module.count("decoder.up") - 1)


def size_multiple(sd: StableDiffusion) -> int:
    """What width and height must be multiples of: the autoencoder's factor times the UNet's; 64."""
    m = sd.unet.module
    return pixels_per_latent(sd) * 2 ** sum("0.op" in m["input_blocks"][i] for i in range(m.count("input_blocks")))


def encode_prompt(sd: StableDiffusion, prompt: str, clip_skip: int = 1) -> np.ndarray:
    """Hidden states of a prompt, chunk after chunk along the tokens, weights applied.

        hidden <- hidden * weight;  hidden <- hidden * mean(before) / mean(after)    in each chunk

    -> context: [1, 77 * chunks, E]
    Source: A1111 modules/sd_hijack_clip.py, process_tokens; stable-diffusion.cpp apply_token_weights.
    """
    encoded = []
    for ids, weights in chunks(sd.tokenizer, prompt):
        hidden = sd.clip({"input_ids": ids[None]}, "prompt", clip_skip=clip_skip)["last_hidden_state"]
        if (weights != 1).any():
            hidden = mean_kept(hidden.astype(sd.dtype), weights).astype(hidden.dtype)
        encoded.append(hidden)
    return np.concatenate(encoded, axis=1)


def encode(sd: StableDiffusion, settings: Settings) -> Conditioning:
    """Both prompts; CFG++ needs the negative one at any scale."""
    cond = encode_prompt(sd, settings.prompt, settings.clip_skip)
    if settings.cfg_scale == 1 and not sampling.method(settings.sampler, settings.eta).cfg_pp:
        return Conditioning(cond, None)
    return Conditioning(cond, encode_prompt(sd, settings.negative_prompt, settings.clip_skip))


def sigmas(settings: Settings) -> np.ndarray:
    """[steps + 1], float64, falling to 0. Raises BadInput for steps that the schedule does not have."""
    if settings.sigmas is not None:
        return np.array(settings.sigmas, np.float64)
    try:
        return SCHEDULES[settings.schedule](settings.steps, LEVELS)
    except ValueError as error:
        raise BadInput(f"--scheduler {settings.schedule}, --steps {settings.steps}: {error}") from None


def sample(
    sd: StableDiffusion,
    settings: Settings,
    conditioning: Conditioning,
    seed: int,
    callback: Callback | None = None,
    listener: Listener | None = None,
) -> np.ndarray:
    """One picture's latents, from noise.

    callback: called at each step, before x moves, with (i, sigma, x, denoised)
    listener: called with (name, array): "noise"; for UNet call n "calls.{n}.x", ".timesteps", ".cond", ".uncond";
              for step i "steps.{i}.x", ".sigma", ".denoised", ".eps" (after guidance); "latent"
    -> [1, C, H/8, W/8], in the compute dtype, not divided by 0.18215
    """
    tell = listener or (lambda name, array: None)
    factor = pixels_per_latent(sd)
    shape = (
        1,
        sd.unet.module.shape("input_blocks.0.0.weight")[1],
        settings.height // factor,
        settings.width // factor,
    )
    sd.unet.module.seams = settings.seams
    rng = RNGS[settings.rng](seed)
    noise = rng.randn(shape)
    tell("noise", noise)
    if settings.sampler_rng not in (None, settings.rng):
        rng = RNGS[settings.sampler_rng](seed)
    levels = sigmas(settings)

    def on_step(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        tell(f"steps.{i}.x", x)
        tell(f"steps.{i}.sigma", np.array(sigma))
        tell(f"steps.{i}.denoised", denoised)
        tell(f"steps.{i}.eps", (x - denoised) / sigma)
        if callback:
            callback(i, sigma, x, denoised)

    method = sampling.method(settings.sampler, settings.eta)
    network = _Guided(sd, conditioning, settings.cfg_scale, tell)
    model = denoiser(network, LEVELS)
    x = noise.astype(sd.dtype) * float(levels[0])
    try:
        draw = method.noise(rng, x, levels, seed)
        x = method.run(_with_uncond(model, network) if method.cfg_pp else model, x, levels, draw, on_step)
    except StepsError as error:
        raise BadInput(f"--sampling-method {settings.sampler}, --steps {settings.steps}: {error}") from None
    tell("latent", x)
    return x


class _Guided:
    """The UNet under classifier-free guidance, as a function of (x, t).

    uncond: what it said of the last x without the prompt
    """

    def __init__(self, sd: StableDiffusion, conditioning: Conditioning, cfg_scale: float, tell: Listener):
        self.sd, self.conditioning, self.cfg_scale, self.tell = sd, conditioning, cfg_scale, tell
        self.calls = 0
        self.uncond = np.empty(0)

    def __call__(self, x: np.ndarray, t: float) -> np.ndarray:
        call = f"calls.{self.calls}"
        timesteps = np.array([t])
        self.tell(f"{call}.x", x)
        self.tell(f"{call}.timesteps", timesteps)
        outputs = {}
        for which, context in self.conditioning._asdict().items():
            if context is not None:
                inputs = {"x": x, "timesteps": timesteps, "context": context}
                outputs[which] = self.sd.unet(inputs, f"UNet call {self.calls}")["out"].astype(self.sd.dtype)
                self.tell(f"{call}.{which}", outputs[which])
        self.calls += 1
        if "uncond" not in outputs:
            return outputs["cond"]
        self.uncond = outputs["uncond"]
        return guide(outputs["cond"], outputs["uncond"], self.cfg_scale)


def _with_uncond(model: Denoiser, network: _Guided) -> GuidedDenoiser:
    """Both denoised latents that CFG++ asks for, of the same calls of the UNet."""
    without = denoiser(lambda x, t: network.uncond, LEVELS)
    return lambda x, sigma: (model(x, sigma), without(x, sigma))


def decode(
    sd: StableDiffusion, latent: np.ndarray, tiling: Tiling | None = None, seams: Seams | None = None
) -> np.ndarray:
    """[1, C, H/8, W/8] -> picture [1, 3, H, W], about -1..1, not clipped"""

    def run(z: np.ndarray) -> np.ndarray:
        return sd.decoder({"z": z}, "latent")["out"]

    z = latent / LATENT_SCALE
    return decode_as_asked(run, sd.decoder.module, z, pixels_per_latent(sd), tiling, seams or Seams())
