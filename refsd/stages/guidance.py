"""Guidance: one prediction from several, each under other conditions, in every form in use."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.samplers.guidance import (
    adaptive_projected,
    guide,
    guide_image,
    project,
    rescale,
    rescale_tokens,
    sdcpp_norm_threshold,
    skip_layer,
)
from refsd.samplers.guidance_variants import hold_lengths, match_lengths, perpendicular_negative, zero_star
from refsd.stages.stage import REQUIRED, Change, Mutant, Output, Stage, StageInputs, case, param, part


class GuidanceRule(NamedTuple):
    """The parts of the rule. Those without "->" return the guided prediction.

    scale:     form, the user's scale -> scale for `guide`
    on:        scale -> True if there is guidance at all
    plain:     cond, uncond, scale
    by_image:  cond, image, uncond, scale, image scale
    rescaled:  guided, cond, phi
    tokens:    guided, cond
    lengths:   guided, cond, phi
    projected: cond, uncond, scale, eta, norm threshold, momentum, average, smoothing
    threshold: engine, the user's limit of the norm, number of values in an item -> limit of the norm
    negative:  cond, negative, empty, scale, negative scale
    zero_star: cond, uncond, scale
    skipped:   guided, cond, skipped, scale
    """

    # Z-Image's is pos + g (pos - neg). Source: diffusers ZImagePipeline.
    scale: Callable[[str, float], float] = lambda form, scale: scale + 1 if form == "zimage" else scale
    on: Callable[[float], bool] = lambda scale: True
    plain: Callable[..., np.ndarray] = guide
    by_image: Callable[..., np.ndarray] = guide_image
    rescaled: Callable[..., np.ndarray] = rescale
    tokens: Callable[..., np.ndarray] = rescale_tokens
    lengths: Callable[..., np.ndarray] = match_lengths
    projected: Callable[..., np.ndarray] = lambda *told: adaptive_projected(*told)[0]
    threshold: Callable[[str, float, int], float] = lambda engine, limit, values: (
        sdcpp_norm_threshold(limit, values) if engine == "sdcpp" else limit
    )
    negative: Callable[..., np.ndarray] = perpendicular_negative
    zero_star: Callable[..., np.ndarray] = zero_star
    skipped: Callable[..., np.ndarray] = skip_layer


RULE = GuidanceRule()

_FORMS = {
    "cfg": (),
    "zimage": (),
    "pix2pix": ("other",),
    "rescale": (),
    "qwen-image": (),
    "cfg-norm": (),
    "apg": (),
    "perp-neg": ("other",),
    "zero-star": (),
    "skip-layer": ("other",),
}


def _run(rule: GuidanceRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    form = p["form"]
    if form not in _FORMS or [name for name in _FORMS[form] if name not in t]:
        raise BadInput(f"stage/guidance: form {form!r} with {sorted(t)}: expected one of {', '.join(_FORMS)}")
    cond, uncond, scale = t["cond"], t["uncond"], rule.scale(form, p["scale"])
    if not rule.on(p["scale"]):
        return {"guided": cond}
    match form:
        case "pix2pix":
            y = rule.by_image(cond, t["other"], uncond, scale, p["other_scale"])
        case "rescale":
            y = rule.rescaled(rule.plain(cond, uncond, scale), cond, p["phi"])
        case "qwen-image":
            y = rule.tokens(rule.plain(cond, uncond, scale), cond)
        case "cfg-norm":
            y = rule.lengths(rule.plain(cond, uncond, scale), cond, p["phi"])
        case "apg":
            limit = rule.threshold(p["engine"], p["norm_threshold"], cond[0].size)
            settings = p["eta"], limit, p["momentum"], t.get("average"), p["smoothing"]
            y = rule.projected(cond, uncond, scale, *settings)
        case "perp-neg":
            y = rule.negative(cond, uncond, t["other"], scale, p["other_scale"])
        case "zero-star":
            y = rule.zero_star(cond, uncond, scale)
        case "skip-layer":
            y = rule.skipped(rule.plain(cond, uncond, scale), cond, t["other"], p["other_scale"])
        case _:
            y = rule.plain(cond, uncond, scale)
    return {"guided": y}


def norm_of(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x**2).sum(axis=tuple(range(1, x.ndim)), keepdims=True))


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The formulas on absolute values; an error in a projection's coefficient spreads over its whole vector."""
    t, p = inputs.tensors, inputs.params
    size = sum(np.abs(x) for x in t.values()) * (1 + abs(p["scale"]) + abs(p["other_scale"]))
    if p["form"] in ("apg", "perp-neg", "zero-star"):
        longest = sum(norm_of(x) for x in t.values())
        size = size + (1 + abs(p["scale"])) * longest * sum(np.abs(y) / norm_of(y) for y in t.values())
    if p["form"] == "cfg-norm":
        length = lengths_of(guide(t["cond"], t["uncond"], p["scale"]))
        size = size * (1 + lengths_of(t["cond"]) / length) + np.abs(truth) * lengths_of(size) / length
    return size


