"""The hires pass: enlarge the finished latent and sample again from part of the noise, as sd-cli's --hires does."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.kernels.interpolate import resize_bicubic, resize_bilinear, weighted
from refsd.kernels.interpolation_taps import lanczos
from refsd.kernels.resample import resize_nearest, resize_nearest_exact
from refsd.models.vae.tiling import tiled_sdcpp
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.pipelines.guided_network import Conditioning, Listener
from refsd.pipelines.initial_latent import InitialLatent, signed
from refsd.pipelines.loaded_component import LoadedComponent, load_component
from refsd.pipelines.options import default
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan, resolve
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import decode, sample
from refsd.samplers.noise import RNGS
from refsd.samplers.step import Callback
from refsd.weights import open_checkpoint

Resize = Callable[[np.ndarray, int, int], np.ndarray]


def _lanczos(x: np.ndarray, height: int, width: int) -> np.ndarray:
    H, W = x.shape[2:]
    return weighted(np.ascontiguousarray(x), lanczos(H, height), lanczos(W, width))


# sd-cli's names. A latent is never made smaller, where antialiasing would matter; its antialiased bicubic has
# a = -3/4 as the plain one, A1111's and torch's a = -1/2.
LATENT_UPSCALERS: dict[str, Resize] = {
    "Latent": resize_bilinear,
    "Latent (nearest)": resize_nearest,
    "Latent (nearest-exact)": resize_nearest_exact,
    "Latent (antialiased)": resize_bilinear,
    "Latent (bicubic)": resize_bicubic,
    "Latent (bicubic antialiased)": resize_bicubic,
}
PICTURE_UPSCALERS: dict[str, Resize] = {"Lanczos": _lanczos, "Nearest": resize_nearest}
_ESRGAN_OVERLAP = 0.25


class HiresSettings(NamedTuple):
    """Settings of the hires pass, with sd-cli's names and defaults.

    upscaler:      name in LATENT_UPSCALERS or PICTURE_UPSCALERS, or the file of an ESRGAN
    scale:         new side / old side, where neither width nor height is given
    width, height: pixels; one that is 0 is the other
    steps:         steps to run; 0: as many as the first pass
    strength:      share of the schedule by which the enlarged picture is redrawn
    sigmas:        steps + 1 sigmas that replace the schedule's
    tile_size:     pixels of a tile of the ESRGAN
    """

    upscaler: str = default("HiresSettings.upscaler")
    scale: float = default("HiresSettings.scale")
    width: int = default("HiresSettings.width")
    height: int = default("HiresSettings.height")
    steps: int = default("HiresSettings.steps")
    strength: float = default("HiresSettings.strength")
    sigmas: tuple[float, ...] | None = None
    tile_size: int = default("HiresSettings.tile_size")


class HiresPass(NamedTuple):
    """The second pass, ready to run.

    plan:   of the second pass, in the new size
    resize: of the latent, or if `pixels` of the picture in 0..1; None: by the ESRGAN
    esrgan: None: there is none
    """

    settings: HiresSettings
    plan: Plan
    resize: Resize
    pixels: bool
    esrgan: LoadedComponent | None

    def record(self) -> dict[str, object]:
        """Return the settings that decide the pictures' values, for --json."""
        size = {"width": self.plan.width, "height": self.plan.height}
        return self.settings._asdict() | size | {"sigmas": self.plan.sigmas.tolist()}

    def parameters(self) -> dict[str, str]:
        """Return the entries of a PNG's parameters, with A1111's names."""
        return {
            "Hires upscaler": Path(self.settings.upscaler).name,
            "Hires resize": f"{self.plan.width}x{self.plan.height}",
            "Hires steps": str(len(self.plan.sigmas) - 1),
            "Denoising strength": f"{self.settings.strength:g}",
        }


