"""How each family's pictures are drawn: a row of data a family, which one loop (txt2img.py) reads.

Where engines differ, a row has an entry for each: stable-diffusion.cpp as of 2026, and diffusers' pipelines.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from refsd.pipelines import joining
from refsd.pipelines.joining import Join
from refsd.samplers.levels import FlowLevels
from refsd.samplers.parameterization import FLOW, Prediction
from refsd.samplers.schedules.flow import flux2_mu, flux_mu

ENGINES: tuple[str, ...] = "sdcpp", "diffusers"

# tokens of the picture, steps -> how far the flow's times are moved towards noise
Shift = Callable[[int, int], float]


class TimeLeft(FlowLevels):
    """Z-Image is told how much of the picture is there already: 1 - sigma."""

    def to_t(self, sigma: float) -> float:
        return 1 - sigma


# Z-Image's network gives data - noise. Source: Tongyi-MAI/Z-Image, zimage/pipeline.py: noise_pred = -noise_pred.
TO_DATA = Prediction("to-data", lambda sigma: (1.0, sigma, 1.0))


class Flow(NamedTuple):
    """
    shift:      engine -> its shift
    said:       what --flow-shift means: the shift, or Flux's mu, whose shift is e^mu
    levels:     shift -> what the network is told
    prediction: what it answers
    """

    shift: Mapping[str, Shift]
    said: Callable[[float], float] = float
    levels: Callable[[float], FlowLevels] = FlowLevels
    prediction: Prediction = FLOW


def _always(shift: float) -> dict[str, Shift]:
    return dict.fromkeys(ENGINES, lambda tokens, steps: shift)


def _by_tokens(tokens: int, steps: int) -> float:
    return math.exp(flux_mu(tokens))


def _by_tokens_and_steps(tokens: int, steps: int) -> float:
    return math.exp(flux2_mu(tokens, steps))


def _unit_time(shift: float) -> FlowLevels:
    return FlowLevels(shift, multiplier=1.0)


_FLUX = Flow(dict.fromkeys(ENGINES, _by_tokens), math.exp, _unit_time)
# stable-diffusion.cpp's schedule `flux` moves schnell's and Chroma's times too; they were trained without.
_UNMOVED = _FLUX._replace(shift={"sdcpp": _by_tokens, "diffusers": lambda tokens, steps: 1.0})
_FLUX2 = Flow(dict.fromkeys(ENGINES, _by_tokens_and_steps), math.exp, _unit_time)
_SD3 = Flow(_always(3.0))
_ZIMAGE = Flow(_always(3.0), levels=TimeLeft, prediction=TO_DATA)


class Drawing(NamedTuple):
    """
    text:       the family's name in TEXT_RULES
    encoders:   components that read the prompt
    join:       what they say, as the network takes it
    schedule:   engine -> its default
    flow:       None: a UNet, whose levels are SD's and whose prediction is told by the checkpoint
    layer:      of CLIP, from the end
    normed:     whether CLIP's last norm follows that layer
    steps, cfg_scale, guidance, sampler: defaults; guidance: of a network that embeds one
    optional:   encoders that it can do without
    behind:     what stands behind x in the network's input: a key of given.BEHIND
    projected:  engines that project CLIP-L's pooled text
    on_pixels:  whether the network draws them itself, without an autoencoder
    """

    text: str
    encoders: tuple[str, ...]
    join: Join
    schedule: Mapping[str, str]
    flow: Flow | None = None
    layer: int = 1
    normed: bool = True
    steps: int = 20
    cfg_scale: float = 7.0
    guidance: float = 3.5
    sampler: str = "euler"
    optional: tuple[str, ...] = ()
    behind: str | None = None
    projected: tuple[str, ...] = ()
    on_pixels: bool = False


_UNET_SCHEDULE: dict[str, str] = {"sdcpp": "discrete", "diffusers": "leading"}
_UNIFORM: dict[str, str] = dict.fromkeys(ENGINES, "flow_uniform")

_SD1 = Drawing("sd1", ("clip",), joining.clip, _UNET_SCHEDULE, sampler="euler_a")
_SD2 = _SD1._replace(text="sd2", layer=2)
_SDXL = _SD1._replace(text="sdxl", encoders=("clip", "clip_g"), join=joining.sdxl, layer=2, normed=False)
_SD3_ROW = Drawing(
    "sd3",
    ("clip", "clip_g", "t5"),
    joining.sd3,
    {"sdcpp": "discrete", "diffusers": "flow_linspace"},
    _SD3,
    layer=2,
    normed=False,
    steps=28,
    optional=("t5",),
    projected=("diffusers",),
)
_SD35 = _SD3_ROW._replace(cfg_scale=4.5)
_DEV = Drawing("flux", ("clip", "t5"), joining.flux, _UNIFORM, _FLUX, steps=28, cfg_scale=1.0)
_CHROMA = Drawing("chroma", ("t5",), joining.chroma, _UNIFORM, _UNMOVED, steps=35, cfg_scale=5.0)
_KLEIN = Drawing("flux2-klein", ("qwen3",), joining.flux2, _UNIFORM, _FLUX2, steps=4, cfg_scale=1.0)

# Families of weights/families.py. Defaults of steps and guidance are the originals' or diffusers'.
DRAWINGS: dict[str, Drawing] = {
    "sd15": _SD1,
    "sd15-inpaint": _SD1._replace(behind="inpaint"),
    "sd15-edit": _SD1._replace(behind="edit"),
    "sd2": _SD2,
    "sd2-inpaint": _SD2._replace(behind="inpaint"),
    "sdxl": _SDXL,
    "sdxl-inpaint": _SDXL._replace(behind="inpaint"),
    "sdxl-edit": _SDXL._replace(behind="edit"),
    "sdxl-refiner": _SDXL._replace(encoders=("clip_g",), join=joining.refiner),
    "sd3": _SD3_ROW,
    "sd35-medium": _SD35,
    "sd35-large": _SD35,
    "flux-dev": _DEV,
    "flux-schnell": _DEV._replace(flow=_UNMOVED, steps=4),
    "flux-fill": _DEV._replace(guidance=30.0, behind="fill"),
    "flux-control": _DEV._replace(guidance=10.0, behind="control"),
    "chroma": _CHROMA,
    "chroma-radiance": _CHROMA._replace(on_pixels=True),
    "zimage": Drawing(
        "zimage",
        ("qwen3",),
        joining.zimage,
        {"sdcpp": "discrete", "diffusers": "flow_uniform"},
        _ZIMAGE,
        steps=9,
        cfg_scale=1.0,
    ),
    "flux2-klein": _KLEIN,
    "flux2-dev": _KLEIN._replace(text="flux2-dev", encoders=("mistral",), steps=50, guidance=4.0),
}
