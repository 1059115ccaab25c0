"""Types that describe a model family: how files identify it, its prompts, latents and txt2img defaults."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions.pictures import Convention
from refsd.families.editing import Editings, References
from refsd.families.flow import ENGINES, Flow
from refsd.module import Module
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import RecipeModel
from refsd.samplers.guidance import guide
from refsd.tokenizers.text_rules import TextRule


class TextEncoder(NamedTuple):
    """How a variant uses a text encoder.

    rules:            engine -> how a prompt becomes tokens
    negative_rules:   the same for the negative prompt; None: as `rules`
    output:           name of the component's output that the denoiser takes
    layers:           numbers of the hidden states that make up the output `hidden_states`; (): the component's own
    reads:            encoder, listed before, whose output is this one's input `context`; "": none
    weigh:            (output, weights of the tokens) -> output, in place of the engine's rule; None: the engine's
    optional:         True if the denoiser runs without it
    projected:        True if its pooled text is multiplied by text_projection (in conventions that do so)
    params:           engine -> params that it computes with, where engines differ
    short_in_folders: True if diffusers' folders hold it without its last layer, which the denoiser does not use
    """

    rules: Mapping[str, TextRule]
    output: str = "last_hidden_state"
    optional: bool = False
    projected: bool = False
    short_in_folders: bool = False
    negative_rules: Mapping[str, TextRule] | None = None
    layers: tuple[int, ...] = ()
    reads: str = ""
    weigh: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    params: Mapping[str, Mapping[str, Any]] = {engine: {} for engine in ENGINES}


class Encoded(NamedTuple):
    """A prompt encoded by one text encoder.

    hidden: [N, J, E], hidden states, with the prompt's weights applied
    pooled: [N, P], pooled text of the first chunk; None: the encoder has none
    mask:   [N, J], 0 where a token is padding
    places: number of the first token of each picture to edit
    """

    hidden: np.ndarray
    pooled: np.ndarray | None
    mask: np.ndarray
    places: tuple[int, ...] = ()


class EncodedPrompt(NamedTuple):
    """A prompt encoded by all text encoders, with everything else that its condition depends on.

    encoders: component -> Encoded
    network:  the denoiser's weights
    size:     height and width of the image, pixels
    convention: convention of the engine to follow
    negative: True for the negative prompt
    empty:    True for a prompt without text
    original: height and width that SDXL is told the image had before it was cropped; None: `size`
    crop:     top and left of the crop that SDXL is told
    """

    encoders: Mapping[str, Encoded]
    network: Module
    size: tuple[int, int]
    convention: Convention
    negative: bool = False
    empty: bool = False
    original: tuple[int, int] | None = None
    crop: tuple[int, int] = (0, 0)


class Condition(NamedTuple):
    """A prompt as input of the denoiser.

    context: [N, J, E]
    y:       [N, V], or None
    mask:    [N, J], 0 for tokens that the attention ignores; None: it attends to all
    ip_tokens: [N, T, E], the image prompt of an IP-Adapter; None: there is none
    places: numbers of the tokens where pictures to edit begin, if the denoiser takes them among the text's
    """

    context: np.ndarray
    y: np.ndarray | None = None
    mask: np.ndarray | None = None
    ip_tokens: np.ndarray | None = None
    places: tuple[int, ...] = ()


def only_hidden(prompt: EncodedPrompt) -> Condition:
    """Return the hidden states of a family's only text encoder; the padding among them is attended to as well."""
    (encoded,) = prompt.encoders.values()
    return Condition(encoded.hidden)


# (prediction with the prompt, prediction without it, scale) -> guided prediction; [N, C, H, W] each
Guide = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


