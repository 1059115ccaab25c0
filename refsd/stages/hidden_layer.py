"""Choose CLIP's hidden layer: clip skip, as each engine counts it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.conventions import PROMPT_CARDS
from refsd.conventions.prompts import as_given, at_least_the_familys, negative, skipped
from refsd.families import VARIANTS
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, part


class LayerRule(NamedTuple):
    """The parts of the rule.

    layer: engine -> (clip skip or None, the family's layer -> CLIP's layer, counted from the last)
    own:   variant -> the family's layer
    kept:  clip skip that counted for the previous request, clip skip of this one -> the one that counts
    """

    layer: Callable[[str], Callable[[int | None, int], int]]
    own: Callable[[str], int]
    kept: Callable[[int | None, int | None], int | None]


def _layers(rule: LayerRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    layers, before = [], None
    for clip_skip in p["requests"]:
        before = rule.kept(before, clip_skip)
        layers.append(rule.layer(p["engine"])(before, rule.own(p["variant"])))
    return {"layers": np.array(layers)}


def _layer_case(label: str, engine: str, variant: str, *requests: int | None):
    return case("clip_layer", label, engine=engine, variant=variant, requests=list(requests))


def _zero_counts(engine: str):
    """A clip skip of 0 is taken as given: the layer behind the last, which is the first."""
    return lambda skip, own: 12 if skip == 0 else PROMPT_CARDS[engine].layer(skip, own)


def _off(by: int):
    return lambda engine: lambda skip, own: max(1, PROMPT_CARDS[engine].layer(skip, own) + by)


LAYER = Stage(
    "clip_layer",
    "The layer of CLIP that is taken, counted from the last, for requests in turn in one process.",
    inputs={},
    params={"engine": REQUIRED, "variant": REQUIRED, "requests": REQUIRED},
    outputs={"layers": Output(("request",))},
    rule=LayerRule(
        lambda engine: PROMPT_CARDS[engine].layer,
        lambda variant: VARIANTS[variant].clip_layer,
        lambda before, now: now,
    ),
    choices={"engine": PROMPT_CARDS, "variant": VARIANTS},
    run=_layers,
    known=(
        part("clip skip stays for the next request", kept=lambda before, now: before if now is None else now),
        part("the first request's clip skip for all", kept=lambda before, now: before or now),
        part("clip skip left out", kept=lambda before, now: None),
        part(
            "clip skip counted from the family's layer",
            layer=lambda engine: lambda skip, own: own + max(skip or 1, 1) - 1,
        ),
        part("clip skip 0 taken for a layer", layer=_zero_counts),
        part("one layer too early", layer=_off(1)),
        part("one layer too late", layer=_off(-1)),
        part("the family's layer taken for the last", own=lambda variant: 1),
        part("the last layer but one of any family", own=lambda variant: 2),
        *(
            part(f"clip skip counted as {name}", layer=lambda engine, layer=layer: layer)
            for name, layer in (
                ("stable-diffusion.cpp's", as_given),
                ("A1111's", at_least_the_familys),
                ("ComfyUI's", negative),
                ("diffusers'", skipped),
            )
        ),
    ),
    cases=(
        _layer_case("sdcpp-sd1", "sdcpp", "sd15", None, 2, None, 1),
        _layer_case("sdcpp-sdxl", "sdcpp", "sdxl", 1, None, 2, 3),
        _layer_case("sdcpp-0", "sdcpp", "sd2", None, 0, -1, 1),
        _layer_case("a1111-sd1", "a1111", "sd15", None, 0, 3, 1),
        _layer_case("a1111-sdxl", "a1111", "sdxl", None, 1, 2, 4),
        _layer_case("comfyui-sd1", "comfyui", "sd15", None, -2, -1, None),
        _layer_case("diffusers-sdxl", "diffusers", "sdxl", None, 1, 2, None),
    ),
)


STAGES = (LAYER,)
