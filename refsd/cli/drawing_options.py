"""Options of refsd txt2img for guidance, the hires pass and previews, with sd-cli's flag names."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

_guidance = partial(typer.Option, rich_help_panel="Guidance")
_hires = partial(typer.Option, rich_help_panel="Hires pass")
_preview = partial(typer.Option, rich_help_panel="Previews")

_RESCALE = (
    "CFG rescale: bring the guided prediction back to the spread of the one with the prompt, 0 to 1. "
    "0.7 is usual for models that predict v."
)
GuidanceRescale = Annotated[float, _guidance("--guidance-rescale", help=_RESCALE)]
_SLG = (
    "Skip-layer guidance, for SD 3 and FLUX.1: away from a prediction without some layers. "
    "2.5 suits SD 3.5 medium; 0 turns it off."
)
SlgScale = Annotated[float, _guidance("--slg-scale", help=_SLG)]
SkipLayers = Annotated[str, _guidance("--skip-layers", help="The layers left out, from 0.")]
SkipLayerStart = Annotated[float, _guidance("--skip-layer-start", help="Share of the steps before it begins.")]
SkipLayerEnd = Annotated[float, _guidance("--skip-layer-end", help="Share of the steps at which it ends.")]
_EXTRA = (
    "NAME=VALUE,...: apg_eta, apg_momentum, apg_norm_threshold, apg_norm_threshold_smoothing (APG: guidance with "
    "less of what oversaturates), guidance_schedule (7x10+1x5: scale 7 in ten steps, then 1 in five), slg_uncond "
    "(true: skip layers without the prompt too)."
)
ExtraSampleArgs = Annotated[str, _guidance("--extra-sample-args", help=_EXTRA)]

Hires = Annotated[bool, _hires("--hires", help="Draw, enlarge, and sample again from part of the noise.")]
_UPSCALER = (
    "Latent, Latent (nearest), Latent (nearest-exact), Latent (antialiased), Latent (bicubic), Latent (bicubic "
    "antialiased), Lanczos, Nearest, or the file of an ESRGAN."
)
HiresUpscaler = Annotated[str, _hires("--hires-upscaler", help=_UPSCALER)]
HiresScale = Annotated[float, _hires("--hires-scale", help="New side / old side.")]
HiresWidth = Annotated[int, _hires("--hires-width", help="Pixels, instead of a scale. 0: as --hires-height.")]
HiresHeight = Annotated[int, _hires("--hires-height", help="Like --hires-width.")]
HiresSteps = Annotated[int, _hires("--hires-steps", help="0: --steps.")]
_STRENGTH = "How much of the enlarged picture to redraw, above 0, at most 1."
HiresStrength = Annotated[float, _hires("--hires-denoising-strength", help=_STRENGTH)]
_SIGMAS = "Noise levels of the second pass instead of a schedule: 3.5,1.2,0."
HiresSigmas = Annotated[str | None, _hires("--hires-sigmas", help=_SIGMAS)]
HiresTileSize = Annotated[int, _hires("--hires-upscale-tile-size", help="Pixels of a tile of the ESRGAN.")]

_METHOD = (
    "A picture of the steps, on a terminal with true colour and in --preview-path: none, proj (from the latent by "
    "a linear map, quick), tae (by --taesd) or vae."
)
Preview = Annotated[str, _preview("--preview", help=_METHOD)]
PreviewPath = Annotated[Path, _preview("--preview-path", help="A .png file, replaced by each preview.")]
PreviewInterval = Annotated[int, _preview("--preview-interval", help="Steps from one preview to the next.")]
_NOISY = "Show the latent with its noise, not what the network takes it for."
PreviewNoisy = Annotated[bool, _preview("--preview-noisy", help=_NOISY)]
