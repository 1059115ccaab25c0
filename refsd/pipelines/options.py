"""The options of `refsd txt2img`, a row each: type, default, help and range, from which all else follows.

The command line, the defaults of Settings, HiresSettings, GuidanceRule and PreviewSettings, and the checks of
ranges read this table. It imports nothing that takes time, so that --help is quick.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from refsd.numerics.errors import BadInput

REQUIRED = ...  # the default of an option that must be given


class Option(NamedTuple):
    """An option.

    name:    of the parameter; the flag is --name with dashes
    kind:    type of its value
    default: REQUIRED, or the value where it is not given
    help:    "": the command line describes it for several commands
    flags:   other flags for it, with spaces between
    panel:   heading in the help; "": none of its own
    field:   "Settings.steps": field that takes its value as it is; "": it is read in another way
    between: lowest and highest value; the default is always allowed
    """

    name: str
    kind: Any
    default: Any
    help: str = ""
    flags: str = ""
    panel: str = ""
    field: str = ""
    between: tuple[float, float] | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


_FINITE = (-math.inf, math.inf)
_image = partial(Option, panel="Input pictures")
_tile = partial(Option, panel="Large pictures")
_guidance = partial(Option, panel="Guidance")
_hires = partial(Option, panel="Hires pass")
_preview = partial(Option, panel="Previews")
# fmt: off
OPTIONS: tuple[Option, ...] = (
    Option(
        "prompt", str, REQUIRED,
        "What to draw. (x:1.2), [x] and BREAK work as in A1111.",
        "-p", field="Settings.prompt",
    ),
    Option(
        "model", Path | None, None,
        "A .safetensors or .gguf file, a diffusers folder, or recipe:FAMILY[:TYPE][:tiny]: drawn weights.",
        "-m",
    ),
    Option("output", Path, Path("output.png"), "A .png file.", "-o"),
    Option(
        "negative_prompt", str, "",
        "What not to draw. Used if --cfg-scale is not 1.",
        "-n", field="Settings.negative_prompt",
    ),
    Option(
        "width", int, 0,
        "Pixels, rounded up to the model's multiple. 0: the width of --init-img, or 512.",
        "-W", field="Settings.width", between=(1, 4096),
    ),
    Option("height", int, 0, "Like --width.", "-H", field="Settings.height", between=(1, 4096)),
    Option(
        "steps", int | None, None,
        "Default: the family's: 20 for UNets, 4 for FLUX.1 schnell, ...",
        field="Settings.steps", between=(1, 1000),
    ),
    Option(
        "cfg_scale", float | None, None,
        "Classifier-free guidance; 1 turns it off. Default: 7 for UNets, 1 for FLUX and Z-Image.",
        field="Settings.cfg_scale", between=_FINITE,
    ),
    Option(
        "guidance", float | None, None,
        "Distilled guidance, for models that embed it. Default: FLUX.1 3.5, Fill 30, FLUX.2 4.",
        field="Settings.guidance", between=(0, 1000),
    ),
    Option(
        "like", str, "sdcpp",
        "sdcpp, diffusers, comfyui, a1111 or forge: the engine to imitate in prompts, schedule, noise and img2img; "
        "the last two for SD 1.x, SD 2.x and SDXL, comfyui also for most flows (docs/pictures.md).",
        field="Settings.like",
    ),
    Option(
        "sampling_method", str | None, None,
        "euler, heun, dpm++2m, ...; an unknown name lists all. Default: that of --like, else euler_a for UNets, "
        "else euler.",
        "--sampler", field="Settings.sampler",
    ),
    Option(
        "scheduler", str | None, None,
        "discrete, karras, flow_uniform, ...; an unknown name lists all. Default: that of the family and of "
        "--like; lcm for the samplers lcm and tcd.",
        "--schedule", field="Settings.schedule",
    ),
    Option("sigmas", str | None, None, "Noise levels instead of a schedule: 14.61,7.8,3.5,0. --steps is ignored."),
    Option(
        "flow_shift", float | None, None,
        "Shift of a rectified flow. Default: 3 for SD 3; FLUX: by the size (give its mu).",
        field="Settings.flow_shift", between=(-100, 100),
    ),
    Option(
        "prediction", str | None, None,
        "What a UNet predicts: eps, v or edm_v. Default: from its config; for SD 2 files by a trial run.",
        field="Settings.prediction",
    ),
    Option(
        "eta", float | None, None,
        "Share of fresh noise, for samplers that add noise. Default: sd-cli's.",
        field="Settings.eta",
    ),
    Option("seed", int, 42, "Below 0: a random seed, which is printed.", "-s", field="Settings.seed"),
    Option(
        "rng", str | None, None,
        "cuda (Philox, as sd-cli and A1111) or cpu (as torch, diffusers, ComfyUI).",
        field="Settings.rng",
    ),
    Option(
        "sampler_rng", str | None, None,
        "Generator of the noise between steps. Default: that of --rng; with --like comfyui nv, a GPU's.",
        field="Settings.sampler_rng",
    ),
    Option("clip_skip", int, -1, "2 skips CLIP's last layer. Below 1: the family's default."),
    Option(
        "batch_count", int, 1,
        "How many pictures, with consecutive seeds: cat_0.png, cat_1.png, ...",
        "-b", field="Settings.batch_count", between=(1, 1000),
    ),
    _image("init_img", Path | None, None, "The picture to start from (img2img).", "-i --init-image"),
    _image(
        "strength", float, 0.75,
        "How much of the starting picture to redraw, 0 to 1.",
        field="Settings.strength", between=(0, 1),
    ),
    _image("mask", Path | None, None, "Inpainting mask: white areas are redrawn."),
    _image(
        "control_image", Path | None, None,
        "Control picture for a ControlNet, FLUX.1 Canny or Depth.",
    ),
    _image(
        "control_strength", float, 0.9,
        "Strength of the ControlNet.",
        field="Settings.control_strength", between=(-100, 100),
    ),
    _image(
        "control_start", float, 0.0,
        "Share of the steps after which the ControlNet begins.",
        field="Settings.control_start", between=(0, 1),
    ),
    _image(
        "control_end", float, 1.0,
        "Share of the steps after which the ControlNet ends.",
        field="Settings.control_end", between=(0, 1),
    ),
    _image(
        "control_type", str | None, None,
        "What the control picture shows, for a ControlNet Union: openpose, depth, scribble, canny, ...",
        field="Settings.control_type",
    ),
    _image(
        "ref_image", list[Path] | None, None,
        "The picture to edit, for pix2pix, FLUX.1 Kontext, FLUX.2, Qwen-Image-Edit, -Layered. May be repeated for "
        "FLUX.2 and Edit.",
        "-r",
    ),
    _image(
        "redux_image", Path | None, None,
        "The picture whose content FLUX.1 takes as words, with --redux and --clip_vision; of the encoder's "
        "size, 384x384.",
    ),
    _image(
        "ip_image", list[Path] | None, None,
        "A picture as a prompt, with --ip-adapter and --clip_vision. May be repeated.",
    ),
    _image(
        "ip_scale", float, 1.0,
        "Factor of what the IP-Adapter adds.",
        field="Settings.ip_scale", between=(-100, 100),
    ),
    _image(
        "qwen_image_zero_cond_t", bool, False,
        "The weights are Qwen-Image-Edit 2511's, though no file says so: what is edited is at time 0.",
    ),
    _image(
        "flux2_klein_kv", bool, False,
        "The weights are FLUX.2 klein 9B KV's, though no file says so: what is edited sees itself alone.",
    ),
    _image(
        "qwen_image_layers", int | None, None,
        "Layers that Qwen-Image-Layered takes the picture to edit apart into, a file each. Default: 4.",
        field="Settings.qwen_image_layers", between=(1, 100),
    ),
    _image(
        "img_cfg_scale", float | None, None,
        "Image guidance of pix2pix. Default: --cfg-scale; with --like diffusers 1.5.",
        field="Settings.image_cfg_scale", between=_FINITE,
    ),
    _tile(
        "vae_tiling", bool, False,
        "Decode in tiles: needs less memory; the picture differs slightly.",
    ),
    _tile(
        "vae_tile_size", str | None, None,
        "In latent pixels: 32, or 32x24 (width x height). Below 4: 32.",
    ),
    _tile(
        "vae_relative_tile_size", str | None, None,
        "Share of the latent, 0.5 or 0.5x0.25; above 1: the number of tiles. Overrides --vae-tile-size.",
    ),
    _tile("vae_tile_overlap", float, 0.5, "Share of a tile that overlaps its neighbours, 0 to 0.5."),
    _guidance(
        "guidance_rescale", float, 0.0,
        "CFG rescale: bring the guided prediction back to the spread of the one with the prompt, 0 to 1. 0.7 "
        "is usual for models that predict v.",
        field="GuidanceRule.guidance_rescale", between=(0, 1),
    ),
    _guidance(
        "cfg_norm", float, 0.0,
        "ComfyUI's CFGNorm: no pixel of what is denoised longer than with the prompt alone; then all times this, "
        "its strength, 1 as a rule. 0 turns it off.",
        field="GuidanceRule.cfg_norm", between=(0, 100),
    ),
    _guidance(
        "slg_scale", float, 0.0,
        "Skip-layer guidance, for SD 3 and FLUX.1: away from a prediction without some layers. 2.5 suits SD "
        "3.5 medium; 0 turns it off.",
        field="GuidanceRule.slg_scale", between=(-100, 100),
    ),
    _guidance("skip_layers", str, "7,8,9", "The layers left out, from 0."),
    _guidance(
        "skip_layer_start", float, 0.01,
        "Share of the steps before it begins.",
        field="GuidanceRule.skip_layer_start", between=(0, 1),
    ),
    _guidance(
        "skip_layer_end", float, 0.2,
        "Share of the steps at which it ends.",
        field="GuidanceRule.skip_layer_end", between=(0, 1),
    ),
    _guidance(
        "extra_sample_args", str, "",
        "NAME=VALUE,...: apg_eta, apg_momentum, apg_norm_threshold, apg_norm_threshold_smoothing (APG: "
        "guidance with less of what oversaturates), guidance_schedule (7x10+1x5: scale 7 in ten steps, then "
        "1 in five), slg_uncond (true: skip layers without the prompt too).",
    ),
    Option(
        "cache_mode", str | None, None,
        "A cache that skips work in some steps and changes the picture: easycache, ucache, dbcache (sd-cli's), "
        "first-block, taylorseer, magcache (diffusers'), teacache.",
        panel="Caches",
    ),
    Option(
        "cache_option", str, "",
        "NAME=VALUE,...: threshold=0.2,start=0.15,end=0.95; an unknown name lists the cache's options.",
        panel="Caches",
    ),
    _hires("hires", bool, False, "Draw, enlarge, and sample again from part of the noise."),
    _hires(
        "hires_upscaler", str, "Latent",
        "Latent, Latent (nearest), Latent (nearest-exact), Latent (antialiased), Latent (bicubic), Latent "
        "(bicubic antialiased), Lanczos, Nearest, or the file of an ESRGAN.",
        field="HiresSettings.upscaler",
    ),
    _hires("hires_scale", float, 2.0, "New side / old side.", field="HiresSettings.scale"),
    _hires(
        "hires_width", int, 0,
        "Pixels, instead of a scale. 0: as --hires-height.",
        field="HiresSettings.width",
    ),
    _hires("hires_height", int, 0, "Like --hires-width.", field="HiresSettings.height"),
    _hires("hires_steps", int, 0, "0: --steps.", field="HiresSettings.steps"),
    _hires(
        "hires_denoising_strength", float, 0.7,
        "How much of the enlarged picture to redraw, above 0, at most 1.",
        field="HiresSettings.strength",
    ),
    _hires(
        "hires_sigmas", str | None, None,
        "Noise levels of the second pass instead of a schedule: 3.5,1.2,0.",
    ),
    _hires(
        "hires_upscale_tile_size", int, 128,
        "Pixels of a tile of the ESRGAN.",
        field="HiresSettings.tile_size",
    ),
    _preview(
        "preview", str, "none",
        "A picture of the steps, on a terminal with true colour and in --preview-path: none, proj (from the "
        "latent by a linear map, quick), tae (by --taesd) or vae.",
        field="PreviewSettings.method",
    ),
    _preview(
        "preview_path", Path, Path("preview.png"),
        "A .png file, replaced by each preview.",
        field="PreviewSettings.path",
    ),
    _preview(
        "preview_interval", int, 1,
        "Steps from one preview to the next.",
        field="PreviewSettings.interval", between=(1, math.inf),
    ),
    _preview(
        "preview_noisy", bool, False,
        "Show the latent with its noise, not what the network takes it for.",
        field="PreviewSettings.noisy",
    ),
    Option("circular", bool, False, "Circular padding on both axes, so that the picture tiles (UNets)."),
    Option("circularx", bool, False, "Circular padding from left to right."),
    Option("circulary", bool, False, "Circular padding from top to bottom."),
    Option("numerics", str, "float32"),
    Option("deviation", list[str] | None, None, "A known deviation of an engine to imitate. May be repeated."),
    Option("lora", list[str] | None, None, "FILE[:STRENGTH]: an adapter to apply at run time. May be repeated."),
    Option("lora_rule", str, "trainer"),
    Option(
        "embd_dir", Path | None, None,
        "A folder of learned embeddings (textual inversion): .pt, .bin, .safetensors. In a prompt the file's "
        "name stands for its vectors; with --like diffusers the token in the file. -v lists them.",
    ),
    Option(
        "taps", Path | None, None,
        "Write text encodings, noise, every step, the latent and the picture to this .safetensors file.",
    ),
    Option("json", bool, False, "Print the pictures and all settings, including defaults, as JSON."),
    Option("verbose", bool, False, "Print what is read and how long each part takes.", "-v"),
)
# fmt: on
_DEFAULTS = {option.field: option.default for option in OPTIONS}


def default(field: str) -> Any:
    """Return the default of a field: "Settings.steps"."""
    return _DEFAULTS[field]


def fields(of: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return field -> value, of the options whose values a class takes as they are. of: "Settings" """
    rows = {option.name: option.field.split(".") for option in OPTIONS if option.field and option.name in values}
    return {field: values[name] for name, (kind, field) in rows.items() if kind == of}


def check_between(settings: Any) -> None:
    """Raise BadInput for a value out of its range. settings: Settings, GuidanceRule or PreviewSettings"""
    for option in OPTIONS:
        kind, _, field = option.field.partition(".")
        if option.between is None or kind != type(settings).__name__:
            continue
        value, (low, high) = getattr(settings, field), option.between
        if value == option.default or (low <= value <= high and math.isfinite(value)):
            continue
        text = f"{low:g} or more" if high == math.inf else f"{low:g} to {high:g}"
        raise BadInput(f"{option.flag} {value}: expected {'a finite number' if low == -math.inf else text}")
