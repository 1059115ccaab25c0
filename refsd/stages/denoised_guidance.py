"""Guidance on denoised images: variants of ComfyUI, diffusers and A1111 that are not plain sums of predictions."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.samplers.guidance import dynamic_threshold, guide, guide_image, rescale
from refsd.samplers.guidance_variants import (
    hold_lengths,
    match_lengths,
    nested,
    rescale_in_v,
    tangential,
    zero_star,
)
from refsd.samplers.guidance_variants import zero_star_denoised as comfyui_zero_star
from refsd.samplers.mimic_threshold import mimic_deviation, mimic_threshold
from refsd.stages.guidance import OVER, lengths_of, norm_of, over, swapped
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, param, part


class DenoisedRule(NamedTuple):
    """The parts of the rule: each returns the guided image, from these arguments.

    zero_star:  x, cond, uncond, scale
    rescaled:   x, sigma, cond, uncond, scale, phi
    tangential: cond, uncond, scale
    nested:     cond, other, uncond, scale, other scale
    held:       guided, cond, strength
    limited:    guided, percentile, maximum
    mimic:      cond, uncond, scale, other scale, percentile, by channel, from zero, phi
    deviation:  the same without the percentile
    """

    zero_star: Callable[..., np.ndarray] = comfyui_zero_star
    rescaled: Callable[..., np.ndarray] = rescale_in_v
    tangential: Callable[..., np.ndarray] = tangential
    nested: Callable[..., np.ndarray] = nested
    held: Callable[..., np.ndarray] = hold_lengths
    limited: Callable[..., np.ndarray] = dynamic_threshold
    mimic: Callable[..., np.ndarray] = mimic_threshold
    deviation: Callable[..., np.ndarray] = mimic_deviation


_FORMS = {
    "zero-star": ("x",),
    "rescale-v": ("x",),
    "tangential": (),
    "nested": ("other",),
    "cfg-norm": (),
    "dynamic-threshold": (),
    "mimic-range": (),
    "mimic-deviation": (),
}


def _run(rule: DenoisedRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    form = p["form"]
    if form not in _FORMS or [name for name in _FORMS[form] if name not in t]:
        raise BadInput(f"stage/denoised_guidance: form {form!r} with {sorted(t)}: expected {', '.join(_FORMS)}")
    cond, uncond, scale = t["cond"], t["uncond"], p["scale"]
    how = p["by_channel"], p["from_zero"], p["phi"]
    match form:
        case "zero-star":
            y = rule.zero_star(t["x"], cond, uncond, scale)
        case "rescale-v":
            y = rule.rescaled(t["x"], p["sigma"], cond, uncond, scale, p["phi"])
        case "tangential":
            y = rule.tangential(cond, uncond, scale)
        case "nested":
            y = rule.nested(cond, t["other"], uncond, scale, p["other_scale"])
        case "cfg-norm":
            y = rule.held(guide(cond, uncond, scale), cond, p["strength"])
        case "dynamic-threshold":
            y = rule.limited(guide(cond, uncond, scale), p["percentile"], p["maximum"])
        case "mimic-range":
            y = rule.mimic(cond, uncond, scale, p["other_scale"], p["percentile"], *how)
        case _:
            y = rule.deviation(cond, uncond, scale, p["other_scale"], *how)
    return {"guided": y}


def _gap(t) -> np.ndarray:
    """Return how much an error of [cond; uncond] can turn its first singular vector: s_1 / (s_1 - s_2)."""
    rows = np.stack([t[name].reshape(len(t[name]), -1) for name in ("cond", "uncond")], axis=1)
    s = np.linalg.svd(rows, compute_uv=False)
    return (s[:, 0] / (s[:, 0] - s[:, 1])).reshape(-1, 1, 1, 1)


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The formulas on absolute values; an error in a factor of the whole image counts at every element."""
    t, p = inputs.tensors, inputs.params
    predictions = np.sum([np.abs(x) for x in t.values()], axis=0)
    guided = predictions * (1 + max(abs(p["scale"]), abs(p["other_scale"])))
    match p["form"]:
        case "zero-star":
            a, b = t["x"] - t["cond"], t["x"] - t["uncond"]
            spread = predictions.sum(axis=(1, 2, 3), keepdims=True) / np.abs(b).sum(axis=(1, 2, 3), keepdims=True)
            return guided * (1 + (norm_of(a) / norm_of(b) + 1) * spread)
        case "tangential":
            return guided + (1 + abs(p["scale"])) * norm_of(t["uncond"]) * _gap(t)
        case "rescale-v":
            return guided * (1 + p["sigma"] + 1 / p["sigma"])
        case "nested":
            return guided * (1 + abs(p["other_scale"]))
        case "cfg-norm":
            length = lengths_of(guide(t["cond"], t["uncond"], p["scale"]))
            return guided + np.abs(truth) * lengths_of(guided) / length
        case "dynamic-threshold":
            return guided + np.abs(truth)
    largest = guided.max(axis=(2, 3), keepdims=True) / np.abs(truth).max(axis=(2, 3), keepdims=True)
    return guided + guided.mean(axis=(2, 3), keepdims=True) + np.abs(truth) * largest


