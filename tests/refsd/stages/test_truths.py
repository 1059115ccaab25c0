"""What stages answer, against second opinions that import nothing of refsd, and against recorded engines."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from naive import guidance as naive_guidance
from naive import schedules as naive_schedules
from naive import sigmas as naive_sigmas
from prompt_words import Words

from refsd.golden.case import Case
from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.stages import STAGES, clip_tokens
from refsd.stages.stage import case as asks

FIXTURES = Path(__file__).parents[2] / "fixtures"


def _answer(case: Case):
    """-> the inputs as float64, the parameters, the reference's outputs"""
    inputs, judge = case.realize(), StageJudge()
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    return values, judge.complete(case, inputs), judge.answer(case, inputs, Arithmetic(FLOAT64))


def _truth(name: str):
    op, label = name.rsplit("/", 1)
    return _answer(next(case for case in STAGES[f"stage/{op}"].cases if case.name == f"stage/{op}/{label}"))


_LEVELS = naive_schedules.training_sigmas()
_KEPT = [1 / (1 + sigma**2) for sigma in _LEVELS]


def _at(timesteps):
    return [naive_schedules.t_to_sigma(t, _LEVELS) for t in timesteps] + [0.0]


def _zero_snr_at(timesteps):
    kept = naive_sigmas.zero_snr(_KEPT)
    kept[-1] = 2.0**-24
    levels = [math.sqrt(1 / a - 1) for a in kept]
    return [levels[t] for t in timesteps] + [0.0]


_FLUX = naive_sigmas.flux_shift(3072)


@pytest.mark.parametrize(
    ("label", "sigmas", "timesteps"),
    [
        ("sd-discrete-n7", _at([999 - 166.5 * i for i in range(7)]), [999 - 166.5 * i for i in range(7)]),
        ("sd-karras-n5", naive_schedules.karras(5, _LEVELS[0], _LEVELS[-1]), None),
        ("sd-leading-n7", _at(naive_sigmas.leading_timesteps(7, 1)), naive_sigmas.leading_timesteps(7, 1)),
        ("sd-trailing-n6", _at(naive_sigmas.trailing_timesteps(6)), naive_sigmas.trailing_timesteps(6)),
        ("sd-zero-snr-trailing-n5", _zero_snr_at(naive_sigmas.trailing_timesteps(5)), None),
        ("flow-discrete-n6", naive_sigmas.flow_discrete(6, 3.0), "thousand"),
        ("flow-uniform-n8", naive_sigmas.flow_uniform(8, 3.0), "thousand"),
        ("flow-linspace-n7", naive_sigmas.flow_linspace(7, 2.5), "thousand"),
        ("flux-n5", naive_sigmas.flow_uniform(5, _FLUX), "one"),
        ("edm-karras-n6", naive_sigmas.edm_karras(6), None),
        ("strength-sdcpp-n7", _at([999 - 166.5 * i for i in range(7)])[2:], None),
        ("strength-diffusers-n7", _at(naive_sigmas.leading_timesteps(7, 1))[3:], None),
    ],
)
def test_sigmas(label, sigmas, timesteps):
    _, _, found = _truth(f"sigmas/{label}")
    np.testing.assert_allclose(found["sigmas"], sigmas, rtol=1e-12, atol=1e-15)
    if timesteps is not None:
        times = {"thousand": 1000, "one": 1}.get(timesteps) if isinstance(timesteps, str) else None
        want = timesteps if times is None else np.multiply(sigmas[:-1], times)
        np.testing.assert_allclose(found["timesteps"], want, rtol=1e-9)


def test_nearest_timesteps_and_real_ones():
    for label, nearest in (("sd-karras-nearest-n5", True), ("sd-karras-n5", False)):
        _, _, found = _truth(f"sigmas/{label}")
        for sigma, t in zip(found["sigmas"], found["timesteps"], strict=False):
            apart = [abs(math.log(sigma / level)) for level in _LEVELS]
            assert abs(t - apart.index(min(apart))) <= (0 if nearest else 0.5)
            assert nearest or naive_schedules.t_to_sigma(t, _LEVELS) == pytest.approx(sigma)


@pytest.mark.parametrize(
    ("label", "naive"),
    [
        ("cfg", lambda t, p: naive_guidance.cfg(t["cond"], t["uncond"], p["scale"])),
        ("zimage", lambda t, p: t["cond"] + p["scale"] * (t["cond"] - t["uncond"])),
        (
            "pix2pix",
            lambda t, p: naive_guidance.pix2pix(t["cond"], t["other"], t["uncond"], p["scale"], p["other_scale"]),
        ),
        ("rescale", lambda t, p: naive_guidance.rescaled(t["cond"], t["uncond"], p["scale"], p["phi"])),
        ("apg", lambda t, p: naive_guidance.apg(t["cond"], t["uncond"], p["scale"], p["eta"])),
        (
            "apg-norm",
            lambda t, p: naive_guidance.apg(t["cond"], t["uncond"], 6.0, 0.25, 2.5, -0.5, t["average"]),
        ),
        (
            "apg-sdcpp",
            lambda t, p: naive_guidance.apg(t["cond"], t["uncond"], 6.0, 0.25, 280 * 140**0.5 / 256, smooth=0.5),
        ),
        (
            "perp-neg",
            lambda t, p: naive_guidance.perpendicular(t["cond"], t["uncond"], t["other"], 7.5, 0.8),
        ),
        ("zero-star", lambda t, p: naive_guidance.zero_star(t["cond"], t["uncond"], p["scale"])),
        ("skip-layer", lambda t, p: 4.5 * t["cond"] - 3.5 * t["uncond"] + 2.8 * (t["cond"] - t["other"])),
    ],
)
def test_guidance(label, naive):
    tensors, params, found = _truth(f"guidance/{label}")
    np.testing.assert_allclose(found["guided"], naive(tensors, params), rtol=1e-7, atol=1e-12)


def test_clip_ids_are_those_that_transformers_recorded():
    recorded = json.loads((FIXTURES / "clip_ids.json").read_text())["cases"]
    for one in recorded:
        asked = asks("clip_tokens", "recorded", engine="diffusers", prompt=one["text"])
        ids = _answer(asked)[2]["ids"][0]
        want = [49406, *one["ids"][:75], 49407]
        np.testing.assert_array_equal(ids, want + [49407] * (77 - len(want)))


@pytest.mark.parametrize("engine", ["a1111", "forge", "comfyui"])
def test_clip_chunks_are_those_that_engines_recorded(engine, monkeypatch):
    """They were recorded with a vocabulary of words."""
    monkeypatch.setattr(clip_tokens, "_vocabulary", Words)
    fixture = "a1111.json" if engine == "a1111" else "prompts.json"
    for prompt, chunks in json.loads((FIXTURES / fixture).read_text())["chunks"].items():
        found = _answer(asks("clip_tokens", "recorded", engine=engine, prompt=prompt))[2]
        theirs = chunks if engine == "a1111" else chunks[engine]
        assert len(found["ids"]) == len(theirs)
        for ids, weights, (text, weighed) in zip(found["ids"], found["weights"], theirs, strict=True):
            np.testing.assert_array_equal(ids, [49406, *text, *[49407] * (76 - len(text))])
            np.testing.assert_allclose(weights, [weighed.get(str(i), 1.0) for i in range(77)], rtol=1e-6)
