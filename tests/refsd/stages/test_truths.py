"""What stages answer, against second opinions that import nothing of refsd, and against recorded engines."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from naive import guidance as naive_guidance
from naive import noise as naive_noise
from naive import schedules as naive_schedules
from naive import sigmas as naive_sigmas
from naive import vae_tiling as naive_tiling
from naive.adapters import deltas as naive_adapters
from prompt_words import Words

from refsd.conventions import CONVENTIONS
from refsd.families import VARIANTS
from refsd.golden.case import Case
from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import prompts
from refsd.stages import STAGES, clip_tokens, language_tokens, latents
from refsd.stages.prediction import TIMES
from refsd.stages.stage import case as asks

FIXTURES = Path(__file__).parents[2] / "fixtures"


def _answer(case: Case):
    """-> the inputs as float64, the parameters, the reference's outputs"""
    inputs, judge = case.realize(), StageJudge()
    if (why := judge.refuses(case, FLOAT64)) is not None:
        pytest.skip(why)  # CLIP's vocabulary comes with a package for Python 3.11 alone
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


def _logit_normal(n: int, shift: float) -> list[float]:
    """The logistic function of quantiles; that of 1 is held at 9."""
    quantiles = [statistics.NormalDist(math.log(shift), 1.5).inv_cdf(1 - i / n) for i in range(1, n)]
    return [1 / (1 + math.exp(-x)) for x in (9.0, *quantiles)] + [0.0]


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
        ("sd-given-n4", [14.5, 5.25, 1.375, 0.4375, 0.0], None),
        ("flow-given-n4", [1.0, 0.96875, 0.75, 0.375, 0.0], "thousand"),
        ("flow-given-shifted-n4", [1.0, 0.9, 0.75, 0.5, 0.0], "thousand"),
        ("flow-logit-normal-n7", _logit_normal(7, 1.6), "thousand"),
        ("flux-schnell-n4", [1.0, 0.75, 0.5, 0.25, 0.0], "one"),
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
        times = {"thousand": 1000.0, "one": 1.0}
        want = [times[timesteps] * sigma for sigma in sigmas[:-1]] if isinstance(timesteps, str) else timesteps
        np.testing.assert_allclose(found["timesteps"], want, rtol=1e-9)


def test_nearest_timesteps_and_real_ones():
    for label, nearest in (
        *(("sd-karras-nearest-n5", True), ("sd-karras-nearest-n45", True)),
        *(("sd-karras-n5", False), ("sd-given-n4", False)),
    ):
        _, _, found = _truth(f"sigmas/{label}")
        for sigma, t in zip(found["sigmas"], found["timesteps"], strict=False):
            apart = [abs(math.log(sigma / level)) for level in _LEVELS]
            assert abs(t - apart.index(min(apart))) <= (0 if nearest else 0.5)
            assert nearest or naive_schedules.t_to_sigma(t, _LEVELS) == pytest.approx(sigma)


def test_equal_timesteps_have_levels_of_their_own():
    _, _, found = _truth("sigmas/sd-karras-nearest-n45")
    want = naive_schedules.karras(45, _LEVELS[0], _LEVELS[-1])
    np.testing.assert_allclose(found["sigmas"], want, rtol=1e-12)
    assert found["timesteps"][-3:].tolist() == [1, 1, 0]


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
        (
            "cfg-norm",
            lambda t, p: naive_guidance.of_pixels(
                1.5 * t["cond"] - 0.5 * t["uncond"], t["cond"], lambda g, c: 0.2 + 0.8 * c / g
            ),
        ),
        ("skip-layer", lambda t, p: 4.5 * t["cond"] - 3.5 * t["uncond"] + 2.8 * (t["cond"] - t["other"])),
    ],
)
def test_guidance(label, naive):
    tensors, params, found = _truth(f"guidance/{label}")
    np.testing.assert_allclose(found["guided"], naive(tensors, params), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("label", "naive"),
    [
        ("zero-star", lambda t, p: naive_guidance.zero_star_of_noise(t["x"], t["cond"], t["uncond"], 4.0)),
        (
            "rescale-v",
            lambda t, p: naive_guidance.rescaled_velocities(
                t["x"], p["sigma"], t["cond"], t["uncond"], 7.5, p["phi"]
            ),
        ),
        ("tangential", lambda t, p: naive_guidance.tangential(t["cond"], t["uncond"], 5.0)),
        (
            "cfg-norm-strength",
            lambda t, p: naive_guidance.of_pixels(
                1.5 * t["cond"] - 0.5 * t["uncond"], t["cond"], lambda g, c: 0.75 * min(1.0, c / (g + 1e-8))
            ),
        ),
        ("nested", lambda t, p: 11.25 * t["cond"] - 9.75 * t["other"] - 0.5 * t["uncond"]),
        (
            "dynamic-threshold",
            lambda t, p: naive_guidance.thresholded(naive_guidance.cfg(t["cond"], t["uncond"], 7.5), 0.9, 50.0),
        ),
        (
            "dynamic-threshold-held",
            lambda t, p: naive_guidance.thresholded(naive_guidance.cfg(t["cond"], t["uncond"], 7.5), 0.9, 1.5),
        ),
    ],
)
def test_denoised_guidance(label, naive):
    tensors, params, found = _truth(f"denoised_guidance/{label}")
    np.testing.assert_allclose(found["guided"], naive(tensors, params), rtol=1e-7, atol=1e-12)