def resolve_hires(
    pipe: Pipeline, settings: Settings, plan: Plan, hires: HiresSettings, arithmetic: Arithmetic
) -> HiresPass:
    """Prepare the pass. plan: of the first pass

    Raises BadInput for a setting out of range, for a size not larger than the first, and for what the pass lacks:
    input pictures, and engines other than sd-cli.
    """
    truncation = plan.convention.hires_truncation
    if truncation is None:
        raise BadInput(f"--hires: {plan.like} has no hires pass; enlarge the picture and give it with --init-img")
    if plan.images.given():
        raise BadInput("--hires: refsd enlarges pictures drawn from words alone; leave the input pictures out")
    if not (0 < hires.strength <= 1):
        raise BadInput(f"--hires-denoising-strength {hires.strength}: expected above 0, at most 1")
    if hires.tile_size < 4:
        raise BadInput(f"--hires-upscale-tile-size {hires.tile_size}: expected 4 or more")
    width, height = _size(hires, plan)
    second = settings._replace(
        width=width,
        height=height,
        steps=(hires.steps or plan.steps) if hires.sigmas is None else len(hires.sigmas) - 1,
        strength=hires.strength,
        sigmas=hires.sigmas,
    )
    try:
        enlarged = resolve(pipe, second, second_pass=truncation)
    except BadInput as error:
        raise BadInput(f"hires pass: {error}") from None
    if enlarged.width < plan.width or enlarged.height < plan.height:
        raise BadInput(
            f"--hires: {enlarged.width}x{enlarged.height} is smaller than the first {plan.width}x{plan.height}"
        )
    name = hires.upscaler
    if name in LATENT_UPSCALERS:
        return HiresPass(hires, enlarged, LATENT_UPSCALERS[name], False, None)
    if pipe.autoencoder.encoder is None and not pipe.variant.pixel_space:
        raise BadInput(f"--hires-upscaler {name}: the autoencoder has no encoder; take one of the Latent ones")
    if name in PICTURE_UPSCALERS:
        return HiresPass(hires, enlarged, PICTURE_UPSCALERS[name], True, None)
    return HiresPass(hires, enlarged, resize_nearest, True, _open_esrgan(name, arithmetic))


def _size(hires: HiresSettings, plan: Plan) -> tuple[int, int]:
    """Return the size asked for, as sd-cli resolves it. Source: stable-diffusion.cpp, resolve_hires."""
    if hires.width or hires.height:
        return hires.width or hires.height, hires.height or hires.width
    if not (0 < hires.scale <= 16):
        raise BadInput(f"--hires-scale {hires.scale}: expected above 0, at most 16")
    return math.floor(plan.width * hires.scale + 0.5), math.floor(plan.height * hires.scale + 0.5)


def _open_esrgan(name: str, arithmetic: Arithmetic) -> LoadedComponent:
    names = ", ".join([*LATENT_UPSCALERS, *PICTURE_UPSCALERS])
    if not Path(name).exists():
        raise BadInput(f"--hires-upscaler {name}: no such file, and none of {names}")
    checkpoint = open_checkpoint(Path(name))
    if "esrgan" not in checkpoint.components:
        raise BadInput(f"--hires-upscaler {name}: holds no ESRGAN")
    return load_component(checkpoint, "esrgan", arithmetic)


def run_hires(
    pipe: Pipeline,
    hires: HiresPass,
    latent: np.ndarray,
    conditioning: Conditioning,
    seed: int,
    callback: Callback | None = None,
    listener: Listener | None = None,
) -> np.ndarray:
    """Enlarge the latent of a picture and sample again. Arguments and result as of txt2img.sample.

    The generator starts from the seed again: it draws the posterior sample, if the picture was enlarged, then the
    noise. The conditions are the first pass's, its size among them (SDXL), as in stable-diffusion.cpp.
    """
    rng = RNGS[hires.plan.rng](seed)
    enlarged = _enlarged(pipe, hires, latent, rng.randn)
    if listener is not None:
        listener("enlarged", enlarged)
    noise = rng.randn(hires.plan.latent_shape)
    start = InitialLatent(noise, rng, enlarged)
    return sample(pipe, hires.plan, conditioning, seed, callback, listener, start)


def _enlarged(pipe: Pipeline, hires: HiresPass, latent: np.ndarray, draw) -> np.ndarray:
    if not hires.pixels:
        return hires.resize(np.ascontiguousarray(latent), *hires.plan.latent_shape[2:])
    picture = np.clip((decode(pipe, latent) + 1) / 2, 0, 1)
    if hires.esrgan is not None:
        picture = _upscaled(hires.esrgan, picture, hires.settings.tile_size)
    resized = hires.resize(picture, hires.plan.height, hires.plan.width)
    if hires.esrgan is None:
        resized = np.clip(resized, 0, 1)
    return pipe.autoencoder.encode(signed(resized), draw).astype(latent.dtype)


def _upscaled(esrgan: LoadedComponent, picture: np.ndarray, tile: int) -> np.ndarray:
    """Upscale, [1, 3 or 4, H, W], 0..1, in tiles if it is larger than one.

    The network has three channels: it sees alpha as a grey picture of its own.
    Source: stable-diffusion.cpp upscaler.cpp.
    """
    if picture.shape[1] == 4:
        grey = np.repeat(picture[:, 3:], 3, axis=1)
        alpha = _upscaled(esrgan, grey, tile).mean(axis=1, keepdims=True)
        return np.concatenate([_upscaled(esrgan, picture[:, :3], tile), alpha], axis=1)

    def run(x: np.ndarray) -> np.ndarray:
        return esrgan({"x": x}, "picture")["out"]

    H, W = picture.shape[2:]
    if tile >= H and tile >= W:
        return run(picture)
    scale = run(picture[:, :, :4, :4]).shape[2] // 4
    return tiled_sdcpp(run, picture, (min(tile, H), min(tile, W)), _ESRGAN_OVERLAP, up=scale)
