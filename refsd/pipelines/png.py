"""Write PNG files: pixels as bytes, file names, and the text chunk "parameters"."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refsd import __version__
from refsd.circular import CircularAxes
from refsd.conventions import DEFAULT
from refsd.golden.output_file import whole_file
from refsd.models.vae.tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines.plan import Plan


def to_bytes(image: np.ndarray) -> np.ndarray:
    """Quantize [1, C, H, W], -1..1 -> [H, W, C] uint8: floor(255 * clip((image + 1) / 2, 0, 1) + 0.5), in float32.

    Source: stable-diffusion.cpp src/preprocessing.hpp, preprocessing_float_to_u8.
    """
    unit = np.clip((image[0].astype(np.float32) + np.float32(1)) * np.float32(0.5), 0, 1)
    return np.floor(unit * np.float32(255) + np.float32(0.5)).astype(np.uint8).transpose(1, 2, 0)


def output_paths(output: Path, count: int) -> list[Path]:
    """Name the pictures as sd-cli does: cat.png, or cat_0.png, cat_1.png, ... if there are several.

    A missing suffix becomes .png. Raises BadInput for another suffix.
    """
    if output.suffix.lower() not in ("", ".png"):
        raise BadInput(f"--output {output}: refsd writes PNG; expected a name that ends in .png")
    suffix = output.suffix or ".png"
    numbers = [""] if count == 1 else [f"_{b}" for b in range(count)]
    return [output.with_name(f"{output.stem}{number}{suffix}") for number in numbers]


def parameters_text(plan: Plan, seed: int, of_files: Mapping[str, str]) -> str:
    """Format the text chunk as A1111 and sd-cli do. of_files: name -> value of entries that are not in the plan"""
    fields = {
        "Steps": plan.steps,
        "CFG scale": plan.cfg_scale,
        "Seed": seed,
        "Size": f"{plan.width}x{plan.height}",
        "RNG": plan.rng,
        "Sampler": f"{plan.sampler} {'custom' if plan.custom_sigmas else plan.schedule}",
        **({} if plan.eta is None else {"Eta": f"{plan.eta:g}"}),
        **({"Clip skip": plan.clip_skip} if plan.clip_skip and plan.clip_skip > 1 else {}),
        **({} if plan.qwen_image_layers is None else {"Layers": plan.qwen_image_layers}),
        **({} if plan.guidance is None else {"Distilled CFG Scale": f"{plan.guidance:g}"}),
        **{name: _words(value) for name, value in plan.guidance_rule.changed().items()},
        **({} if plan.cache is None else {"Cache": str(plan.cache)}),
        **({} if plan.convention is DEFAULT else {"Like": plan.like}),
        **of_files,
        **_decoding(plan.tiling, plan.circular),
        "Version": f"refsd {__version__}",
    }
    negative = f"Negative prompt: {plan.negative_prompt}\n" if plan.negative_prompt else ""
    return f"{plan.prompt}\n{negative}{', '.join(f'{name}: {value}' for name, value in fields.items())}"


def _words(value: float | tuple[float, ...]) -> str:
    """Format a setting without commas, which separate the entries."""
    return " ".join(f"{one:g}" for one in value) if isinstance(value, tuple) else f"{value:g}"


def _decoding(tiling: Tiling | None, circular: CircularAxes) -> dict[str, str]:
    text = {}
    if tiling is not None:
        relative = tiling.relative_x > 0 or tiling.relative_y > 0
        size = (tiling.relative_x, tiling.relative_y) if relative else (tiling.size_x, tiling.size_y)
        text["VAE tiles"] = f"{size[0]:g}x{size[1]:g} by {tiling.target():g}"
    if circular.x or circular.y:
        text["Circular"] = "x" * circular.x + "y" * circular.y
    return text


def write_png(path: Path, pixels: np.ndarray, parameters: str) -> None:
    """Write pixels, [H, W, 3 or 4] uint8. Raises BadInput as `whole_file` does."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_itxt("parameters", parameters) if not parameters.isascii() else info.add_text("parameters", parameters)
    with whole_file(path) as part:
        Image.fromarray(pixels).save(part, "PNG", pnginfo=info)