def test_scales_of_each_step():
    """The curves are held to sd-dynamic-thresholding's in tests/samplers/test_recorded_guidance.py."""
    np.testing.assert_array_equal(_truth("guidance_scales/listed")[2]["scales"], [7.5] * 3 + [4.0] * 2 + [1.0])
    down = _truth("guidance_scales/linear-down")[2]["scales"]
    np.testing.assert_allclose(down, [7 - 5.5 * i / 6 for i in range(7)], rtol=1e-15)


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


def test_a_picture_to_edit_is_shown_behind_x_and_is_no_part_of_what_is_denoised():
    t, _, found = _truth("prediction/flow-reference")
    np.testing.assert_array_equal(found["shown"][:, :, :5], t["x"])
    np.testing.assert_array_equal(found["shown"][:, :, 5:], t["reference"])
    np.testing.assert_allclose(found["denoised"], t["x"] - 0.81 * t["answer"][:, :, :5], rtol=1e-12)
    np.testing.assert_array_equal(found["reference"], t["reference"])


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
    t, _, found = _truth("noising/flow-normalised")
    for c in range(3):
        latent = (t["latent"][:, c] - t["channel_mean"][c]) / math.sqrt(t["channel_variance"][c] + 1e-4)
        np.testing.assert_allclose(found["start"][:, c], 0.35 * latent + 0.65 * found["noise"][:, c], rtol=1e-12)
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


def test_latents_by_a_cases_own_numbers():
    """A family that refsd does not know: factor and shift, or means and spreads, stand in the case."""
    sizes, means, spreads = latents.sizes(3), [0.5, -0.25, 2.0], [1.5, 0.5, 3.0]
    t, _, found = _answer(asks("latents", "x", sizes, factor=0.4, shift=0.1, draw=False))
    np.testing.assert_allclose(found["latent"], 0.4 * t["moments"][:, :3] - 0.04, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["shown_latent"], 2.5 * t["latent"] + 0.1, rtol=1e-12)
    t, _, found = _answer(asks("latents", "x", sizes, factor=0.4, means=means, spreads=spreads, draw=False))
    for c, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        np.testing.assert_allclose(found["latent"][:, c], 0.4 * (t["moments"][:, c] - mean) / spread, rtol=1e-12)
        np.testing.assert_allclose(found["shown_latent"][:, c], t["latent"][:, c] * spread / 0.4 + mean, rtol=1e-12)
    with pytest.raises(BadInput, match="family ''"):
        _answer(asks("latents", "x", sizes))


def test_prediction_by_a_cases_own_timestep():
    inputs = STAGES["stage/prediction"].cases[0].inputs
    told = {"prediction": "flow", "levels": "flow", "sigma": 0.25}
    found = {unit: _answer(asks("prediction", "x", inputs, time=unit, **told))[2]["t"][0] for unit in TIMES}
    assert found == {"sigma": 0.25, "1000 sigma": 250.0, "1 - sigma": 0.75, "1000 (1 - sigma)": 750.0}
    with pytest.raises(BadInput, match="time 'ms': expected one of sigma, "):
        _answer(asks("prediction", "x", inputs, time="ms", **told))


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