# --- what engines got wrong --------------------------------------------------------------------------------------


def _over_the_batch(of: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def change(*arguments):
        images = [x for x in arguments if isinstance(x, np.ndarray)]
        whole = [x.reshape(1, -1, *x.shape[2:]) if isinstance(x, np.ndarray) else x for x in arguments]
        return of(*whole).reshape(images[0].shape)

    return change


def _rescaled_denoised(x, sigma, cond, uncond, scale, phi):
    return rescale(guide(cond, uncond, scale), cond, phi)


def _rescaled_noise(x, sigma, cond, uncond, scale, phi):
    of_cond, of_uncond = ((x - denoised) / sigma for denoised in (cond, uncond))
    return x - sigma * rescale(guide(of_cond, of_uncond, scale), of_cond, phi)


def _along_cond(cond, uncond, scale):
    unit = cond / norm_of(cond)
    near = (uncond * unit).sum(axis=(1, 2, 3), keepdims=True) * unit
    return near + scale * (cond - near)


def _from_uncond(cond, uncond, scale):
    """Project uncond, but guide by the difference from the unprojected one."""
    near = tangential(cond, uncond, 0.0)
    return near + scale * (cond - uncond)


def _percentile_of_values(guided, percentile, maximum):
    s = np.clip(np.quantile(guided.reshape(len(guided), -1), percentile, axis=1), 1.0, maximum).reshape(-1, 1, 1, 1)
    return np.clip(guided, -s, s) / s


def _enlarged(guided, percentile, maximum):
    """Divide by thresholds below 1, too."""
    s = np.minimum(np.quantile(np.abs(guided).reshape(len(guided), -1), percentile, axis=1), maximum)
    s = s.reshape(-1, 1, 1, 1)
    return np.clip(guided, -s, s) / s


def _divided_only(guided, percentile, maximum):
    """Divide by the threshold, but clip nothing."""
    s = np.clip(np.quantile(np.abs(guided).reshape(len(guided), -1), percentile, axis=1), 1.0, maximum)
    return guided / s.reshape(-1, 1, 1, 1)


_KNOWN = (
    param("scale 1", scale=1.0),
    param("scale one too high", scale=lambda scale: scale + 1),
    param("scale one too low", scale=lambda scale: scale - 1),
    swapped("cond", "uncond"),
    swapped("cond", "other"),
    swapped("uncond", "other"),
    part("uncond not scaled", zero_star=lambda x, c, u, s: guide(c, u, s)),
    part("uncond scaled by the share of denoised, not of noise", zero_star=lambda x, c, u, s: zero_star(c, u, s)),
    part("uncond scaled over the whole batch", zero_star=_over_the_batch(comfyui_zero_star)),
    part("rescale left out", rescaled=lambda x, sigma, c, u, s, phi: guide(c, u, s)),
    part("denoised rescaled, not the velocity", rescaled=_rescaled_denoised),
    part("noise rescaled, not the velocity", rescaled=_rescaled_noise),
    part("rescaled over the whole batch", rescaled=_over_the_batch(rescale_in_v)),
    part("rescaled in full", rescaled=lambda x, sigma, c, u, s, phi: rescale_in_v(x, sigma, c, u, s, 1.0)),
    part("rescale by 1 - phi", rescaled=lambda x, sigma, c, u, s, phi: rescale_in_v(x, sigma, c, u, s, 1 - phi)),
    part("uncond not projected", tangential=guide),
    part("uncond projected on cond", tangential=_along_cond),
    part("uncond projected, but not in the difference", tangential=_from_uncond),
    part("projected over the whole batch", tangential=_over_the_batch(tangential)),
    part("guided as by text and image, not nested", nested=lambda c, m, u, s, o: guide_image(c, m, u, s, o)),
    part("inner and outer scale swapped", nested=lambda c, m, u, s, o: nested(c, m, u, o, s)),
    part("outer guidance left out", nested=lambda c, m, u, s, o: guide(c, m, s)),
    part("inner guidance left out", nested=lambda c, m, u, s, o: guide(c, u, o)),
    part("lengths not held", held=lambda guided, cond, strength: strength * guided),
    part("shorter ones made as long, too", held=lambda g, c, strength: strength * match_lengths(g, c)),
    part("strength left out", held=lambda guided, cond, strength: hold_lengths(guided, cond)),
    part("strength mixes in what is not held", held=lambda g, c, s: s * hold_lengths(g, c) + (1 - s) * g),
    *(part(f"lengths held {name}", held=over(axes, hold_lengths)) for name, axes in OVER.items() if axes != (1,)),
    part("threshold left out", limited=lambda guided, percentile, maximum: guided),
    part("clipped, not divided", limited=lambda g, q, m: dynamic_threshold(g, q, m) * _threshold(g, q, m)),
    part("divided, not clipped", limited=_divided_only),
    part("thresholds below 1 divide, too", limited=_enlarged),
    part("percentile of the values, not of their magnitudes", limited=_percentile_of_values),
    part("percentile of the whole batch", limited=_over_the_batch(dynamic_threshold)),
    part("clipped at 1", limited=lambda guided, percentile, maximum: np.clip(guided, -1, 1)),
    part(
        "no maximum of the threshold",
        limited=lambda guided, percentile, m: dynamic_threshold(guided, percentile, 1e9),
    ),
    part("the largest for the percentile", limited=lambda guided, percentile, m: dynamic_threshold(guided, 1.0, m)),
    param("range of the whole batch for each channel's", by_channel=lambda by_channel: not by_channel),
    param("scaled from the mean for from zero, or the reverse", from_zero=lambda from_zero: not from_zero),
    param("the largest for the percentile of the range", percentile=1.0),
    param("phi left out", phi=1.0),
    param("nothing of the other scale's spread", phi=0.0),
    part("ranges for deviations", deviation=lambda c, u, s, m, *how: mimic_threshold(c, u, s, m, 1.0, *how)),
    part("deviations for ranges", mimic=lambda c, u, s, m, percentile, *how: mimic_deviation(c, u, s, m, *how)),
)


def _threshold(guided: np.ndarray, percentile: float, maximum: float) -> np.ndarray:
    s = np.clip(np.quantile(np.abs(guided).reshape(len(guided), -1), percentile, axis=1), 1.0, maximum)
    return s.reshape(-1, 1, 1, 1)


_SHAPE = (2, 4, 5, 7)


def _case(label: str, form: str, scale: float, *more: str, even=False, **params):
    inputs = {"cond": Recipe(_SHAPE, offset=0.125), "uncond": Recipe(_SHAPE, exponent=-16, offset=-0.25)}
    inputs |= {"uncond": Recipe(_SHAPE, offset=-0.25)} if even else {}
    inputs |= {name: Recipe(_SHAPE, offset=0.0625) for name in more}
    return case("denoised_guidance", label, inputs, form=form, scale=scale, **params)


STAGES = (
    Stage(
        "denoised_guidance",
        "One denoised image from several: rescaled, projected, nested, or held within a range.",
        inputs={
            "cond": "[N, C, H, W]",
            "uncond": "[N, C, H, W]",
            "x?": "[N, C, H, W]: the latents that were denoised",
            "other?": "[N, C, H, W]: with a part of the prompt",
        },
        params={
            "form": REQUIRED,
            "scale": REQUIRED,
            "sigma": 1.5,
            "phi": 0.7,
            "other_scale": 2.5,
            "percentile": 0.9,
            "maximum": 4.0,
            "strength": 1.0,
            "by_channel": True,
            "from_zero": False,
        },
        outputs={"guided": Output(("item", "channel", "row", "column"), _size, 160)},
        rule=DenoisedRule(),
        run=_run,
        known=_KNOWN,
        cases=(
            _case("zero-star", "zero-star", 4.0, "x"),
            _case("rescale-v", "rescale-v", 7.5, "x"),
            _case("tangential", "tangential", 5.0),
            _case("nested", "nested", 7.5, "other", other_scale=1.5),
            _case("cfg-norm", "cfg-norm", 1.5, even=True),
            _case("cfg-norm-strength", "cfg-norm", 1.5, even=True, strength=0.75),
            _case("dynamic-threshold", "dynamic-threshold", 7.5, maximum=50.0),
            _case("dynamic-threshold-below-1", "dynamic-threshold", 1.5, percentile=0.25, maximum=50.0),
            _case("dynamic-threshold-held", "dynamic-threshold", 7.5, maximum=1.5),
            _case("mimic-range", "mimic-range", 14.0, other_scale=7.0, phi=0.75),
            _case("mimic-range-batch", "mimic-range", 14.0, other_scale=7.0, by_channel=False, from_zero=True),
            _case("mimic-deviation", "mimic-deviation", 14.0, other_scale=7.0),
            _case(
                "mimic-deviation-zero", "mimic-deviation", 14.0, other_scale=7.0, from_zero=True, by_channel=False
            ),
        ),
    ),
)
