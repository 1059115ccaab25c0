"""Join the outputs of text encoders into a denoiser's conditioning, with picture sizes and masks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions import OF_ALL_MODELS
from refsd.families import VARIANTS
from refsd.families.family import Condition, Encoded, EncodedPrompt
from refsd.golden.recipe import Recipe
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, case, param, part

_ENCODERS = "clip", "clip_g", "t5", "qwen3"


class Told(NamedTuple):
    """The numbers that SDXL is told beside the text."""

    size: tuple[int, int]
    original: tuple[int, int] | None
    crop: tuple[int, int]


def _told(p: Params) -> Told:
    """Without a prompt the negative ones count, if both of its sizes are given.

    Source: diffusers StableDiffusionXLPipeline.__call__, negative_add_time_ids.
    """
    own = "negative_" if p["negative"] and p["negative_original"] and p["negative_size"] else ""
    size, original, crop = (p[f"{own}{name}"] for name in Told._fields)
    return Told(tuple(size), original and tuple(original), tuple(crop))


class JoinRule(NamedTuple):
    """The parts of the rule. In the right rule size, encoders, empty and mask return their argument.

    size:     height and width of the picture -> those that the network receives
    told:     parameters -> what SDXL is told: the picture's size, the original's or None, the crop's top and left
    encoders: {component: Encoded} -> {component: Encoded}
    join:     variant -> (encoded prompt -> Condition)
    empty:    True if the negative prompt is empty -> True if it is treated as empty
    image:    negative, tokens of the image, tokens of an image of zeros -> tokens appended to the text's
    mask:     mask of the text -> mask
    """

    size: Callable[[tuple[int, int]], tuple[int, int]] = lambda size: size
    told: Callable[[Params], "Told"] = _told
    encoders: Callable[[dict[str, Encoded]], dict[str, Encoded]] = lambda encoders: encoders
    join: Callable[[str], Callable[[EncodedPrompt], Condition]] = lambda variant: VARIANTS[variant].join
    empty: Callable[[bool], bool] = lambda empty: empty
    image: Callable[[bool, np.ndarray, np.ndarray], np.ndarray] = lambda negative, image, zero: (
        zero if negative else image
    )
    mask: Callable[[np.ndarray], np.ndarray] = lambda mask: mask


def _joined(rule: JoinRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    encoders = {}
    for name in VARIANTS[p["variant"]].encoders:
        hidden = t.get(f"{name}_hidden")
        if hidden is not None:
            seen = t.get(f"{name}_mask", np.ones(hidden.shape[:2], np.int64))
            encoders[name] = Encoded(hidden, t.get(f"{name}_pooled"), seen.astype(np.int64))
    arithmetic = Arithmetic(FLOAT64 if inputs.dtype == np.float64 else FLOAT32)
    told = rule.told(p)
    prompt = EncodedPrompt(
        rule.encoders(encoders),
        Module({}, arithmetic),
        rule.size(told.size),
        OF_ALL_MODELS[p["engine"]],
        p["negative"],
        rule.empty(p["empty"]),
        told.original and rule.size(told.original),
        told.crop,
    )
    made = rule.join(p["variant"])(prompt)
    context = made.context
    if "image" in t:
        image = rule.image(p["negative"], t["image"], t["image_of_zeros"])
        context = np.concatenate([context, image], axis=1)
    found = {"context": context}
    if made.y is not None:
        found["y"] = made.y
    if made.mask is not None:
        found["mask"] = rule.mask(made.mask)
    return found


def _y_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """y holds sines and cosines of the sizes: their errors grow with the angles, which reach the sizes."""
    told = _told(inputs.params)
    return np.full(truth.shape, np.abs(truth).max() + max(*told.size, *(told.original or (0,)), *told.crop))


def _reordered(change: Callable[[Condition, EncodedPrompt], Condition]) -> Callable[[str], Callable]:
    return lambda variant: lambda prompt: change(VARIANTS[variant].join(prompt), prompt)


def _clip_in_front(made: Condition, prompt: EncodedPrompt) -> Condition:
    """Put SD 3's T5 tokens before CLIP's."""
    if "t5" not in prompt.encoders or made.context.shape[1] == prompt.encoders["t5"].hidden.shape[1]:
        raise NoDifference
    return made._replace(context=np.roll(made.context, prompt.encoders["t5"].hidden.shape[1], axis=1))


def _zeros_in_front(made: Condition, prompt: EncodedPrompt) -> Condition:
    if "t5" not in prompt.encoders or "clip_g" not in prompt.encoders:
        raise NoDifference
    tokens = prompt.encoders["clip"].hidden.shape[1]
    wide = prompt.encoders["clip"].hidden.shape[2] + prompt.encoders["clip_g"].hidden.shape[2]
    moved = np.roll(made.context[:, :tokens], made.context.shape[2] - wide, axis=2)
    return made._replace(context=np.concatenate([moved, made.context[:, tokens:]], axis=1))


def _y(change: Callable[[np.ndarray, int], np.ndarray]) -> Callable[[str], Callable]:
    """change: y, number of channels of the pooled text -> y"""

    def changed(made: Condition, prompt: EncodedPrompt) -> Condition:
        if made.y is None:
            raise NoDifference
        pooled = prompt.encoders["clip_g" if "clip_g" in prompt.encoders else "clip"].pooled
        assert pooled is not None
        return made._replace(y=change(made.y, pooled.shape[1]))

    return _reordered(changed)


def _blocks(order: tuple[int, ...]) -> Callable[[np.ndarray, int], np.ndarray]:
    def change(y: np.ndarray, P: int) -> np.ndarray:
        if (y.shape[1] - P) != 256 * len(order):
            raise NoDifference
        blocks = np.split(y[:, P:], len(order), axis=1)
        return np.concatenate([y[:, :P], *(blocks[i] for i in order)], axis=1)

    return change


def _halves(y: np.ndarray, P: int) -> np.ndarray:
    """Put sines before cosines."""
    if y.shape[1] == P or (y.shape[1] - P) % 256:
        raise NoDifference
    size = y[:, P:].reshape(len(y), -1, 2, 128)[:, :, ::-1].reshape(len(y), -1)
    return np.concatenate([y[:, :P], size], axis=1)


def _pooled(
    change: Callable[[str, Encoded], np.ndarray | None],
) -> Callable[[dict[str, Encoded]], dict[str, Encoded]]:
    def encoders(right: dict[str, Encoded]) -> dict[str, Encoded]:
        return {name: one._replace(pooled=change(name, one)) for name, one in right.items()}

    return encoders


def _swapped(right: dict[str, Encoded]) -> dict[str, Encoded]:
    if not {"clip", "clip_g"} <= right.keys():
        raise NoDifference
    return {**right, "clip": right["clip_g"], "clip_g": right["clip"]}


def _first_item(right: dict[str, Encoded]) -> dict[str, Encoded]:
    return {name: one._replace(mask=np.broadcast_to(one.mask[:1], one.mask.shape)) for name, one in right.items()}


def _mask_of(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, Encoded]], dict[str, Encoded]]:
    return lambda right: {name: one._replace(mask=change(one.mask)) for name, one in right.items()}


def _zeros_of_padding(right: dict[str, Encoded]) -> dict[str, Encoded]:
    return {name: one._replace(hidden=one.hidden * one.mask[..., None]) for name, one in right.items()}


def _moved_on(mask: np.ndarray) -> np.ndarray:
    return (np.arange(mask.shape[1]) < mask.sum(axis=1, keepdims=True) + 1).astype(mask.dtype)


_TOLD: dict[str, Callable[[Told, Params], Told]] = {
    "the prompt's sizes and crop for the negative prompt": lambda told, p: _told({**p, "negative": False}),
    "the crop left out": lambda told, p: told._replace(crop=(0, 0)),
    "the crop's left before its top": lambda told, p: told._replace(crop=told.crop[::-1]),
    "the picture's size for the original's": lambda told, p: told._replace(original=None),
    "the original's size for the picture's": lambda told, p: told._replace(size=told.original or told.size),
}


def _other_told(change: Callable[[Told, Params], Told]) -> Callable[[Params], Told]:
    return lambda p: change(_told(p), p)


def _join_case(label: str, variant: str, engine: str = "diffusers", prefix: tuple[str, ...] = (), **more: Any):
    widths = {"clip": 6, "clip_g": 10, "t5": 20, "qwen3": 8}
    inputs: dict[str, Recipe] = {}
    for name in VARIANTS[variant].encoders:
        tokens = 9 if name in ("t5", "qwen3") else 5
        inputs[f"{name}_hidden"] = Recipe((2, tokens, widths[name]), offset=0.125)
        if name.startswith("clip"):
            inputs[f"{name}_pooled"] = Recipe((2, widths[name]), offset=-0.25)
        if name in prefix:
            inputs[f"{name}_mask"] = Recipe((2, tokens), "i64", data="prefix", exponent=0, n=4)
    if more.pop("image", False):
        inputs |= {"image": Recipe((2, 4, 6)), "image_of_zeros": Recipe((2, 4, 6), offset=0.5)}
    return case("conditioning", label, inputs, variant=variant, engine=engine, **more)


_CROPPED: dict[str, Any] = {
    "original": [640, 512],
    "crop": [48, 16],
    "negative_original": [320, 384],
    "negative_size": [1024, 896],
    "negative_crop": [8, 24],
}

CONDITIONING = Stage(
    "conditioning",
    "What a variant's text encoders answer, as its denoiser takes it.",
    inputs={
        **{f"{name}_hidden?": "[N, J, E]" for name in _ENCODERS},
        **{f"{name}_pooled?": "[N, P]" for name in _ENCODERS[:2]},
        **{f"{name}_mask?": "[N, J], 0: padding" for name in _ENCODERS[2:]},
        "image?": "[N, T, E]: an IP-Adapter's tokens",
        "image_of_zeros?": "[N, T, E]: those of an image of zeros, which the negative prompt has",
    },
    params={
        "variant": REQUIRED,
        "engine": "diffusers",
        "size": [768, 1216],
        "negative": False,
        "empty": False,
        "original": None,
        "crop": [0, 0],
        "negative_size": None,
        "negative_original": None,
        "negative_crop": [0, 0],
    },
    outputs={
        "context": Output(("item", "token", "channel"), lambda inputs, truth: np.abs(truth), 2),
        "y": Output(("item", "channel"), _y_size, 12),
        "mask": Output(("item", "token")),
    },
    rule=JoinRule(),
    choices={"variant": VARIANTS, "engine": OF_ALL_MODELS},
    run=_joined,
    known=(
        part("height and width swapped", size=lambda size: size[::-1]),
        part("sizes of the latent", size=lambda size: (size[0] // 8, size[1] // 8)),
        part("sizes of 1024 whatever is drawn", size=lambda size: (1024, 1024)),
        *(part(f"SDXL: {name}", told=_other_told(change)) for name, change in _TOLD.items()),
        part("encoders swapped", encoders=_swapped),
        part(
            "pooled text of zeros",
            encoders=_pooled(lambda name, one: None if one.pooled is None else 0 * one.pooled),
        ),
        part("pooled of the last token's state", encoders=_pooled(lambda name, one: one.hidden[:, -1])),
        part("T5 before CLIP", join=_reordered(_clip_in_front)),
        part("zeros in front of CLIP's channels", join=_reordered(_zeros_in_front)),
        part("sizes before the pooled text", join=_y(lambda y, P: np.roll(y, -P, axis=1))),
        part("target before crop", join=_y(_blocks((0, 1, 4, 5, 2, 3)))),
        part("crop first", join=_y(_blocks((2, 3, 0, 1, 4, 5)))),
        part("score first", join=_y(_blocks((4, 0, 1, 2, 3)))),
        part("sines before cosines", join=_y(_halves)),
        part("an empty prompt is encoded", empty=lambda empty: False),
        part("every negative prompt is empty", empty=lambda empty: True),
        param("zeros as the other engine's", engine=lambda engine: {"sdcpp": "diffusers"}.get(engine, "sdcpp")),
        part(
            "no tokens of the image without the prompt",
            image=lambda negative, image, zero: image[:, : 0 if negative else None],
        ),
        part(
            "zeros for the tokens of an image of zeros", image=lambda negative, image, zero: image * (not negative)
        ),
        part("the image's tokens without the prompt too", image=lambda negative, image, zero: image),
        part("the padding's states are zeros", encoders=_zeros_of_padding),
        part("all padding seen", encoders=_mask_of(np.ones_like)),
        part("one token more seen", encoders=_mask_of(_moved_on)),
        part("one token less seen", mask=lambda mask: np.concatenate([mask[:, 1:], 0 * mask[:, :1]], axis=1)),
        part("the first item's mask for all", encoders=_first_item),
        part("mask inverted", mask=lambda mask: 1 - mask),
        param("the prompt for the negative prompt", negative=False),
    ),
    cases=(
        _join_case("sd1", "sd15", image=True),
        _join_case("sd1-negative-image", "sd15", image=True, negative=True),
        _join_case("sdxl", "sdxl"),
        _join_case("sdxl-cropped", "sdxl", **_CROPPED),
        _join_case("sdxl-negative-crop", "sdxl", negative=True, **_CROPPED),
        _join_case("sdxl-refiner-cropped", "sdxl-refiner", **_CROPPED),
        _join_case("sdxl-empty", "sdxl", negative=True, empty=True),
        _join_case("sdxl-empty-sdcpp", "sdxl", "sdcpp", negative=True, empty=True, size=[512, 896]),
        _join_case("sdxl-negative", "sdxl", "sdcpp", negative=True),
        _join_case("sdxl-refiner", "sdxl-refiner"),
        _join_case("sdxl-refiner-negative", "sdxl-refiner", "sdcpp", negative=True, empty=True),
        _join_case("sd3", "sd3"),
        _join_case("flux", "flux-dev"),
        _join_case("chroma", "chroma", prefix=("t5",)),
        _join_case("zimage", "zimage", prefix=("qwen3",)),
        _join_case("wan", "wan", prefix=("t5",)),
    ),
)


STAGES = (CONDITIONING,)
