"""Pictures to edit: how each program resizes them for the autoencoder, and Qwen-Image's for the vision tower.

The autoencoder's latents are further tokens of the denoiser; the vision tower's tokens stand in the prompt.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

# Height and width, pixels.
Size = tuple[int, int]
# CLIP's mean and standard deviation of the colours, which Qwen2.5-VL uses too.
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
LATENT_AREA, SEEN_AREA, LAYERED_AREA, _CANVAS = 1024**2, 384**2, 640**2, 4 * 1024**2  # pixels
# Of Qwen2.5-VL's preprocessor_config.json: pixels of a picture for the vision tower.
LEAST, MOST = 56 * 56, 28 * 28 * 16384
SDCPP_LEAST, SDCPP_MOST = 384 * 384, 560 * 560
# Of Qwen3-VL's preprocessor_config.json.
HALF = (0.5, 0.5, 0.5)
LEAST_3, MOST_3 = 256 * 256, 4096 * 4096


class Editing(NamedTuple):
    """How a program prepares the pictures to edit. Pictures are [1, 3 or 4, H, W], 0..1; the fourth is alpha.

    before: number of a picture, from 1 -> the text before its tokens
    latent: (picture, size drawn) -> what the autoencoder encodes
    seen:   (picture, pixels on a side of a token) -> what the vision tower sees
    drawn:  size of the last picture -> size drawn if the user sets none
    most:   number of pictures that it takes
    mrope:  True if a picture's tokens have a row and a column; False: the positions of words
    tower:  component of the vision tower
    colours: mean and standard deviation of the colours by which the tower's pictures are normalised
    """

    before: Callable[[int], str]
    latent: Callable[[np.ndarray, Size], np.ndarray]
    seen: Callable[[np.ndarray, int], np.ndarray]
    drawn: Callable[[Size], Size]
    most: int
    mrope: bool
    tower: str = "qwen2_5_vision"
    colours: tuple[tuple[float, ...], tuple[float, ...]] = (MEAN, STD)


Pictures = tuple[np.ndarray, ...]
# (pictures to edit, size drawn, pixels a side of a token) -> what the autoencoder encodes, where the text encoder
# sees no picture
References = Callable[[Pictures, Size, int], Pictures]
# Program that a folder's model_index.json names, "" for all others -> Editing.
Editings = Mapping[str, Editing]


def of_area(area: int, size: Size) -> Size:
    """Return the size of about `area` pixels with a picture's aspect ratio, in multiples of 32.

    Source: diffusers pipeline_qwenimage_edit_plus.py, calculate_dimensions.
    """
    ratio = size[1] / size[0]
    width = math.sqrt(area * ratio)
    return round(width / ratio / 32) * 32, round(width / 32) * 32


def whole_tokens(size: Size, side: int, least: int, most: int) -> Size:
    """Return the nearest size of whole tokens, whose pixels are between `least` and `most`.

    Source: transformers image_processing_qwen2_vl.py, smart_resize.
    """
    pixels = size[0] * size[1]
    nearest = tuple(round(edge / side) * side for edge in size)
    if math.prod(nearest) > most:
        shrink = math.sqrt(pixels / most)
        nearest = tuple(max(side, math.floor(edge / shrink / side) * side) for edge in size)
    elif math.prod(nearest) < least:
        grow = math.sqrt(least / pixels)
        nearest = tuple(math.ceil(edge * grow / side) * side for edge in size)
    return nearest[0], nearest[1]


def resized(picture: np.ndarray, size: Size, filter: str) -> np.ndarray:
    """Resize in bytes as Pillow does; filter: "LANCZOS" or "BICUBIC"."""
    from PIL import Image

    return _values(_image(picture).resize((size[1], size[0]), getattr(Image.Resampling, filter)))


def on_white(picture: np.ndarray) -> np.ndarray:
    """Lay a picture with alpha on white, in bytes as Pillow does; one without stays as it is. -> [1, 3, H, W]"""
    from PIL import Image

    if picture.shape[1] == 3:
        return picture
    image = _image(picture)
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return _values(white)


def _image(picture: np.ndarray):
    from PIL import Image

    bytes_ = np.floor(picture[0] * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0)
    return Image.fromarray(np.ascontiguousarray(bytes_))


def _values(image) -> np.ndarray:
    return (np.asarray(image).astype(np.float64) / 255).transpose(2, 0, 1)[None]


def nearest(picture: np.ndarray, size: Size) -> np.ndarray:
    """Resize by the pixel at floor(place * old / new). Source: stable-diffusion.cpp, sd::ops::interpolate."""
    rows, columns = (np.arange(new) * old // new for new, old in zip(size, picture.shape[2:], strict=True))
    return picture[:, :, rows[:, None], columns]


def _latent(picture: np.ndarray, drawn: Size) -> np.ndarray:
    return resized(picture, of_area(LATENT_AREA, picture.shape[2:]), "LANCZOS")


def _seen(picture: np.ndarray, side: int, area: int) -> np.ndarray:
    small = resized(picture, of_area(area, picture.shape[2:]), "LANCZOS")
    return resized(small, whole_tokens(small.shape[2:], side, LEAST, MOST), "BICUBIC")


def _sdcpp_latent(picture: np.ndarray, drawn: Size, multiple: int = 32) -> np.ndarray:
    """Source: stable-diffusion.cpp, prepare_image_generation_latents; its quotient of integers is rounded down."""
    H, W = picture.shape[2:]
    width = math.sqrt(min(LATENT_AREA, drawn[0] * drawn[1]) * W // H)
    high, wide = (math.floor(edge / multiple + 0.5) * multiple for edge in (width * H / W, width))
    return nearest(picture, (max(multiple, high), max(multiple, wide)))


def _sdcpp_seen(picture: np.ndarray, side: int) -> np.ndarray:
    """Resize to cover the size, then cut from the middle. Source: stable-diffusion.cpp clip_preprocess."""
    H, W = picture.shape[2:]
    high, wide = whole_tokens((H, W), side, SDCPP_LEAST, SDCPP_MOST)
    scale = max(np.float32(wide) / np.float32(W), np.float32(high) / np.float32(H))
    covering = max(high, int(scale * np.float32(H))), max(wide, int(scale * np.float32(W)))
    top, left = (covering[0] - high) // 2, (covering[1] - wide) // 2
    return nearest(picture, covering)[:, :, top : top + high, left : left + wide]


EDIT_PLUS = Editing(
    lambda number: f"Picture {number}: ",
    _latent,
    lambda picture, side: _seen(picture, side, SEEN_AREA),
    lambda size: of_area(LATENT_AREA, size),
    most=4,
    mrope=True,
)
EDIT = EDIT_PLUS._replace(
    before=lambda number: "", seen=lambda picture, side: _seen(picture, side, LATENT_AREA), most=1
)
SDCPP = EDIT_PLUS._replace(latent=_sdcpp_latent, seen=_sdcpp_seen, drawn=lambda size: size, mrope=False)


def _seen_21(picture: np.ndarray, side: int) -> np.ndarray:
    """Show the vision tower what the autoencoder encodes, on white; its own resizing changes only other sizes."""
    small = on_white(_latent(picture, (0, 0)))
    return resized(small, whole_tokens(small.shape[2:], side, LEAST_3, MOST_3), "BICUBIC")


# Source: diffusers pipeline_qwenimage21.py, prompt_template_ti2i.
QWEN_IMAGE_21 = EDIT_PLUS._replace(
    before=lambda number: f"<image{number}>" if number == 1 else f" <image{number}>",
    seen=_seen_21,
    tower="qwen3_vision",
    colours=(HALF, HALF),
)
QWEN_IMAGE_21_EDITINGS: dict[str, Editings] = {"sdcpp": {"": QWEN_IMAGE_21}, "diffusers": {"": QWEN_IMAGE_21}}
# Source: diffusers pipeline_qwenimage_layered.py, with resolution=640.
LAYERED = EDIT_PLUS._replace(
    latent=lambda picture, drawn: resized(picture, drawn, "LANCZOS"),
    drawn=lambda size: of_area(LAYERED_AREA, size),
    most=1,
)
QWEN_IMAGE_EDITINGS: dict[str, Editings] = {
    "sdcpp": {"": SDCPP},
    "diffusers": {"": EDIT_PLUS, "QwenImageEditPipeline": EDIT},
}


def sdcpp_references(pictures: Pictures, drawn: Size, token: int) -> Pictures:
    """Resize to about the number of pixels drawn, at most LATENT_AREA, in whole tokens."""
    return tuple(_sdcpp_latent(picture, drawn, token) for picture in pictures)


def rounded_down(pictures: Pictures, drawn: Size, token: int) -> Pictures:
    """Resize to whole tokens. Source: diffusers FluxKontextPipeline with _auto_resize=False."""
    sizes = [_whole(picture, token) for picture in pictures]
    return tuple(
        picture if picture.shape[2:] == size else resized(picture, size, "LANCZOS")
        for picture, size in zip(pictures, sizes, strict=True)
    )


def cut_to_tokens(pictures: Pictures, drawn: Size, token: int) -> Pictures:
    """Shrink to at most LATENT_AREA pixels, then cut whole tokens from the middle.

    Source: diffusers Flux2Pipeline.__call__, Flux2ImageProcessor; Flux3ImageProcessor for several pictures.
    """
    return tuple(_cut(picture, token) for picture in pictures)


def whole_or_cut(pictures: Pictures, drawn: Size, token: int) -> Pictures:
    """Continue a single picture by its mirror image up to whole tokens; cut several.

    Source: diffusers Flux3ImageProcessor, "fill" and "crop".
    """
    if len(pictures) > 1:
        return cut_to_tokens(pictures, drawn, token)
    return tuple(_mirrored(picture, token) for picture in pictures)


def _whole(picture: np.ndarray, token: int) -> Size:
    high, wide = (max(token, side // token * token) for side in picture.shape[2:])
    return high, wide


def _cut(picture: np.ndarray, token: int) -> np.ndarray:
    H, W = picture.shape[2:]
    if H * W > LATENT_AREA:
        scale = math.sqrt(LATENT_AREA / (W * H))
        picture = resized(picture, (int(H * scale), int(W * scale)), "LANCZOS")
    high, wide = _whole(picture, token)
    top, left = (picture.shape[2] - high) // 2, (picture.shape[3] - wide) // 2
    return picture[:, :, top : top + high, left : left + wide]


def _mirrored(picture: np.ndarray, token: int) -> np.ndarray:
    H, W = picture.shape[2:]
    scale = min(1.0, math.sqrt(_CANVAS / (H * W)))
    while math.prod(_canvas(size := (round(H * scale), round(W * scale)), token)) > _CANVAS:
        scale *= 0.995
    picture = picture if size == (H, W) else resized(picture, size, "LANCZOS")
    added = [new - old for new, old in zip(_canvas(size, token), size, strict=True)]
    borders = [(more // 2, more - more // 2) for more in added]
    return np.pad(picture, ((0, 0), (0, 0), *borders), "reflect" if min(size) > token else "symmetric")


def _canvas(size: Size, token: int) -> Size:
    high, wide = (min(4096, max(64, -(-side // token) * token)) for side in size)
    return high, wide
