"""What refsd knows of a family of models, on one page each: how files identify it, its prompts, its pictures."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.module import Module
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import RecipeModel
from refsd.pipelines.conventions import Convention
from refsd.samplers.levels import FlowLevels
from refsd.samplers.parameterization import FLOW, Prediction
from refsd.tokenizers.text_rules import TextRule

# Convention.family_rows: where engines differ about a family, its page has a row for each of these.
ENGINES: tuple[str, ...] = "sdcpp", "diffusers"


class LatentScale(NamedTuple):
    """How a family's denoiser sees an autoencoder's latents: diffusers' scaling_factor and shift_factor."""

    factor: float
    shift: float
    source: str

    def to_denoiser(self, z):
        """(z - shift) * factor: from the encoder's output to the latent that noise is added to."""
        return (z - self.shift) * self.factor

    def to_vae(self, x):
        """x / factor + shift: from the sampled latent to the decoder's input."""
        return x / self.factor + self.shift


# tokens of the picture, steps -> how far the flow's times are moved towards noise
Shift = Callable[[int, int], float]


class Flow(NamedTuple):
    """A rectified flow's noise levels.

    shift:      engine -> its shift
    from_flag:  value of --flow-shift -> the shift; some give the shift itself, Flux gives mu, whose shift is e^mu
    levels:     shift -> the levels, and the timestep that the network is given at each
    prediction: what the network predicts
    """

    shift: Mapping[str, Shift]
    from_flag: Callable[[float], float] = float
    levels: Callable[[float], FlowLevels] = FlowLevels
    prediction: Prediction = FLOW


def constant_shift(shift: float) -> dict[str, Shift]:
    """Every engine's, whatever the size."""
    return dict.fromkeys(ENGINES, lambda tokens, steps: shift)


def unit_time(shift: float) -> FlowLevels:
    """Levels of a network whose timestep is sigma, not 1000 sigma."""
    return FlowLevels(shift, multiplier=1.0)


class TextEncoder(NamedTuple):
    """How a variant uses a text encoder.

    rules:            engine -> how a prompt becomes tokens
    output:           the hidden states that the denoiser takes, an output of the component
    optional:         True if the denoiser runs without it
    projected:        True if its pooled text is multiplied by its text_projection, where the convention does so
    short_in_folders: True if diffusers' folders hold it without its last layer, which nothing reads
    """

    rules: Mapping[str, TextRule]
    output: str = "last_hidden_state"
    optional: bool = False
    projected: bool = False
    short_in_folders: bool = False


class Encoded(NamedTuple):
    """A prompt after one text encoder.

    hidden: [N, J, E], after the prompt's weights
    pooled: [N, P], of the first chunk; None: the encoder has none
    mask:   [N, J], 0 where a token is padding
    """

    hidden: np.ndarray
    pooled: np.ndarray | None
    mask: np.ndarray


class EncodedPrompt(NamedTuple):
    """A prompt after all text encoders, and what else its condition depends on.

    encoders: component -> Encoded
    network:  the denoiser's weights
    size:     height and width of the picture, pixels
    convention: of the engine that is followed
    negative: True for the negative prompt
    empty:    True for a prompt without text
    """

    encoders: Mapping[str, Encoded]
    network: Module
    size: tuple[int, int]
    convention: Convention
    negative: bool = False
    empty: bool = False


class Condition(NamedTuple):
    """A prompt as the denoiser takes it.

    context: [N, J, E]
    y:       [N, V], or None
    mask:    [N, J], 0 where the denoiser does not look; None: it looks everywhere
    """

    context: np.ndarray
    y: np.ndarray | None = None
    mask: np.ndarray | None = None


class Variant(NamedTuple):
    """A model of a family, as its files identify it, and how txt2img draws with it.

    name:             "flux-fill"
    title:            for a person
    encoders:         component -> TextEncoder
    join:             what the text encoders return -> what the denoiser takes
    schedule:         engine -> its default
    flow:             None: a UNet of Stable Diffusion's levels; the checkpoint says what it predicts
    clip_layer:       the hidden states of CLIP that are taken, counted from the last layer
    final_norm:       True if CLIP's final norm follows that layer
    steps, cfg_scale, guidance, sampler: defaults, the originals' or diffusers'; guidance: where it is embedded
    extra_channels:   what the network's input has after x: a name in pipelines.initial_latent.EXTRA_CHANNELS
    weighted_together: True if a prompt's weights are applied to CLIP-L and bigG as one
    may_predict_v:    True if some checkpoints predict v and do not say so; one call of the network finds it out
    pixel_space:      True if the network draws pixels, without an autoencoder
    corrects_scheduler: True if diffusers' pipelines set steps_offset to 1 and clip_sample to False in any folder
    rounds_size_down: True if diffusers rounds a side that is no multiple down; elsewhere it refuses the size
    draws:            False if txt2img does not draw with it
    """

    name: str
    title: str
    encoders: Mapping[str, TextEncoder]
    join: Callable[[EncodedPrompt], Condition]
    schedule: Mapping[str, str]
    flow: Flow | None = None
    clip_layer: int = 1
    final_norm: bool = True
    steps: int = 20
    cfg_scale: float = 7.0
    guidance: float = 3.5
    sampler: str = "euler"
    extra_channels: str | None = None
    weighted_together: bool = False
    may_predict_v: bool = False
    pixel_space: bool = False
    corrects_scheduler: bool = False
    rounds_size_down: bool = False
    draws: bool = True


# Component's tensor names -> shapes; in return a variant's name, and what identifies it. None: another family's.
Identify = Callable[[Mapping[str, Shape]], tuple[str, str] | None]


class Family(NamedTuple):
    """
    name:     "flux": of its latents (--param latents=NAME) and its text rules (refsd tokenize --family NAME)
    released: year and month of its first model; families are listed in this order
    network:  its denoiser, a name in refsd.networks
    identify: finds the variant from the denoiser's tensors
    variants: its models; the first one's text encoders are the family's
    latents:  scale of AutoencoderKL's latents; None: another autoencoder, or none
    sizes:    title of a released model -> component -> size; an adapter file is for those whose layers it names
    recipes:  models that recipe weights are made of, by name; names are not the variants'
    """

    name: str
    released: str
    network: str
    identify: Identify
    variants: tuple[Variant, ...]
    latents: LatentScale | None = None
    sizes: Mapping[str, Mapping[str, Any]] = {}
    recipes: Mapping[str, RecipeModel] = {}

    @property
    def encoders(self) -> Mapping[str, TextEncoder]:
        return self.variants[0].encoders


class Identity(NamedTuple):
    """The model that a checkpoint holds.

    name:  of a variant; "parts" where there is no denoiser
    title: for a person
    why:   what identifies it
    """

    name: str
    title: str
    why: str