@pytest.mark.parametrize("engine", ["sdcpp", "diffusers"])
def test_encoded_tiles(engine):
    t, p, found = _truth(f"encoded_tiles/{engine}")

    def encode(x):
        y = x - np.einsum("nchw->nc", x)[:, :, None, None] / (x.shape[2] * x.shape[3])
        return sum(y[:, :, r::3, s::3] for r in range(3) for s in range(3)) / 9

    if engine == "diffusers":
        want = naive_tiling.tiled_diffusers(encode, t["z"], 24, 8, p["overlap"])
    else:
        # The naive one cuts a latent whose pixels are their own numbers; the picture's pixels lie there times 3.
        H, W = (n // 3 for n in t["z"].shape[2:])

        def at(tile):
            (top, left), (high, wide) = divmod(int(tile[0, 0, 0, 0]), W), tile.shape[2:]
            return encode(t["z"][:, :, 3 * top : 3 * (top + high), 3 * left : 3 * (left + wide)])

        want = naive_tiling.tiled_sdcpp(at, np.arange(H * W).reshape(1, 1, H, W), p["size"], 25)
    np.testing.assert_allclose(found["picture"], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("label", "before", "after"),
    [
        ("zimage", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("zimage-special", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("flux-t5", "", "</s>"),
        ("flux3", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
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


@pytest.mark.parametrize(("label", "row"), [("flux3", 80), ("flux3-long", 150)])
def test_language_tokens_of_flux3_fill_windows_of_80(label, row):
    """Two windows are cut to the length; the padding stands at 1."""
    _, _, found = _truth(f"language_tokens/{label}")
    count = int(found["mask"].sum())
    assert found["ids"].shape == (1, row) and 80 * (row // 80) - 80 < count < row
    assert found["positions"][0].tolist() == [*range(count), *[1] * (row - count)]


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
    whole = _answer(asks("language_tokens", "whole", **{**p, "length": None}))[2]
    encoder, tokenizer = _Encoder(p["encoder"]), language_tokens._tokenizer(json.dumps(p["vocabulary"]))
    own = VARIANTS[p["variant"]].encoders[p["encoder"]]._replace(output="last_hidden_state", layers=())
    rule, convention = own.rules[p["engine"]], CONVENTIONS[p["engine"]]
    prompts._language(encoder, tokenizer, rule, convention, own, p["prompt"])  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.concatenate([shown["input_ids"] for shown in encoder.shown]), whole["ids"])
    if "attention_mask" in encoder.shown[0]:
        seen = np.concatenate([shown["attention_mask"] for shown in encoder.shown])
        np.testing.assert_array_equal(seen, whole["mask"])
    assert ("positions" in encoder.shown[0]) == ("positions" in whole)
    if "positions" in whole:
        (shown,) = encoder.shown
        np.testing.assert_array_equal(shown["positions"], whole["positions"][..., None].repeat(3, axis=2))


# --- adapters, weights, conditioning, inpainting ----------------------------------------------------------------


def _kohya(t, label):
    """-> the delta at strength 1, by tests/naive/adapters"""
    at = lambda part: t[f"lora_unet_layer.{part}"]
    match label:
        case "lora-kohya":
            return naive_adapters.lora(at("lora_down.weight"), at("lora_up.weight"), None, 1 / 4)
        case "lora-no-alpha":
            return naive_adapters.lora(at("lora_down.weight"), at("lora_up.weight"), None, 1)
        case "lora-conv":
            return naive_adapters.lora(at("lora_down.weight"), at("lora_up.weight")[:, :, 0, 0], None, 2 / 4)
        case "lora-tucker":
            down, up = at("lora_down.weight")[:, :, 0, 0], at("lora_up.weight")[:, :, 0, 0]
            return naive_adapters.lora(down, up, at("lora_mid.weight"), 3 / 4)
        case "loha":
            a, b, c, d = (at(f"hada_{part}") for part in ("w1_a", "w1_b", "w2_a", "w2_b"))
            return (a @ b) * (c @ d) / 4
        case "lokr":
            return np.kron(at("lokr_w1"), at("lokr_w2_a") @ at("lokr_w2_b")) / 3
        case "lokr-full":
            return np.kron(at("lokr_w1"), at("lokr_w2"))
        case "lokr-scalar":
            return np.kron(at("lokr_w1"), at("lokr_w2_a") @ at("lokr_w2_b")) * 2 / 3 * 0.625
        case "lora-scalar":
            return naive_adapters.lora(at("lora_down.weight"), at("lora_up.weight"), None, -1.375 * 3 / 4)
    raise ValueError(label)


@pytest.mark.parametrize(
    "label",
    [
        *("lora-kohya", "lora-no-alpha", "lora-conv", "lora-tucker", "loha", "lokr", "lokr-full"),
        *("lokr-scalar", "lora-scalar"),
    ],
)
def test_adapters(label):
    t, p, found = _truth(f"adapter/{label}")
    delta = np.asarray(_kohya(t, label)).reshape(t["weight"].shape)
    np.testing.assert_allclose(found["merged"], t["weight"] + p["strength"] * delta, rtol=1e-10, atol=1e-13)


def test_adapters_of_fused_rows_and_tags():
    t, p, found = _truth("adapter/lora-fused")
    for module, (first, count) in p["rows"].items():
        up, down = t[f"{module}.lora_up.weight"], t[f"{module}.lora_down.weight"]
        rows = slice(first, first + count)
        want = t["weight"][rows] + float(t[f"{module}.alpha"]) / len(down) * up @ down
        np.testing.assert_allclose(found["merged"][rows], want, rtol=1e-10, atol=1e-13)
    t, _, found = _truth("adapter/lora-peft-fused")
    want = np.concatenate(
        [
            6 / rank * t[f"to_{part}.lora_B.weight"] @ t[f"to_{part}.lora_A.weight"]
            for part, rank in zip("qkv", (2, 4, 8), strict=True)
        ]
    )
    np.testing.assert_allclose(found["merged"], t["weight"] + want, rtol=1e-10, atol=1e-13)
    t, p, found = _truth("adapter/lora-two-streams")
    own = [f"to_{part}" for part in "qkv"]
    want = [t["weight"][16 * i : 16 * (i + 1)].copy() for i in range(3)]
    for rows, module in zip(want, own, strict=True):
        down = t[f"{module}.lora_down.weight"]
        rows += 3 / len(down) * t[f"{module}.lora_up.weight"] @ down
    np.testing.assert_allclose(found["merged"], np.concatenate(want), rtol=1e-10, atol=1e-13)
    t, _, found = _truth("adapter/lora-other-transformer")
    np.testing.assert_array_equal(found["merged"], t["weight"])
    for label, strength in (("tag-one", 0.5), ("tag-two-unet", 0.4), ("tag-two-text", 0.7)):
        t, p, found = _truth(f"adapter/{label}")
        scale = float(t.get("lora_unet_layer.alpha", 4.0)) / 4
        delta = scale * t["lora_unet_layer.lora_up.weight"] @ t["lora_unet_layer.lora_down.weight"]
        np.testing.assert_allclose(found["merged"], t["weight"] + strength * delta, rtol=1e-10, atol=1e-13)


def test_a_doras_strength_is_on_the_factor_and_its_lengths_are_of_rows():
    t, _, found = _truth("adapter/dora")
    delta = 0.5 * t["lora_unet_layer.lora_up.weight"] @ t["lora_unet_layer.lora_down.weight"]
    rows = []
    for w, d, m in zip(t["weight"], delta, t["lora_unet_layer.dora_scale"][:, 0], strict=True):
        length = math.sqrt(sum(float(v) ** 2 for v in w + d))
        rows.append((w + d) * (1 + 0.5 * (m / length - 1)))
    np.testing.assert_allclose(found["merged"], rows, rtol=1e-9, atol=1e-12)


def test_adapters_with_settings_and_on_stored_types():
    """alpha of PEFT's settings, over the rank or its root, also on the bias; the merged weight is in float."""
    for label, scale in (("settings", 6 / 4), ("rslora", 6 / 2), ("bias", 6 / 4)):
        t, p, found = _truth(f"adapter/lora-peft-{label}")
        up, down = (t[f"base_model.model.layer.lora_{which}.weight"] for which in "BA")
        want = t["weight"] + p["strength"] * scale * up @ down
        np.testing.assert_allclose(found["merged"], want, rtol=1e-10, atol=1e-13)
    more = p["strength"] * scale * t["base_model.model.layer.lora_B.bias"]
    np.testing.assert_allclose(found["merged_bias"], t["bias"] + more, rtol=1e-10, atol=1e-13)
    t, _, found = _truth("adapter/lora-on-q4_0")
    delta = 2 / 4 * t["lora_unet_layer.lora_up.weight"] @ t["lora_unet_layer.lora_down.weight"]
    np.testing.assert_allclose(found["merged"], t["weight"] + delta, rtol=1e-10, atol=1e-13)
    t, _, found = _truth("adapter/dora-empty-rows")
    empty = ~t["weight"].any(axis=1)
    assert empty.any() and not empty.all() and not found["merged"][empty].any() and found["merged"][~empty].all()


@pytest.mark.parametrize(
    ("label", "want"),
    [
        ("linear-f16", lambda t: [t["data"][24 * o : 24 * (o + 1)] for o in range(40)]),
        ("square-q8_0", lambda t: [t["data"][32 * o : 32 * (o + 1)] for o in range(32)]),
        ("conv-f16", lambda t: np.moveaxis(t["data"].reshape((3, 2, 8, 6), order="F"), (0, 1, 2, 3), (3, 2, 1, 0))),
        ("fused-qkv", lambda t: np.concatenate([t[k].reshape(16, 16) for k in ("data", "second", "third")])),
        ("shift-and-scale", lambda t: np.concatenate([t["data"][120:], t["data"][:120]]).reshape(20, 12)),
        ("fp8-scaled", lambda t: 0.375 * t["data"].reshape(16, 24)),
        (
            "fp8-fused-own",
            lambda t: np.concatenate(
                [s * t[k].reshape(16, 16) for k, s in (("data", 0.375), ("second", 0.8125), ("third", 0.1875))]
            ),
        ),
        ("table-with-added", lambda t: [*t["data"].reshape(40, 32), *t["added"]]),
    ],
)
def test_weights(label, want):
    t, _, found = _truth(f"weights/{label}")
    np.testing.assert_allclose(found["weight"], np.array(want(t)), rtol=1e-12)


@pytest.mark.parametrize("label", ["nf4", "fp4", "nf4-nested"])
def test_weights_of_four_bits(label):
    """The 4-bit numbers of QLoRA's table and of e2m1 / 12, code by code."""
    nf4 = (-1, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0)
    nf4 += (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1)
    fp4 = [n / 192 for n in (0, 1, 128, 192, 64, 96, 32, 48)]
    t, p, found = _truth(f"weights/{label}")
    table = nf4 if label.startswith("nf4") else [*fp4, *(-value for value in fp4)]
    I, O = p["ne"]
    want = np.zeros((O, I))
    for place in range(O * I):
        byte, group = int(t["data"][place // 2]), place // p["each"]
        scale = t["absmax"][group]
        if "nested_map" in t:
            scale = t["nested_map"][int(scale)] * t["nested_absmax"][group // 256] + p["offset"]
        want[divmod(place, I)] = table[byte % 16 if place % 2 else byte // 16] * scale
    np.testing.assert_allclose(found["weight"], want, rtol=1e-5, atol=1e-6)


def test_conditioning_of_sdxl():
    t, _, found = _truth("conditioning/sdxl")
    np.testing.assert_array_equal(found["context"][..., :6], t["clip_hidden"])
    np.testing.assert_array_equal(found["context"][..., 6:], t["clip_g_hidden"])
    np.testing.assert_array_equal(found["y"][:, :10], t["clip_g_pooled"])
    for i, size in enumerate((768, 1216, 0, 0, 768, 1216)):
        angles = [size * 10000 ** (-k / 128) for k in range(128)]
        want = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        np.testing.assert_allclose(found["y"][1, 10 + 256 * i : 266 + 256 * i], want, rtol=1e-9, atol=1e-9)
    for label, zeroed in (("sdxl-empty", True), ("sdxl-empty-sdcpp", False)):
        t, _, found = _truth(f"conditioning/{label}")
        assert not found["context"].any() and found["y"][:, :10].any() != zeroed
    assert _truth("conditioning/sdxl-negative")[2]["context"].any()


@pytest.mark.parametrize(
    ("label", "numbers"),
    [
        ("sdxl-cropped", (640, 512, 48, 16, 768, 1216)),
        ("sdxl-negative-crop", (320, 384, 8, 24, 1024, 896)),
        ("sdxl-refiner-cropped", (640, 512, 48, 16, 6.0)),
    ],
)
def test_conditioning_of_sdxl_with_a_crop(label, numbers):
    found = _truth(f"conditioning/{label}")[2]["y"][1, 10:].reshape(len(numbers), 2, 128)
    angles = np.array(numbers)[:, None] * 10000 ** (-np.arange(128) / 128)
    np.testing.assert_allclose(found, np.stack([np.cos(angles), np.sin(angles)], axis=1), rtol=1e-9, atol=1e-9)


def test_conditioning_of_other_families():
    t, _, found = _truth("conditioning/sd3")
    np.testing.assert_array_equal(found["context"][:, :5, :16], np.dstack([t["clip_hidden"], t["clip_g_hidden"]]))
    np.testing.assert_array_equal(found["context"][:, 5:], t["t5_hidden"])
    assert not found["context"][:, :5, 16:].any()
    np.testing.assert_array_equal(found["y"], np.hstack([t["clip_pooled"], t["clip_g_pooled"]]))
    t, _, found = _truth("conditioning/chroma")
    assert t["t5_mask"].sum(axis=1).tolist() == [9, 5] and found["mask"].sum(axis=1).tolist() == [9, 6]
    t, _, found = _truth("conditioning/zimage")
    assert found["mask"].sum(axis=1).tolist() == [9, 5] and not found["context"][1, 5:].any()
    t, _, found = _truth("conditioning/wan")
    assert 0 < t["t5_mask"].sum() < t["t5_mask"].size
    np.testing.assert_array_equal(found["context"], t["t5_hidden"] * t["t5_mask"][..., None])
    for label, tokens in (("sd1", "image"), ("sd1-negative-image", "image_of_zeros")):
        t, _, found = _truth(f"conditioning/{label}")
        np.testing.assert_array_equal(found["context"], np.concatenate([t["clip_hidden"], t[tokens]], axis=1))


def test_emphasis():
    below = [f"{engine}-below-0" for engine in ("sdcpp", "a1111", "comfyui")]
    for label in ("sdcpp", "a1111", "comfyui", "diffusers", *below):
        t, p, found = _truth(f"emphasis/{label}")
        engine = p["engine"]
        for hidden, empty, got in zip(t["hidden"], t["empty"], found["hidden"], strict=True):
            rows = [h * w for h, w in zip(hidden, p["weights"], strict=True)]
            want = {
                "diffusers": hidden,
                "comfyui": [e + w * (h - e) for h, e, w in zip(hidden, empty, p["weights"], strict=True)],
            }.get(engine, np.array(rows) * (hidden.sum() / np.array(rows).sum()))
            np.testing.assert_allclose(got, want, rtol=1e-9)


def test_layers_of_clip():
    want = {
        "sdcpp-sd1": [1, 2, 1, 1],
        "sdcpp-sdxl": [1, 2, 2, 3],
        "a1111-sdxl": [2, 2, 2, 4],
        "comfyui-sd1": [1, 2, 1, 1],
        "diffusers-sdxl": [2, 3, 4, 2],
    }
    for label, layers in want.items():
        assert _truth(f"clip_layer/{label}")[2]["layers"].tolist() == layers


@pytest.mark.parametrize(
    ("label", "kind", "engine"),
    [
        *((f"{kind}-{engine}", kind, engine) for kind in ("inpaint", "fill") for engine in ("sdcpp", "diffusers")),
        ("inpaint-grey", "inpaint", "sdcpp"),
    ],
)
def test_inpainting(label, kind, engine):
    t, _, found = _truth(f"inpaint/{label}")
    mask = t["mask"][0, 0] >= 0.5
    assert 3 < mask.sum() < (150 if "grey" in label else 30)
    picture = np.where(mask, 0.0, 2 * t["picture"] - 1)
    np.testing.assert_allclose(found["shown"], picture, atol=1e-15)
    squares = [[np.s_[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for j in range(16)] for i in range(12)]
    of = lambda array: np.array([[array[place].mean() / 4 for place in row] for row in squares])
    latent = np.array([of(channel) for channel in picture[0]])
    some = [[mask[place].any() if engine == "sdcpp" else mask[place][0, 0] for place in row] for row in squares]
    pixels = [[mask[i::4, j::4] for j in range(4)] for i in range(4)]
    own = [np.array(some)] if kind == "inpaint" else [one for row in pixels for one in row]
    for name, z in (("cond", latent), ("uncond", latent if engine == "diffusers" else 0 * latent)):
        want = np.array([*own, *z] if kind == "inpaint" else [*z, *own])
        np.testing.assert_allclose(found[name][0], want, atol=1e-14)
    near = np.array(
        [[np.array(some)[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2].any() for j in range(16)] for i in range(12)]
    )
    np.testing.assert_array_equal(found["latent_mask"][0, 0], near)
    whole = np.array([of(channel) for channel in 2 * t["picture"][0] - 1])
    np.testing.assert_allclose(found["kept"][0], np.where(near, t["denoised"][0], whole), atol=1e-14)


@pytest.mark.parametrize(
    ("label", "rows", "columns"),
    [
        # Whole tokens of the middle; of the drawn size's pixels, by the nearest; mirrored on both sides.
        ("flux2-dev-diffusers", range(2, 50), range(3, 83)),
        ("flux2-dev-sdcpp", [i * 52 // 64 for i in range(64)], [j * 87 // 96 for j in range(96)]),
        (
            "flux3-diffusers",
            [*range(6, 0, -1), *range(52), *range(50, 44, -1)],
            [*range(4, 0, -1), *range(87), *range(85, 80, -1)],
        ),
    ],
)
def test_pictures_to_edit(label, rows, columns):
    t, _, found = _truth(f"reference/{label}")
    np.testing.assert_array_equal(found["shown"], t["picture"][:, :, [*rows]][:, :, :, [*columns]])


# --- pixels, steps, prompts that change -------------------------------------------------------------------------


@pytest.mark.parametrize(("label", "blocks"), [("vae", 1), ("unit", 1), ("esrgan-x2", 2)])
def test_pixels(label, blocks):
    t, _, found = _truth(f"pixels/{label}")
    for n, colour, i, j in np.ndindex(2, 3, 6, 10):
        unit = t["bytes"][n, i, j, colour] / 255
        channel = (colour * blocks + i % blocks) * blocks + j % blocks
        shown = found["shown"][n, channel, i // blocks, j // blocks]
        assert shown == pytest.approx(2 * unit - 1 if label == "vae" else unit, abs=1e-15)
        answer = t["answer"][n, colour, i, j]
        unit = (answer + 1) / 2 if label == "vae" else answer
        # No answer lies at a half, where engines might differ.
        assert abs(255 * unit % 1 - 0.5) > 1e-4
        assert found["bytes"][n, i, j, colour] == min(max(round(float(255 * unit)), 0), 255)
    assert found["bytes"].min() == 0 and found["bytes"].max() == 255


def test_steps():
    _, _, found = _truth("steps/trailing-n6")
    assert found["timesteps"].tolist() == naive_sigmas.trailing_timesteps(6)
    assert found["previous"].tolist() == [*naive_sigmas.trailing_timesteps(6)[1:], -1]
    for t, before, kept, left, deviation, around in zip(*found.values(), strict=True):
        a, b = _KEPT[int(t)], _KEPT[int(before)] if before >= 0 else 1.0
        assert (kept, left) == pytest.approx((a, b))
        assert deviation == pytest.approx(0.7 * math.sqrt((1 - b) / (1 - a) * (1 - a / b)), abs=1e-12)
        assert around == pytest.approx(_LEVELS[int(before)] if before >= 0 else 0)
    _, _, found = _truth("steps/learned-n6")
    for kept, left, deviation in zip(found["kept"], found["kept_before"], found["deviation"], strict=True):
        least, most = max((1 - left) / (1 - kept) * (1 - kept / left), 1e-20), 1 - kept / left
        assert deviation**2 == pytest.approx(most**0.3 * least**0.7)


def test_prompts_switch_behind_a_step():
    second = {
        "fraction-n7": [[0]] * 3 + [[1]] * 4,
        "fraction-n7-two-calls": [[0, 0]] * 2 + [[0, 1]] * 4 + [[1, 1]] * 7,
        "steps-n9-two-calls": [[0, 0]] * 6 + [[1, 0]] * 8 + [[1, 1]] * 3,
    }
    for label, want in second.items():
        assert _truth(f"prompt_switch/{label}")[2]["second"].tolist() == want