class Variant(NamedTuple):
    """A model of a family, recognised by its files, and how txt2img uses it.

    name:             "flux-fill"
    title:            name for messages
    encoders:         component -> TextEncoder
    join:             joins the text encoders' outputs to the denoiser's condition
    schedule:         engine -> default schedule
    guide:            engine -> Guide
    flow:             None: a UNet with Stable Diffusion's noise levels, whose checkpoint sets the prediction type
    clip_layer:       layer of CLIP whose hidden states are used, counted from the last
    final_norm:       True if CLIP's final norm follows that layer
    steps, cfg_scale, guidance, sampler: defaults of the original or diffusers; guidance: if the network embeds it
    guidance_schedule: engine -> the steps' levels -> their guidance scales, if the user gives none; (): one for all
    extra_channels:   input channels after x: a key of pipelines.initial_latent.EXTRA_CHANNELS
    weighted_together: True if a prompt's weights are applied to CLIP-L and bigG as one
    may_predict_v:    True if some checkpoints predict v without declaring it; a trial run of the network finds out
    pixel_space:      True if the network works on pixels, without an autoencoder
    latent_format:    key of pipelines/latent_rgb.json, its latents' projection to colours; None: none is known
    corrects_scheduler: True if diffusers' pipelines set steps_offset to 1 and clip_sample to False in any folder
    rounds_size_down: True if diffusers rounds a side down to a multiple; False if it refuses other sizes
    editing:          engine -> how it shows the pictures to edit to the text encoder; None: it shows none
    references:       engine -> how it resizes pictures to edit that the text encoder does not see; None: it takes
                      whole tokens only
    editing_rule:     how a prompt with such pictures becomes tokens; None: the text encoder sees none of them
    layers:           default number of layers that it takes the picture to edit apart into; 0: it draws a picture
    draws:            False if txt2img does not support it
    zeroed:           engine -> True if the call without the prompt has zeros in place of the prompt's hidden states
    other_engines:    conventions besides sd-cli's and diffusers' that have rows for it in these tables
    draws_hint:       True if diffusers samples a control picture's latent from its posterior; False: it is the mean
    params:           engine -> params of the denoiser that this engine computes with, where engines differ
    decoding:         engine -> params of the autoencoder that are the pipeline's, whatever its config
                      says; each row has the same ones
    """

    name: str
    title: str
    encoders: Mapping[str, TextEncoder]
    join: Callable[[EncodedPrompt], Condition]
    schedule: Mapping[str, str]
    flow: Flow | None = None
    guide: Mapping[str, Guide] = dict.fromkeys(ENGINES, guide)
    clip_layer: int = 1
    final_norm: bool = True
    steps: int = 20
    cfg_scale: float = 7.0
    guidance: float = 3.5
    guidance_schedule: Mapping[str, Callable[[np.ndarray], tuple[float, ...]]] = {"sdcpp": lambda sigmas: ()}
    sampler: str = "euler"
    extra_channels: str | None = None
    weighted_together: bool = False
    may_predict_v: bool = False
    pixel_space: bool = False
    latent_format: str | None = None
    corrects_scheduler: bool = False
    rounds_size_down: bool = False
    editing: Mapping[str, Editings] | None = None
    references: Mapping[str, References] | None = None
    editing_rule: TextRule | None = None
    layers: int = 0
    draws: bool = True
    zeroed: Mapping[str, bool] = dict.fromkeys(ENGINES, False)
    other_engines: tuple[str, ...] = ()
    draws_hint: bool = False
    params: Mapping[str, Mapping[str, Any]] = {engine: {} for engine in ENGINES}
    decoding: Mapping[str, Mapping[str, Any]] = {engine: {} for engine in ENGINES}

    def known_to(self, convention: Convention) -> bool:
        """True if refsd knows the convention's rules for it."""
        own = convention.draws is None or self.name in convention.draws
        return own or convention.name in self.other_engines


# Shapes of the denoiser by tensor name -> the variant's name and the reason; None: not of this family.
Identify = Callable[[Mapping[str, Shape]], tuple[str, str] | None]


class Family(NamedTuple):
    """A family of models with the same denoiser network.

    name:     as "flux"; for --param latents=NAME, and refsd tokenize --family NAME
    released: year and month of its first model; families are listed in this order
    network:  name of its denoiser network
    identify: finds the variant from the denoiser's tensors
    variants: its models; the text encoders of the first stand for the family
    sizes:    title of a released model -> component -> size, to find the models that an adapter file fits
    recipes:  recipe models by name
    """

    name: str
    released: str
    network: str
    identify: Identify
    variants: tuple[Variant, ...]
    sizes: Mapping[str, Mapping[str, Any]] = {}
    recipes: Mapping[str, RecipeModel] = {}

    @property
    def encoders(self) -> Mapping[str, TextEncoder]:
        return self.variants[0].encoders


class Identity(NamedTuple):
    """The model that a checkpoint holds.

    name:  name of a variant; "parts" if there is no denoiser
    title: name for messages
    why:   what identifies it
    """

    name: str
    title: str
    why: str
