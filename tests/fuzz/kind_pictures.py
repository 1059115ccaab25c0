"""Pictures to begin with, in every format that Pillow is likely to meet."""

import io
from pathlib import Path
from random import Random

import numpy as np
from kind import Files, Kind, Mutation
from mutations import bytes_changed
from PIL import Image

from refsd.pipelines.conditioning_images import read_image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "TGA")


def _examples(folder: Path) -> dict[str, Files]:
    pixels = np.random.default_rng(1).integers(0, 256, (24, 32, 3), np.uint8)
    made: dict[str, Files] = {}
    for format in FORMATS:
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, format)
        made[format] = {"a.png": out.getvalue()}
    return made


def _mutate(rng: Random, files: Files) -> Mutation:
    changed, what = bytes_changed(rng, bytes(files["a.png"]), rng.choice([40, 200, None]))  # type: ignore[arg-type]
    return Mutation({"a.png": changed}, what)


def _read(folder: Path):
    return [read_image(flag, folder / "a.png").tobytes().hex()[:4000] for flag in ("--init-img", "--mask")]


PICTURES = Kind("pictures", _examples, _mutate, _read)
