"""Inpainting and editing: masks, the extra channels after x, and what is kept outside the mask."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions import MASKS
from refsd.conventions import OF_ALL_MODELS as ENGINES
from refsd.conventions.masks import binary, first_of_square, largest_of_square
from refsd.golden.recipe import Recipe
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import EXTRA_CHANNELS, InitialLatent, widened
from refsd.pipelines.txt2img import unmasked_kept
from refsd.samplers.noise import Philox
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, magnitude, param, part

# Pixels per latent pixel along a side, and the latent scale of the stand-in encoder.
_PIXELS, _FACTOR = 4, 0.25


def _keep_unmasked(denoised: np.ndarray, mask: np.ndarray, latent: np.ndarray) -> np.ndarray:
    start = InitialLatent(denoised, Philox(0), latent, mask)
    return unmasked_kept(lambda x, sigma: x, start)(denoised, 1.0)


class InpaintRule(NamedTuple):
    """The parts of the rule.

    white:    grey mask of pixels -> mask of 0 and 1
    shown:    the masked picture, its mask -> the encoder's input
    pooled:   engine -> (mask of pixels, pixels per latent pixel -> mask of the latent)
    widened:  mask of the latent -> where a model with extra channels draws
    channels: kind -> (images, encoder, engine's convention, draw -> extra channels with the prompt, without it)
    extra:    extra channels with the prompt, without it -> both
    kept:     denoised, mask, the picture's latent -> denoised
    """

    white: Callable[[np.ndarray], np.ndarray] = binary
    shown: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda picture, mask: picture
    pooled: Callable[[str], Callable[[np.ndarray, int], np.ndarray]] = lambda engine: MASKS[engine].pooled
    widened: Callable[[np.ndarray], np.ndarray] = widened
    channels: Callable[[str], Callable[..., Any]] = lambda kind: EXTRA_CHANNELS[kind]
    extra: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] = lambda cond, uncond: (cond, uncond)
    kept: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = _keep_unmasked


RULE = InpaintRule()


class _Encoder:
    """Stands in for an autoencoder: the mean of each square, times _FACTOR if latents are scaled.

    input: its last input
    """

    pixels = _PIXELS

    def __init__(self, shown: Callable[[np.ndarray], np.ndarray]):
        self._shown = shown
        self.input = np.empty(0)

    def encode(self, picture: np.ndarray, draw=None, scaled: bool = True) -> np.ndarray:
        self.input = picture = self._shown(picture)
        N, C, H, W = picture.shape
        squares = picture.reshape(N, C, H // _PIXELS, _PIXELS, W // _PIXELS, _PIXELS)
        return squares.mean(axis=(3, 5), dtype=picture.dtype) * (_FACTOR if scaled else 1)


def _run(rule: InpaintRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    mask = rule.white(t["mask"].astype(inputs.dtype))
    convention = ENGINES[p["engine"]]
    pooled = rule.pooled(p["engine"])
    convention = type(convention)(**{**vars(convention), "latent_mask": pooled})
    encoder = _Encoder(lambda picture: rule.shown(picture, mask))
    images = ConditioningImages(t["picture"], mask, t["picture"], t["picture"])
    cond, uncond = rule.extra(*rule.channels(p["kind"])(images, encoder, convention, None))
    shown = encoder.input
    found = {"shown": shown, "cond": cond, "uncond": uncond}
    if p["kind"] in ("inpaint", "fill"):
        latent = _Encoder(lambda picture: picture).encode(2 * t["picture"] - 1)
        where = rule.widened(pooled(mask, _PIXELS))
        found |= {"latent_mask": where, "kept": rule.kept(t["denoised"], where.astype(inputs.dtype), latent)}
    return found


def _kept_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    return np.abs(truth) + np.abs(inputs.tensors["denoised"]) + 1


def _one(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    return 1 + np.abs(truth)


# --- what engines got wrong --------------------------------------------------------------------------------------


def _masked_with(value: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda picture, mask: np.where(mask != 0, value, picture)


def _order(change: Callable[[np.ndarray], np.ndarray]):
    return lambda cond, uncond: (change(cond), change(uncond))


def _no_mask(x: np.ndarray) -> np.ndarray:
    """Set the mask to ones: it is the channel that holds only zeros and ones."""
    y = x.copy()
    for c in range(x.shape[1]):
        if set(np.unique(x[:, c])) <= {0.0, 1.0}:
            y[:, c] = 1
    return y


def _mask_turned(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    for c in range(x.shape[1]):
        if set(np.unique(x[:, c])) <= {0.0, 1.0} and x[:, c].any():
            y[:, c] = 1 - x[:, c]
    return y


def _nearest(mask: np.ndarray, pixels: int) -> np.ndarray:
    return mask[:, :, pixels // 2 :: pixels, pixels // 2 :: pixels]


def _mean(mask: np.ndarray, pixels: int) -> np.ndarray:
    N, C, H, W = mask.shape
    return mask.reshape(N, C, H // pixels, pixels, W // pixels, pixels).mean(axis=(3, 5))


def _of_other_pixels(times: float, engine: str):
    """Make the mask for an autoencoder of other pixels per latent pixel; what lies beyond it is not masked."""

    def pooled(mask: np.ndarray, pixels: int) -> np.ndarray:
        high, wide = (n // pixels for n in mask.shape[2:])
        y = MASKS[engine].pooled(mask, int(pixels / times))[:, :, :high, :wide]
        return np.pad(y, ((0, 0), (0, 0), (0, high - y.shape[2]), (0, wide - y.shape[3])))

    return pooled


def _smallest(mask: np.ndarray, pixels: int) -> np.ndarray:
    return 1 - largest_of_square(1 - mask, pixels)


def _pixels_apart(kind: str):
    """Order the pixels of each latent pixel in FLUX Fill's mask column by column."""

    def made(images, vae, convention, draw):
        if kind != "fill":
            raise NoDifference
        right = EXTRA_CHANNELS[kind](images, vae, convention, draw)
        P, out = _PIXELS, []
        for x in right:
            mask = x[:, -P * P :]
            mask = mask.reshape(1, P, P, *mask.shape[2:]).swapaxes(1, 2).reshape(mask.shape)
            out.append(np.concatenate([x[:, : -P * P], mask], axis=1))
        return out

    return made


_KNOWN = (
    part("grey is not made black or white", white=lambda mask: np.clip(mask, 0, 1)),
    part("all but black is white", white=lambda mask: np.ceil(np.clip(mask, 0, 1))),
    part("black under the mask", shown=_masked_with(-1.0)),
    part("white under the mask", shown=_masked_with(1.0)),
    part("pixels of 0 to 1", shown=lambda picture, mask: (picture + 1) / 2),
    part("the other side of the mask", shown=lambda picture, mask: np.where(mask != 0, picture + 0.5, 0.0)),
    part("mask by its first pixel", pooled=lambda engine: first_of_square),
    part("mask by its largest pixel", pooled=lambda engine: largest_of_square),
    part("mask by its middle pixel", pooled=lambda engine: _nearest),
    part("mask by its mean", pooled=lambda engine: _mean),
    part("mask by its smallest pixel", pooled=lambda engine: _smallest),
    *(
        part(f"mask of a latent {words} the size, its corner taken", pooled=partial(_of_other_pixels, times))
        for times, words in ((2, "twice"), (0.5, "half"))
    ),
    part("mask not widened", widened=lambda mask: mask),
    part("mask widened twice", widened=lambda mask: widened(widened(mask))),
    part("a latent's pixels column by column", channels=_pixels_apart),
    part("mask left out", extra=_order(_no_mask)),
    part("mask inverted", extra=_order(_mask_turned)),
    part("latent before the mask, or behind it", extra=_order(lambda x: np.roll(x, 3, axis=1))),
    part("zeros without the prompt", extra=lambda cond, uncond: (cond, np.zeros_like(cond))),
    part("the same with the prompt and without", extra=lambda cond, uncond: (cond, cond)),
    part("nothing behind x", extra=_order(np.zeros_like)),
    part("latent scaled as any", extra=_order(lambda x: x * _FACTOR)),
    part("latent not scaled", extra=_order(lambda x: x / _FACTOR)),
    part("nothing kept", kept=lambda denoised, mask, latent: denoised),
    part(
        "kept where something new is drawn",
        kept=lambda denoised, mask, latent: _keep_unmasked(denoised, 1 - mask, latent),
    ),
    part("added, not put in its place", kept=lambda denoised, mask, latent: denoised * mask + latent),
    param("channels of the other engine", engine=lambda engine: "sdcpp" if engine == "diffusers" else "diffusers"),
)

_IMAGE = ("image", "channel", "row", "column")
_H, _W = 48, 64


# About one pixel in 301 is drawn anew.
_FEW = Recipe((1, 1, _H, _W), "i32", data="token_ids", exponent=0, n=301, offset=-299.0)
# Pixels of 0, 1/128 ... 65/128: two in 66 are.
_GREY = Recipe((1, 1, _H, _W), data="token_ids", exponent=-7, n=66)


def _case(label: str, kind: str, engine: str, mask: Recipe = _FEW):
    inputs = {"picture": Recipe((1, 3, _H, _W), exponent=-20, offset=0.5), "mask": mask}
    inputs["denoised"] = Recipe((1, 3, _H // _PIXELS, _W // _PIXELS))
    return case("inpaint", label, inputs, kind=kind, engine=engine)


STAGES = (
    Stage(
        "inpaint",
        "Channels behind x of a picture and its mask, and what is kept of it; the encoder is a formula: the mean "
        "of each square of 4x4 pixels, times 0.25.",
        inputs={
            "picture": "[1, 3, H, W]: 0..1",
            "mask": "[1, 1, H, W]: something new is drawn where it is 1/2 and more",
            "denoised": "[1, 3, H / 4, W / 4]",
        },
        params={"kind": REQUIRED, "engine": REQUIRED},
        outputs={
            "shown": Output(_IMAGE, _one, 4),
            "cond": Output(_IMAGE, _one, 24),
            "uncond": Output(_IMAGE, _one, 24),
            "latent_mask": Output(_IMAGE, magnitude, 1),
            "kept": Output(_IMAGE, _kept_size, 24),
        },
        rule=RULE,
        choices={"kind": EXTRA_CHANNELS, "engine": ENGINES},
        run=_run,
        known=_KNOWN,
        cases=(
            _case("inpaint-sdcpp", "inpaint", "sdcpp"),
            _case("inpaint-diffusers", "inpaint", "diffusers"),
            _case("fill-sdcpp", "fill", "sdcpp"),
            _case("fill-diffusers", "fill", "diffusers"),
            _case("edit", "edit", "diffusers"),
            _case("control", "control", "sdcpp"),
            _case("inpaint-grey", "inpaint", "sdcpp", _GREY),
        ),
    ),
)
