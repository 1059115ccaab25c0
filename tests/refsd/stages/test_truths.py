"""What stages answer, against second opinions that import nothing of refsd, and against recorded engines."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from naive import guidance as naive_guidance
from naive import noise as naive_noise
from naive import schedules as naive_schedules
from naive import sigmas as naive_sigmas
from naive import vae_tiling as naive_tiling
from prompt_words import Words

from refsd.families import VARIANTS
from refsd.golden.case import Case
from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import prompts
from refsd.stages import STAGES, clip_tokens, language_tokens
from refsd.stages.stage import case as asks
from refsd.tokenizers.cards import PROMPT_CARDS

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


# --- prediction, noising, latents -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "want"),
    [
        ("eps-high", lambda x, y, s: x - s * y),
        ("v", lambda x, y, s: (x - s * math.sqrt(s * s + 1) * y) / (s * s + 1)),
        ("v-zero-snr", lambda x, y, s: (x - s * math.sqrt(s * s + 1) * y) / (s * s + 1)),
        ("x0", lambda x, y, s: y),
        ("flow", lambda x, y, s: x - s * y),
        ("to-data", lambda x, y, s: x + s * y),
        ("edm", lambda x, y, s: x * 0.25 / (s * s + 0.25) + y * s * 0.5 / math.sqrt(s * s + 0.25)),
    ],
)
def test_prediction(label, want):
    t, p, found = _truth(f"prediction/{label}")
    s = p["sigma"]
    np.testing.assert_allclose(found["denoised"], want(t["x"], t["answer"], s), rtol=1e-9, atol=1e-12)
    shown = {"edm": t["x"] / math.sqrt(s * s + 0.25)}.get(label)
    if shown is None:
        shown = t["x"] if p["levels"] == "flow" else t["x"] / math.sqrt(s * s + 1)
    for name in ("shown", "control"):
        np.testing.assert_allclose(found[name], shown, rtol=1e-12)


def test_prediction_tells_the_network_a_timestep():
    told = {
        label: _truth(f"prediction/{label}")[2]["t"][0] for label in ("flow", "flux", "edm-v", "eps-low-nearest")
    }
    assert told == pytest.approx({"flow": 730, "flux": 0.61, "edm-v": math.log(5.5) / 4, "eps-low-nearest": 85})
    # 0.31 lies between the levels of 85 and the next.
    assert abs(math.log(_LEVELS[85] / 0.31)) <= min(abs(math.log(_LEVELS[t] / 0.31)) for t in (84, 86))


def test_noising_is_a_stream_for_each_picture_and_the_steps_go_on_in_it():
    t, _, found = _truth("noising/ve-sdcpp")
    for b in range(3):
        for call, drawn in ((0, found["noise"]), (1, found["step_noise"][0]), (2, found["step_noise"][1])):
            want = [naive_noise.philox_normal(42 + b, call, element) for element in range(105)]
            np.testing.assert_allclose(drawn[b].ravel(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["start"], t["latent"] + 6.1 * found["noise"], rtol=1e-12)
    t, _, found = _truth("noising/flow-sdcpp")
    np.testing.assert_allclose(found["start"], 0.3 * t["latent"] + 0.7 * found["noise"], rtol=1e-12)
    t, _, found = _truth("noising/vp-diffusers")
    kept = 1 / (1 + 2.3**2)
    want = math.sqrt(kept) * t["latent"] + math.sqrt(1 - kept) * found["noise"]
    np.testing.assert_allclose(found["start"], want, rtol=1e-12)


@pytest.mark.parametrize(
    ("label", "factor", "shift"), [("sd1", 0.18215, 0), ("sd3", 1.5305, 0.0609), ("flux", 0.3611, 0.1159)]
)
def test_latents(label, factor, shift):
    t, _, found = _truth(f"latents/{label}")
    C = t["latent"].shape[1]
    mean, logvar = t["moments"][:, :C], np.clip(t["moments"][:, C:], -30, 20)
    assert logvar.max() == 20
    drawn = mean + np.sqrt(np.exp(logvar)) * t["noise"]
    np.testing.assert_allclose(found["latent"], factor * drawn - factor * shift, rtol=1e-12)
    np.testing.assert_allclose(found["shown_latent"], (t["latent"] + factor * shift) / factor, rtol=1e-12)
    np.testing.assert_array_equal(found["picture"], t["decoded"])


def test_a_tiny_autoencoders_pixels_are_0_to_1_and_its_latents_the_denoisers():
    t, _, found = _truth("latents/taef1")
    np.testing.assert_array_equal(found["latent"], t["moments"][:, :16])
    np.testing.assert_array_equal(found["shown_latent"], t["latent"])
    np.testing.assert_allclose(found["shown_picture"] * 2 - 1, t["picture"], atol=1e-15)
    np.testing.assert_allclose(found["picture"], 2 * t["decoded"] - 1, atol=1e-15)


# --- tiles, language tokens -------------------------------------------------------------------------------------


def _mean_off(up):
    def decode(z):
        y = z - np.einsum("nchw->nc", z)[:, :, None, None] / (z.shape[2] * z.shape[3])
        return np.kron(y, np.ones((up, up)))

    return decode


@pytest.mark.parametrize("label", ["sdcpp-odd", "sdcpp-half", "diffusers-odd", "diffusers-small-last"])
def test_tiles(label):
    t, p, found = _truth(f"tiles/{label}")
    if label.startswith("sdcpp"):
        percent = round(100 * p["overlap"])
        for axis, (length, size) in enumerate(zip(t["z"].shape[2:], p["size"], strict=True)):
            starts = np.unique(found["tiles"][:, axis])
            assert starts[1] == size - naive_tiling.shared(length, size, percent) and starts[-1] == length - size
        want = naive_tiling.tiled_sdcpp(_mean_off(3), t["z"], p["size"], percent, 3)
    else:
        want = naive_tiling.tiled_diffusers(_mean_off(3), t["z"], p["size"][0], 3 * p["size"][0], p["overlap"])
    np.testing.assert_allclose(found["picture"], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("label", "before", "after"),
    [
        ("zimage", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("zimage-special", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("flux-t5", "", "</s>"),
        ("chroma-t5-mask", "", "</s>"),
    ],
)
def test_language_tokens_spell_the_prompt_in_its_template(label, before, after):
    _, p, found = _truth(f"language_tokens/{label}")
    tokens = [p["vocabulary"]["tokens"][int(i)] for i in found["ids"][0]]
    pad = p["vocabulary"]["ends"][2]
    count = len(tokens) - next(i for i, token in enumerate(reversed(tokens)) if token != pad)
    text = "".join(tokens[:count])
    if p["encoder"] == "t5":
        assert text.endswith(after) and tokens[count:] == ["<pad>"] * (24 - count)
        assert text.count("\u2581") == len(p["prompt"].split())
    else:
        assert text.replace("\u0120", " ").replace("\u010a", "\n") == before + p["prompt"] + after
    masked = label != "flux-t5"
    np.testing.assert_array_equal(found["mask"][0], [int(i < count or not masked) for i in range(len(tokens))])


class _Encoder:
    """Notes what it is shown."""

    def __init__(self, name):
        self.name, self.path, self.dtype, self.shown = name, Path("given"), np.float64, []

    def __call__(self, inputs, source, **params):
        self.shown.append(inputs)
        return dict.fromkeys(("last_hidden_state", "penultimate"), np.ones((1, inputs["input_ids"].shape[1], 1)))


@pytest.mark.parametrize("case", STAGES["stage/language_tokens"].cases, ids=lambda case: case.name)
def test_language_tokens_are_what_txt2img_shows_the_encoder(case):
    """But for the length, which the cases shorten: a row's padding is cut, or rows are compared up to it."""
    p = _answer(case)[1]
    ids, mask = (_answer(asks("language_tokens", "whole", **{**p, "length": None}))[2][k] for k in ("ids", "mask"))
    encoder, tokenizer = _Encoder(p["encoder"]), language_tokens._tokenizer(json.dumps(p["vocabulary"]))
    rule, card = VARIANTS[p["variant"]].encoders[p["encoder"]].rules[p["engine"]], PROMPT_CARDS[p["engine"]]
    prompts._language(encoder, tokenizer, rule, card, "last_hidden_state", p["prompt"])
    np.testing.assert_array_equal(np.concatenate([shown["input_ids"] for shown in encoder.shown]), ids)
    if "attention_mask" in encoder.shown[0]:
        np.testing.assert_array_equal(np.concatenate([shown["attention_mask"] for shown in encoder.shown]), mask)