def lengths_of(x: np.ndarray) -> np.ndarray:
    """[N, C, H, W] -> [N, 1, H, W], each pixel's"""
    return np.sqrt((x**2).sum(axis=1, keepdims=True))


# --- what engines got wrong --------------------------------------------------------------------------------------


def _second_for(name: str, source: str) -> Mutant[Change]:
    return Mutant(
        f"{source} taken for {name}",
        Change(tensors=lambda t: {**t, name: t[source]} if name in t and source in t else None),
    )


def swapped(one: str, other: str) -> Mutant[Change]:
    return Mutant(
        f"{one} and {other} swapped",
        Change(tensors=lambda t: {**t, one: t[other], other: t[one]} if one in t and other in t else None),
    )


# Axes over which a norm or a deviation is taken, where it should be those of each item.
OVER = {
    "over the whole batch": (0, 1, 2, 3),
    "channel by channel": (2, 3),
    "pixel by pixel": (1,),
    "row by row": (3,),
    "column by column": (2,),
}


def over(axes: tuple[int, ...], of: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Take norms and deviations over these axes of x: those that are kept stand as items. x: [N, C, H, W]"""
    kept = [a for a in range(4) if a not in axes]
    order = (*kept, *axes)

    def change(*told):
        shape = told[0].shape
        items = int(np.prod([shape[a] for a in kept]))
        flat = [x.transpose(order).reshape(items, -1) if isinstance(x, np.ndarray) else x for x in told]
        return of(*flat).reshape([shape[a] for a in order]).transpose(np.argsort(order))

    return change


def _by_norms(guided: np.ndarray, cond: np.ndarray) -> np.ndarray:
    return guided * norm_of(cond) / norm_of(guided)


def _std_of_n(guided: np.ndarray, cond: np.ndarray, phi: float) -> np.ndarray:
    """Rescale by norms instead of standard deviations."""
    return guided * (phi * (norm_of(cond) / norm_of(guided)) + (1 - phi))


def _along(cond, uncond, scale, eta, limit, momentum, average, smoothing):
    """Keep the part along cond, and scale the part across it by eta."""
    difference = cond - uncond + (momentum * average if average is not None else 0)
    along, across = project(difference * np.minimum(1, limit / norm_of(difference)) if limit else difference, cond)
    return cond + (scale - 1) * (along + eta * across)


def _to_the_limit(cond, uncond, scale, eta, limit, momentum, average, smoothing):
    """Bring every norm to the limit, shorter ones too."""
    difference = cond - uncond + (momentum * average if average is not None else 0)
    along, across = project(difference * limit / norm_of(difference) if limit else difference, cond)
    return cond + (scale - 1) * (across + eta * along)


def _apg(**others: float | None):
    names = "eta", "limit", "momentum", "average", "smoothing"

    def change(cond, uncond, scale, *told):
        right = dict(zip(names, told, strict=True))
        return adaptive_projected(cond, uncond, scale, *{**right, **others}.values())[0]

    return change


def _apg_from(base: int, more: float):
    """Add the APG difference to cond (base 0) or uncond (1), times scale + more."""

    def change(cond, uncond, scale, *told):
        difference = adaptive_projected(cond, uncond, 2.0, *told)[0] - cond
        return (cond, uncond)[base] + (scale + more) * difference

    return change


_KNOWN = (
    part("scale as usual, not Z-Image's", scale=lambda form, scale: scale),
    part("no guidance at a scale of 1 and below", on=lambda scale: scale > 1),
    part("no guidance", on=lambda scale: False),
    part("scale one too high", scale=lambda form, scale: RULE.scale(form, scale) + 1),
    part("scale one too low", scale=lambda form, scale: RULE.scale(form, scale) - 1),
    part("the scale halved", scale=lambda form, scale: RULE.scale(form, scale) / 2),
    part("scales of text and image swapped", by_image=lambda c, i, u, s, t: guide_image(c, i, u, t, s)),
    part("the image's scale for both", by_image=lambda c, i, u, s, t: guide_image(c, i, u, t, t)),
    part("the text's scale for both", by_image=lambda c, i, u, s, t: guide_image(c, i, u, s, s)),
    swapped("cond", "uncond"),
    swapped("cond", "other"),
    swapped("uncond", "other"),
    _second_for("uncond", "other"),
    _second_for("other", "uncond"),
    _second_for("other", "cond"),
    part("the image's part left out", by_image=lambda c, i, u, s, t: guide(c, i, s)),
    part("text guided from the unconditional", by_image=lambda c, i, u, s, t: u + t * (i - u) + s * (c - u)),
    part("rescale left out", rescaled=lambda guided, cond, phi: guided),
    part("rescale by 1 - phi", rescaled=lambda guided, cond, phi: rescale(guided, cond, 1 - phi)),
    part("rescaled by norms, means included", rescaled=_std_of_n),
    *(part(f"rescaled {name}", rescaled=over(axes, rescale)) for name, axes in OVER.items()),
    part("rescaled in full", rescaled=lambda guided, cond, phi: rescale(guided, cond, 1.0)),
    part("tokens not rescaled", tokens=lambda guided, cond: guided),
    part("rescaled by each item's norm, not each token's", tokens=_by_norms),
    *(part(f"tokens rescaled {name}", tokens=over(axes, _by_norms)) for name, axes in OVER.items() if axes != (1,)),
    part("rescaled pixel by pixel, not by squares of four", tokens=lambda g, c: rescale_tokens(g, c, patch=1)),
    part("rescaled by standard deviations", tokens=lambda g, c: rescale(g, c, 1.0)),
    part("lengths left as they are", lengths=lambda guided, cond, phi: guided),
    part("lengths matched in full", lengths=lambda guided, cond, phi: match_lengths(guided, cond)),
    part("lengths matched by 1 - phi", lengths=lambda guided, cond, phi: match_lengths(guided, cond, 1 - phi)),
    part("lengths shortened only", lengths=lambda g, c, phi: phi * hold_lengths(g, c) + (1 - phi) * g),
    *(
        part(f"lengths matched {name}", lengths=over(axes, match_lengths))
        for name, axes in OVER.items()
        if axes != (1,)
    ),
    part("the norm's limit as it is given", threshold=lambda engine, limit, values: limit),
    part("the norm's limit as stable-diffusion.cpp's", threshold=lambda e, most, n: sdcpp_norm_threshold(most, n)),
    part("no limit of the norm", threshold=lambda engine, limit, values: 0.0),
    part("no momentum", projected=_apg(momentum=0.0)),
    part("momentum of the other sign", projected=lambda c, u, s, e, n, m, *rest: _apg()(c, u, s, e, n, -m, *rest)),
    part("norm held without smoothing", projected=_apg(smoothing=0.0)),
    part("norms brought to the limit from below, too", projected=_to_the_limit),
    part("eta left out", projected=_apg(eta=0.0)),
    part("eta 1", projected=_apg(eta=1.0)),
    part("across weighed down, not along", projected=_along),
    *(part(f"projected {name}", projected=over(axes, RULE.projected)) for name, axes in OVER.items()),
    part("APG added to uncond", projected=_apg_from(1, 0.0)),
    part("APG added at the whole scale", projected=_apg_from(0, 0.0)),
    part("negative weighed by 1", negative=lambda c, n, e, s, w: perpendicular_negative(c, n, e, s, 1.0)),
    part("negative subtracted whole", negative=lambda c, n, e, s, w: e + s * (c - e - w * (n - e))),
    *(part(f"perpendicular {name}", negative=over(axes, perpendicular_negative)) for name, axes in OVER.items()),
    part("uncond not scaled", zero_star=guide),
    *(part(f"uncond scaled {name}", zero_star=over(axes, zero_star)) for name, axes in OVER.items()),
    part("skipped layers' guidance left out", skipped=lambda guided, cond, skipped, scale: guided),
    part("skipped layers' guidance of the other sign", skipped=lambda g, c, k, s: skip_layer(g, c, k, -s)),
    part("skipped layers in guided's place", skipped=lambda g, c, k, s: g + s * (g - k)),
    param("scale 1", scale=1.0),
    param("scale 0 taken for none given, which is 1", scale=lambda scale: scale or 1.0),
)

_SHAPE = (2, 4, 5, 7)


def _case(label: str, form: str, scale: float, other=False, average=False, even=False, shape=_SHAPE, **params):
    inputs = {"cond": Recipe(shape, offset=0.125), "uncond": Recipe(shape, exponent=-16, offset=-0.25)}
    inputs |= {"uncond": Recipe(shape, offset=-0.25)} if even else {}
    inputs |= {"other": Recipe(shape, offset=0.0625)} if other else {}
    inputs |= {"average": Recipe(shape, exponent=-16)} if average else {}
    return case("guidance", label, inputs, form=form, scale=scale, **params)


STAGES = (
    Stage(
        "guidance",
        f"One prediction from several, each with other conditions; form: {', '.join(_FORMS)}.",
        inputs={
            "cond": "[N, C, H, W]",
            "uncond": "[N, C, H, W]",
            "other?": "[N, C, H, W]: with the image alone, an empty prompt, or without some layers",
            "average?": "[N, C, H, W]: APG's of the step before",
        },
        params={
            "form": REQUIRED,
            "scale": REQUIRED,
            "engine": "diffusers",
            "other_scale": 1.5,
            "phi": 0.7,
            "eta": 0.25,
            "norm_threshold": 0.0,
            "momentum": 0.0,
            "smoothing": 0.0,
        },
        outputs={"guided": Output(("item", "channel", "row", "column"), _size, 160)},
        rule=RULE,
        run=_run,
        known=_KNOWN,
        cases=(
            _case("cfg", "cfg", 7.5),
            _case("cfg-half", "cfg", 0.5),
            _case("cfg-0", "cfg", 0.0),
            _case("zimage-0", "zimage", 0.0),
            _case("zimage", "zimage", 3.5),
            _case("zimage-half", "zimage", 0.5),
            _case("pix2pix", "pix2pix", 7.5, other=True, other_scale=1.5),
            _case("rescale", "rescale", 7.5, phi=0.7),
            _case("qwen-image", "qwen-image", 4.0, shape=(2, 4, 6, 8)),
            _case("cfg-norm", "cfg-norm", 1.5, even=True, phi=0.8),
            _case("apg", "apg", 6.0),
            _case("apg-norm", "apg", 6.0, norm_threshold=2.5, momentum=-0.5, average=True),
            _case("apg-norm-below", "apg", 5.0, norm_threshold=64.0, momentum=-0.75, average=True),
            _case("apg-sdcpp", "apg", 6.0, engine="sdcpp", norm_threshold=280.0, smoothing=0.5),
            _case("perp-neg", "perp-neg", 7.5, other=True, other_scale=0.8),
            _case("zero-star", "zero-star", 4.0),
            _case("skip-layer", "skip-layer", 4.5, other=True, other_scale=2.8),
        ),
    ),
)
