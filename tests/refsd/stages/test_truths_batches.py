"""What stages of batches, seeds and requests answer, against second opinions written out by hand."""

import itertools
import math

import numpy as np
import pytest
from naive import schedules as naive_schedules

from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.samplers.noise import RNGS
from refsd.stages import STAGES
from refsd.stages.stage import case as asks

_LEVELS = naive_schedules.training_sigmas()


def _truth(name: str):
    """-> the inputs as float64, the parameters, the reference's outputs"""
    op, label = name.rsplit("/", 1)
    case = next(case for case in STAGES[f"stage/{op}"].cases if case.name == f"stage/{op}/{label}")
    inputs, judge = case.realize(), StageJudge()
    if (why := judge.refuses(case, FLOAT64)) is not None:
        pytest.skip(why)  # CLIP's vocabulary comes with a package for Python 3.11 alone
    values = {key: tensor.values().astype(np.float64) for key, tensor in inputs.items()}
    return values, judge.complete(case, inputs), judge.answer(case, inputs, Arithmetic(FLOAT64))


# --- masks -------------------------------------------------------------------------------------------------------


def _masked(engine: str, square: np.ndarray) -> float:
    if engine == "comfyui":
        return square[1:3, 1:3].mean()
    white = square >= 0.5
    return float(white.any() if engine == "sdcpp" else white[0, 0])


