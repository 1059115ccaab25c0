"""A short sampling run of a checkpoint's denoiser: from a prompt, or from drawn conditions."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.caches import CacheSettings
from refsd.diagnosis.ranges import Range, Ranges
from refsd.families import VARIANTS
from refsd.families.family import Condition
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.pipelines.autoencoders import PIXELS
from refsd.pipelines.guided_network import Listener
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan, resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning, decode, encode, sample
from refsd.weights import Checkpoint

SEED = 42
SAMPLER = "euler"  # adds no noise between steps, so that two runs differ by their weights alone


class Run(NamedTuple):
    """A sampling run: its plan and conditions are fixed, its denoiser's weights may be replaced."""

    pipe: Pipeline
    plan: Plan
    conditioning: Conditioning

    def latents(self, denoiser: Module, listener: Listener | None = None) -> list[np.ndarray]:
        """Sample with other weights of the denoiser -> the latents after each step, [1, C, h, w] each.

        listener: told of the network's calls, as by `sample`
        """
        pipe = self.pipe._replace(denoiser=self.pipe.denoiser._replace(module=denoiser))
        seen: list[np.ndarray] = []
        on_step = lambda i, sigma, x, denoised: seen.append(x.copy())
        last = sample(pipe, self.plan, self.conditioning, SEED, on_step, listener)
        return [*seen[1:], last]


def drawn_run(
    checkpoint: Checkpoint,
    denoiser: LoadedComponent,
    inputs: Mapping[str, np.ndarray],
    steps: int,
    cache: CacheSettings | None = None,
) -> Run | None:
    """Plan a run whose conditions and size are those of a denoiser's inputs.

    -> None for a model that takes more than noise and text, such as a picture to fill in
    """
    variant = VARIANTS.get(checkpoint.family.name) if checkpoint.family else None
    if variant is None or not variant.draws or variant.extra_channels or variant.layers or "context" not in inputs:
        return None
    pipe = Pipeline(variant, {}, denoiser, PIXELS, Tokenizers(), checkpoint)
    height, width = inputs["x"].shape[2:]
    size = {"width": width, "height": height}
    plan = resolve(pipe, Settings("", **size, steps=steps, cfg_scale=1.0, sampler=SAMPLER, cache=cache))
    if plan.latent_shape[2:] != (height, width):
        return None
    condition = Condition(inputs["context"], inputs.get("y"), inputs.get("context_mask"))
    return Run(pipe, plan, Conditioning(condition, None))


def prompt_ranges(pipe: Pipeline, settings: Settings) -> list[Range]:
    """Return the largest values of the encoders, of the denoiser in every step, and of the decoder, for a prompt.

    Raises BadInput for settings that do not fit the model.
    """
    plan = resolve(pipe, settings)
    parts = {**pipe.encoders, pipe.denoiser.name: pipe.denoiser}
    if pipe.autoencoder.decoder is not None:
        parts[pipe.autoencoder.decoder.name] = pipe.autoencoder.decoder
    watched = {name: Ranges(part.module, f"{name}: ") for name, part in parts.items()}
    for name, part in parts.items():
        part.module.taps = watched[name]
    denoiser = watched[pipe.denoiser.name]
    denoiser.step = 1

    def on_step(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        denoiser.step = i + 2

    latent = sample(pipe, plan, encode(pipe, plan), SEED, on_step)
    if not np.isfinite(latent).all():
        raise BadInput("the latent is not finite: the weights overflow float32 too; `refsd info` may say why")
    decode(pipe, latent)
    return [one for ranges in watched.values() for one in ranges.found]
