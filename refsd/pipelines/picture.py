"""A picture's bytes, its file's name, and the words that a PNG carries."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refsd.golden.output_file import whole_file
from refsd.numerics.errors import BadInput
from refsd.pipelines.settings import Settings


def to_bytes(image: np.ndarray) -> np.ndarray:
    """[1, 3, H, W], -1..1 -> [H, W, 3] uint8: floor(255 * clip((image + 1) / 2, 0, 1) + 0.5), in float32.

    Source: stable-diffusion.cpp src/preprocessing.hpp, preprocessing_float_to_u8.
    """
    unit = np.clip((image[0].astype(np.float32) + np.float32(1)) * np.float32(0.5), 0, 1)
    return np.floor(unit * np.float32(255) + np.float32(0.5)).astype(np.uint8).transpose(1, 2, 0)


def output_paths(output: Path, count: int) -> list[Path]:
    """sd-cli's names: cat.png, or for several cat_0.png, cat_1.png, ...; .png where there is no suffix.

    Raises BadInput for another format.
    """
    if output.suffix.lower() not in ("", ".png"):
        raise BadInput(f"--output {output}: refsd writes PNG; expected a name that ends in .png")
    suffix = output.suffix or ".png"
    numbers = [""] if count == 1 else [f"_{b}" for b in range(count)]
    return [output.with_name(f"{output.stem}{number}{suffix}") for number in numbers]


def parameters_text(settings: Settings, seed: int, extras: Mapping[str, str]) -> str:
    """What A1111 and sd-cli keep in a PNG's text chunk "parameters"."""
    fields = {
        "Steps": settings.steps,
        "CFG scale": settings.cfg_scale,
        "Seed": seed,
        "Size": f"{settings.width}x{settings.height}",
        "RNG": settings.rng,
        "Sampler": f"{settings.sampler} {'custom' if settings.sigmas else settings.schedule}",
        **({} if settings.eta is None else {"Eta": f"{settings.eta:g}"}),
        **({"Clip skip": settings.clip_skip} if settings.clip_skip and settings.clip_skip > 1 else {}),
        **({} if settings.guidance is None else {"Distilled CFG Scale": f"{settings.guidance:g}"}),
        **({} if settings.like == "sdcpp" else {"Like": settings.like}),
        **extras,
    }
    negative = f"Negative prompt: {settings.negative_prompt}\n" if settings.negative_prompt else ""
    return f"{settings.prompt}\n{negative}{', '.join(f'{name}: {value}' for name, value in fields.items())}"


def write_png(path: Path, pixels: np.ndarray, parameters: str) -> None:
    """Write pixels, [H, W, 3] uint8. Raises BadInput as `whole_file` does."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_itxt("parameters", parameters) if not parameters.isascii() else info.add_text("parameters", parameters)
    with whole_file(path) as part:
        Image.fromarray(pixels).save(part, "PNG", pnginfo=info)