@pytest.mark.parametrize("case", STAGES["stage/masked_step"].cases, ids=lambda case: case.name)
def test_a_masked_step(case):
    t, p, found = _truth(case.name.removeprefix("stage/"))
    engine, s, to = p["engine"], p["sigma"], p["sigma_next"]
    kept = lambda sigma: 1 - sigma if p["space"] == "flow" else 1
    masks = set()
    for b, c, i, j in np.ndindex(found["left"].shape):
        mask = t["mask"][b % len(t["mask"]), 0, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
        m, z = _masked(engine, mask), t["latent"][b % len(t["latent"]), c, i, j]
        x, noise, denoised = (t[name][b, c, i, j] for name in ("x", "noise", "denoised"))
        masks.add(m)
        assert found["latent_mask"][b, 0, i, j] == m
        shown = m * x + (1 - m) * (kept(s) * z + s * noise) if engine == "comfyui" else x
        assert found["shown"][b, c, i, j] == pytest.approx(shown, abs=1e-12)
        denoised = denoised if engine == "diffusers" else m * denoised + (1 - m) * z
        assert found["denoised"][b, c, i, j] == pytest.approx(denoised, abs=1e-12)
        left = denoised + to / s * (x - denoised)
        left = m * left + (1 - m) * (kept(to) * z + to * noise) if engine == "diffusers" else left
        assert found["left"][b, c, i, j] == pytest.approx(left, abs=1e-11)
    assert len(masks) > 8 if engine == "comfyui" else masks == {0.0, 1.0}


# --- ControlNets -------------------------------------------------------------------------------------------------

_KEEP = {
    "diffusers-window": [0, 0, 0, 0.7, 0.7, 0.7, 0.7, 0, 0, 0],
    "diffusers-one-picture": [0, 0, 0, 1.25, 1.25, 1.25, 0],
    "diffusers-guess": [0.8, 0.8, 0.8, 0.8, 0.8, 0, 0, 0, 0],
    "a1111-soft": [0, 0, 0, 0.6, 0.6, 0.6, 0.6, 0, 0, 0, 0],
    "comfyui-window": [0, 0, 0.85, 0.85, 0.85, 0, 0, 0],
    "sdcpp": [0.45] * 6,
}


@pytest.mark.parametrize("label", _KEEP)
def test_a_controlnet_in_a_batch(label):
    t, p, found = _truth(f"control/{label}")
    assert found["keep"].tolist() == pytest.approx(_KEEP[label])
    prompts, each, guess = len(t["text"]) // 2, p["each"], p["mode"] == "guess"
    entries = [(half, a, b) for half in (0, 1) for a in range(prompts) for b in range(each)]
    run = [one for one in entries if one[0] == 1 or not guess]
    assert len(found["hint"]) == len(found["text"]) == len(run)
    for k, (half, a, _) in enumerate(run):
        np.testing.assert_array_equal(found["hint"][k], t["hint"][a if len(t["hint"]) > 1 else 0])
        np.testing.assert_array_equal(found["text"][k], t["text"][half * prompts + a])
    for layer, k in np.ndindex(5, len(entries)):
        share = {"guess": 10 ** (layer / 4 - 1), "soft": 0.825 ** (4 - layer)}.get(p["mode"], 1)
        share *= p["strength"] * (entries[k] in run)
        np.testing.assert_allclose(found["added"][layer, k], share * t["residual"][layer, k], rtol=1e-12)


# --- seeds -------------------------------------------------------------------------------------------------------


def _on_the_sphere(share, low, high):
    y = np.empty_like(low)
    for c, j in np.ndindex(low.shape[0], low.shape[2]):
        a, b = low[c, :, j], high[c, :, j]
        w = math.acos(sum(a * b) / math.sqrt(sum(a * a)) / math.sqrt(sum(b * b)))
        y[c, :, j] = (math.sin((1 - share) * w) * a + math.sin(share * w) * b) / math.sin(w)
    return y


def test_variations_of_a_batch():
    _, _, found = _truth("variation/batch")
    for i in range(3):
        low, high = (RNGS["nv"](seed).randn((4, 5, 7)).astype(float) for seed in (11, 1000 + i))
        np.testing.assert_allclose(found["noise"][i], _on_the_sphere(0.3, low, high), rtol=1e-9, atol=1e-9)
        stream = RNGS["nv"](11)
        for later in [stream.randn((4, 5, 7)) for _ in range(3)][1:]:
            assert any(np.array_equal(one[i], later) for one in found["step_noise"])


def test_noise_of_another_size_stands_in_the_middle():
    _, _, found = _truth("variation/resized-up")
    for i in range(2):
        whole, inner = (RNGS["nv"](5 + i).randn(shape) for shape in ((4, 9, 7), (4, 5, 3)))
        whole[:, 2:7, 2:5] = inner
        np.testing.assert_array_equal(found["noise"][i], whole)
    _, _, found = _truth("variation/resized-down")
    low, high = (RNGS["nv"](seed).randn((4, 8, 10)).astype(float) for seed in (5, 9))
    np.testing.assert_allclose(found["noise"][1], _on_the_sphere(0.4, low, high)[:, 2:6, 2:8], rtol=1e-9, atol=1e-9)


def test_a_delta_has_generators_of_its_own():
    _, _, found = _truth("variation/delta")
    stream = RNGS["nv"](22 + 31337)
    np.testing.assert_array_equal(found["step_noise"][:, 1], [stream.randn((4, 5, 7)) for _ in range(2)])


def test_two_noises_are_mixed_on_the_sphere_or_straight():
    for label in ("sphere", "sphere-sdnext", "parallel-a1111", "parallel-sdnext"):
        t, p, found = _truth(f"slerp/{label}")
        for low, step, got in zip(t["low"], t["step"], found["mixed"], strict=True):
            share = {"parallel-a1111": 0.7}.get(label, p["share"])
            straight = low + share * step
            want = straight if "parallel" in label else _on_the_sphere(share, low, low + step)
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


# --- calls, latents, scales ---------------------------------------------------------------------------------------


def test_calls_that_begin_on_the_way():
    between = lambda t: (_LEVELS[math.floor(t)] + _LEVELS[math.ceil(t)]) / 2  # diffusers: halves alone
    levels = [between(999 - 166.5 * i) for i in range(7)]
    _, _, found = _truth("calls/heun-diffusers-n7")
    kept = levels[3:]
    assert found["sigmas"].tolist() == pytest.approx([kept[0], *(s for s in kept[1:] for _ in (0, 1))])
    assert found["begin"].tolist() == pytest.approx([kept[0]])
    levels = [naive_schedules.t_to_sigma(999 - 999 / 7 * i, _LEVELS) for i in range(8)]
    _, _, found = _truth("calls/dpm2-sdcpp-n8")
    kept = levels[2:]
    middles = [math.sqrt(a * b) for a, b in itertools.pairwise(kept)]
    assert found["sigmas"][::2].tolist() == pytest.approx(kept)
    assert found["sigmas"][1::2].tolist() == pytest.approx(middles)
    # ComfyUI's dpm2 takes one step more, int(5 / 0.45) + 1 = 12 of Karras, and leaves out the last level above 0.
    _, _, found = _truth("calls/dpm2-comfyui-n5")
    ramp = np.linspace(_LEVELS[-1] ** (1 / 7), _LEVELS[0] ** (1 / 7), 12) ** 7
    np.testing.assert_allclose(found["sigmas"][::2], ramp[-6:-1], rtol=1e-12)
    _, _, found = _truth("calls/dpmpp2m-sdcpp-n9")
    assert found["order"].tolist() == [1, 2, 2, 2, 2, 2, 1] and len(found["sigmas"]) == 7


def test_latents_with_statistics_of_channels():
    t, _, found = _truth("latents/sdxl-by-channel")
    for n, c, i, j in np.ndindex(found["latent"].shape):
        mean, deviation = t["channel_mean"][c], t["channel_spread"][c]
        logvar = min(t["moments"][n, 4 + c, i, j], 20)
        z = t["moments"][n, c, i, j] + math.exp(logvar / 2) * t["noise"][n, c, i, j]
        assert found["latent"][n, c, i, j] == pytest.approx((z - mean) / deviation * 0.13025, rel=1e-9)
        shown = t["latent"][n, c, i, j] / 0.13025 * deviation + mean
        assert found["shown_latent"][n, c, i, j] == pytest.approx(shown, rel=1e-9)
    t, _, found = _truth("latents/flux2")
    for n, c, i, j in np.ndindex(found["latent"].shape):
        z = t["moments"][n, c // 4, 2 * i + c % 4 // 2, 2 * j + c % 2]
        root = math.sqrt(t["channel_spread"][c] + 1e-4)
        assert found["latent"][n, c, i, j] == pytest.approx((z - t["channel_mean"][c]) / root, rel=1e-9)
        shown = found["shown_latent"][n, c // 4, 2 * i + c % 4 // 2, 2 * j + c % 2]
        assert shown == pytest.approx(t["latent"][n, c, i, j] * root + t["channel_mean"][c], rel=1e-9)


@pytest.mark.parametrize(
    ("label", "rows", "columns"),
    [("rows", 1, 24), ("inputs", 24, 1), ("blocks", 16, 16), ("blocks-cut", 16, 16), ("blocks-of-rows", 1, 16)],
)
def test_scales_of_rows_columns_and_blocks(label, rows, columns):
    t, p, found = _truth(f"weights/fp8-scaled-{label}")
    stored = t["data"].reshape(p["layer"])
    for i, j in np.ndindex(stored.shape):
        assert found["weight"][i, j] == stored[i, j] * t["scale"][i // rows, j // columns]


def test_positions_of_words_and_patches():
    word, patch = lambda n: [n, n, n], lambda n, row, column: [n, n + row, n + column]
    first, second = ([patch(n, r, c) for r in range(R) for c in range(C)] for n, R, C in ((1, 3, 2), (5, 2, 5)))
    found = _truth("positions/images")[2]["positions"]
    assert found.tolist() == [[word(0), *first, word(4), *second, word(10), word(11), word(12)]]
    first, second = ([patch(2, r, c) for r in range(R) for c in range(2)] for R in (2, 1))
    found = _truth("positions/padded-left")[2]["positions"].tolist()
    assert found[0] == [word(0), word(1), *first, *map(word, (4, 5, 6))]
    assert found[1] == [*map(word, (0, 0, 0, 0, 0, 1)), *second, word(4)]


def test_noise_of_a_step():
    for label in ("ancestral", "ancestral-eta-2"):
        _, p, found = _truth(f"step_noise/{label}")
        levels = [*naive_schedules.karras(p["steps"], _LEVELS[0], _LEVELS[-1])]
        for i, (sigma, to) in enumerate(itertools.pairwise(levels)):
            up = min(to, p["eta"] * math.sqrt(to**2 * (sigma**2 - to**2)) / sigma)
            assert found["start"][i] == pytest.approx(sigma)
            assert found["deviation"][i] == pytest.approx(up * p["s_noise"], abs=1e-12)
            assert found["end"][i] == pytest.approx(math.sqrt(to**2 - up**2), abs=1e-7)
    _, _, found = _truth("step_noise/churn")
    levels = naive_schedules.karras(9, _LEVELS[0], _LEVELS[-1])
    some = 0
    for i, sigma in enumerate(levels[:-1]):
        gamma = 2.5 / 9 if 0.3 <= sigma <= 8 else 0
        some += gamma > 0
        assert found["start"][i] == pytest.approx(sigma * (1 + gamma))
        deviation = 1.007 * sigma * math.sqrt((1 + gamma) ** 2 - 1)
        assert found["deviation"][i] == pytest.approx(deviation, abs=1e-12)
    assert 2 < some < 8
    _, _, found = _truth("step_noise/churn-limited")
    assert found["start"][0] == pytest.approx(_LEVELS[-1] * math.sqrt(2))


# --- learned embeddings -------------------------------------------------------------------------------------------


def test_learned_embeddings_in_a_prompt():
    t, _, found = _truth("textual_inversion/sdcpp")
    ids = found["ids"][0].tolist()
    # style, a cat (in Style:1.3) on a mat
    assert ids[:5] == [49406, -1, -1, -1, 267] and ids[5:8] == [320, 2368, 530]
    assert ids[8:11] == [-1, -1, -1] and ids[11] == 525
    np.testing.assert_array_equal(found["clip"][0, 1:4], t["style.pt:string_to_param.*"])
    np.testing.assert_array_equal(found["clip"][0, 8:11], t["style.pt:string_to_param.*"])
    assert not found["clip"][0, [0, 4, 5, 11, 76]].any()
    np.testing.assert_allclose(found["weights"][0, 7:12], [1.3, 1.3, 1.3, 1.3, 1], rtol=1e-6)
    _, _, found = _truth("textual_inversion/a1111")
    # style-2 a cat, (style:1.2), lifestyle [style-2]: "lifestyle" is a token of its own
    marks = "".join("x" if i == -1 else "." for i in found["ids"][0][:20])
    assert marks == ".xx...xxx..xx......."
    t, _, found = _truth("textual_inversion/sdcpp-sdxl")
    for encoder, width in (("clip", 8), ("clip_g", 12)):
        assert found[encoder].shape == (1, 77, width)
        name = f"bad hands.safetensors:clip_{'l' if encoder == 'clip' else 'g'}"
        where = np.flatnonzero(found["ids"][0] == -1)
        np.testing.assert_array_equal(found[encoder][0, where], np.concatenate([t[name], t[name]]))
    t, _, found = _truth("textual_inversion/diffusers")
    where = np.flatnonzero(found["ids"][0] == -1)
    learned = [t["learned.bin:<cat-toy>"], *t["more.bin:zorb"]]
    np.testing.assert_array_equal(found["clip"][0, where], learned)
    t, _, found = _truth("textual_inversion/comfyui")
    assert (found["ids"] == -1).sum() == 5 and 1844 in found["ids"]  # the last "style" is a word


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STAGES["stage/requests"].cases, ids=lambda case: case.name)
def test_each_request_is_answered_as_if_alone(case):
    t, p, found = _truth(case.name.removeprefix("stage/"))
    for i, request in enumerate(p["requests"], 1):
        weight = t["weight"].copy()
        for name, strength in request["adapters"].items():
            for o, k, r in np.ndindex(12, 20, 3):
                weight[o, k] += strength * t[f"{name}_up"][o, r] * t[f"{name}_down"][r, k]
        np.testing.assert_allclose(found[f"weight_{i}"], weight, rtol=1e-10, atol=1e-12)
        height, width = request["size"]
        stream = RNGS[p["rng"]](request["seed"])
        for name in ("noise", "step_noise"):
            np.testing.assert_array_equal(found[f"{name}_{i}"], stream.randn((1, 4, height // 8, width // 8)))
        want = [[row, column] for row in range(height // 16) for column in range(width // 16)]
        assert found[f"positions_{i}"].tolist() == want
        assert found[f"mask_{i}"].tolist() == [[int(k < request["tokens"]) for k in range(16)]]
        assert found[f"steps_{i}"].tolist() == list(range(request["steps"]))


_CALLS = {"engine": "diffusers", "solver": "heun", "spacing": "trailing", "steps": 5, "strength": 1.0}


def test_what_no_stage_of_these_knows_is_refused():
    for op, params, match in (
        ("variation", {"shape": [1, 4, 2, 2], "seed": 1, "rng": "mine"}, "rng 'mine'"),
        ("calls", {**_CALLS, "strength": 0.1}, "no step is left"),
    ):
        case = asks(op, "wrong", **params)
        with pytest.raises(BadInput, match=match):
            StageJudge().answer(case, {}, Arithmetic(FLOAT64))
