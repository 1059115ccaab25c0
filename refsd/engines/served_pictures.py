"""What the engines behind servers share: the case's request, the weights' name, the picture that came back."""

import io
from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure
from refsd.judges.picture import OP, PIXELS, settings_of
from refsd.numerics.profiles import PROFILES
from refsd.pipelines.settings import Settings

PROBE = 20.0  # seconds in which a server must answer what it is


class Request(NamedTuple):
    """What a picture case asks for. first_noise: the engine that scales the first noise"""

    settings: Settings
    first_noise: str


def request_of(case: Case) -> Request | str:
    """Read a case, or say why no server answers it."""
    if case.op != OP:
        return f"a server is asked for whole pictures, not for {case.op}"
    if case.model is None:
        return "no model"
    return Request(*settings_of(case.params))


def weights_name(model: ModelRecipe) -> str:
    """Return the name, without suffix, under which a server must have a model's recipe weights: refsd-sd15-f16."""
    return f"refsd-{model.family}{'-tiny' if model.tiny else ''}-{model.type}"


def how_to_load(model: ModelRecipe) -> str:
    """Say how the server gets the weights."""
    name, tiny = weights_name(model), " --tiny" if model.tiny else ""
    return (
        f"`refsd weights make {model.family} --type {model.type}{tiny} -o {name}.safetensors` writes it: "
        "load it in the server"
    )


def split_argument(path: str, default: str) -> tuple[str, str]:
    """Split URL[:PROFILE] -> the URL, the numerics profile's name."""
    url, colon, profile = path.rpartition(":")
    return (url, profile) if colon and profile in PROFILES else (path, default)


def pixels_of(data: bytes, width: int, height: int, where: str, cut_off: bool) -> dict[str, np.ndarray]:
    """Decode a picture -> the answer of a picture case, [H, W, 3], 0..255.

    cut_off: the server cuts off fractions where it makes bytes, so that a byte stands for half a step more

    Raises EngineFailure if it is none, or has another size.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.size != (width, height):
                found = "x".join(map(str, image.size))
                raise EngineFailure(f"{where} draws {found} pixels where {width}x{height} are asked for")
            bytes_ = np.asarray(image.convert("RGB"), np.float64)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise EngineFailure(f"{where} answers no PNG picture: {error}") from None
    return {PIXELS: np.minimum(bytes_ + 0.5, 255) if cut_off else bytes_}
