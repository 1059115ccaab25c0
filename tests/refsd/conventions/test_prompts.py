"""Every line of every prompt card; Forge's, ComfyUI's and A1111's against themselves.

See tests/fixtures/record_prompts.py and record_a1111.py.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from refsd.conventions import CARDS, PROMPT_CARDS
from refsd.models.vae.latents import LATENT_SCALES
from refsd.samplers.levels import SD_LEVELS
from refsd.tokenizers.clip_bpe import BOS, EOS
from refsd.tokenizers.comfyui_prompt import parse_weights
from refsd.tokenizers.emphasis import from_the_empty_prompt, mean_kept, multiplied

FIXTURES = Path(__file__).parents[2] / "fixtures"
sys.path.insert(0, str(FIXTURES))
from prompt_words import Words  # noqa: E402

RECORD = json.loads((FIXTURES / "prompts.json").read_text())
A1111 = json.loads((FIXTURES / "a1111.json").read_text())
for kept in ("parts", "chunks"):
    for prompt, theirs in A1111[kept].items():
        RECORD[kept][prompt]["a1111"] = theirs
SDCPP = json.loads((FIXTURES / "sdcpp_prompts.json").read_text())["parts"]
WORDS = Words()
LINE = "a (red:1.3) cat on [mats]"


@pytest.mark.parametrize("prompt", RECORD["parts"])
@pytest.mark.parametrize("engine", ["forge", "a1111", "comfyui"])
def test_parts(engine, prompt):
    recorded = RECORD["parts"][prompt][engine]
    theirs = [(None if part == ["BREAK", -1] else part[0], part[1]) for part in recorded if part[0]]
    ours = [
        (None, -1) if part is None else part
        for part in PROMPT_CARDS[engine].parse(prompt)
        if part is None or part[0]
    ]
    assert [text for text, _ in ours] == [text for text, _ in theirs]
    np.testing.assert_allclose([w for _, w in ours], [w for _, w in theirs], rtol=1e-6)


@pytest.mark.parametrize("prompt", RECORD["chunks"])
@pytest.mark.parametrize("engine", ["forge", "a1111", "comfyui"])
def test_chunks(engine, prompt):
    card = PROMPT_CARDS[engine]
    theirs = RECORD["chunks"][prompt][engine]
    ours = card.chunk(WORDS, card.parse(prompt))
    assert len(ours) == len(theirs)
    for (ids, weights), (said, other) in zip(ours, theirs, strict=True):
        assert ids.tolist() == [BOS, *said, *[EOS] * (76 - len(said))]
        expected = np.ones(77)
        for place, weight in other.items():
            expected[int(place)] = weight
        np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("prompt", SDCPP)
def test_sdcpps_parts(prompt):
    """Texts and weights as its own function gave them: tests/fixtures/record_sdcpp_prompts.py."""
    parts = [("BREAK", -1.0) if part is None else part for part in PROMPT_CARDS["sdcpp"].parse(prompt)]
    assert parts == [(text, float(np.float32(weight))) for text, weight in SDCPP[prompt]]


def test_sdcpp_would_end_at_a_number_that_is_none():
    assert PROMPT_CARDS["sdcpp"].parse("(x:.)") == [("x:.)", float(np.float32(1.1)))]


def test_sdcpp_cuts_where_75_are_full():
    card = PROMPT_CARDS["sdcpp"]
    first, second = card.chunk(WORDS, card.parse("one, " + "ab " * 74 + "(cd:1.2)"))
    assert (
        first.ids[75] != EOS
        and second.ids[2] != EOS
        and second.ids[3] == EOS
        and second.weights[2] == np.float32(1.2)
    )


def test_diffusers_reads_75_tokens_and_no_brackets():
    card = PROMPT_CARDS["diffusers"]
    (only,) = card.chunk(WORDS, card.parse("(a:1.3) BREAK " * 20))
    assert (only.weights == 1).all() and (only.ids[1:76] != EOS).all() and only.ids[76] == EOS
    assert card.weigh is None


def hidden(ids):
    places, k = np.arange(77), np.arange(1, 4)
    return np.sin(np.outer(ids.astype(float), k)) + 0.1 * np.cos(np.outer(places, k)) + 0.2


RULES = {"forge": "Original", "a1111": "Original", "sdcpp": "Original", "comfyui": "comfyui"}


@pytest.mark.parametrize("engine", RULES)
def test_weights(engine):
    card = PROMPT_CARDS[engine]
    assert card.weigh is (from_the_empty_prompt if engine == "comfyui" else mean_kept)
    ((ids, weights),) = card.chunk(WORDS, card.parse(LINE))
    ((empty, _),) = card.chunk(WORDS, card.parse(""))
    others = [hidden(empty)] if engine == "comfyui" else []
    y = card.weigh(hidden(ids), weights, *others)
    weighed = A1111["weighed"] if engine == "a1111" else RECORD["weighed"]
    np.testing.assert_allclose(y[:9].ravel(), weighed[RULES[engine]], rtol=1e-6)


@pytest.mark.parametrize(("engine", "record"), [("forge", RECORD), ("a1111", A1111)])
def test_weights_without_norm(engine, record):
    card = PROMPT_CARDS[engine]
    ((ids, weights),) = card.chunk(WORDS, card.parse(LINE))
    np.testing.assert_allclose(
        multiplied(hidden(ids), weights)[:9].ravel(), record["weighed"]["No norm"], rtol=1e-6
    )


def test_a_mean_of_0_is_left_alone():
    x = np.array([[1.0, -1.0], [2.0, 2.0]])
    np.testing.assert_array_equal(mean_kept(x, np.array([1.0, 0.0])), [[1, -1], [0, 0]])


LAYERS = {
    "sdcpp": {(None, 1): 1, (None, 2): 2, (-1, 2): 2, (1, 2): 1, (2, 1): 2},
    "a1111": {(None, 1): 1, (None, 2): 2, (1, 2): 2, (2, 1): 2, (3, 2): 3},
    "forge": {(None, 1): 1, (None, 2): 2, (1, 2): 2, (2, 1): 2, (3, 2): 3},
    "comfyui": {(None, 1): 1, (None, 2): 2, (-1, 2): 1, (-2, 1): 2},
    "diffusers": {(None, 1): 1, (None, 2): 2, (1, 2): 3, (1, 1): 2},
}


@pytest.mark.parametrize("engine", PROMPT_CARDS)
def test_clip_skip(engine):
    card = PROMPT_CARDS[engine]
    assert {told: card.layer(*told) for told in LAYERS[engine]} == LAYERS[engine]
    assert card.layer(None, 1) == CARDS[engine].clip_skip and card.source


@pytest.mark.parametrize("family", RECORD["latent"])
def test_latent_scale(family):
    scale = LATENT_SCALES[family]
    assert [scale.factor, scale.shift] == RECORD["latent"][family]


@pytest.mark.parametrize("name", RECORD["schedules"])
def test_comfyuis_schedules(name):
    """Its levels are float32, and so are its sums."""
    schedule, steps = name.split()
    ours = CARDS["comfyui"].sigmas(int(steps), schedule, "euler", SD_LEVELS)
    np.testing.assert_allclose(ours, RECORD["schedules"][name], rtol=2e-5, atol=1e-6)


def test_comfyuis_timesteps_and_first_latents():
    card = CARDS["comfyui"]
    sigmas, timesteps = RECORD["timesteps"]
    assert [card.levels(SD_LEVELS.sigmas).to_t(sigma) for sigma in sigmas] == timesteps
    top = float(SD_LEVELS.sigmas[-1])
    for sigma, times in RECORD["first"]:
        assert abs(card.first(sigma, top) / times - 1) < 1e-6


@pytest.mark.parametrize("name", RECORD["truncated"])
def test_comfyuis_truncation(name):
    sampler, denoise = name.split()
    ours = CARDS["comfyui"].sigmas(6, "karras", sampler.replace("dpm_2", "dpm2"), SD_LEVELS, float(denoise))
    np.testing.assert_allclose(ours, RECORD["truncated"][name], rtol=2e-5)


def test_comfyui_prompts_by_hand():
    said = parse_weights("a (red) ((cat:1.3) dog)")
    assert [text for text, _ in said] == ["a ", "red", " ", "cat", " dog"]
    np.testing.assert_allclose([w for _, w in said], [1, 1.1, 1, 1.3, 1.1])


def lengths(engine, prompt):
    card = PROMPT_CARDS[engine]
    return [int((ids != EOS).sum()) - 1 for ids, _ in card.chunk(WORDS, card.parse(prompt))]


def test_a_comma_20_back_is_gone_back_to_and_one_21_back_is_not():
    assert lengths("a1111", "ab " * 55 + ", " + "ab " * 25) == [56, 25]
    assert lengths("a1111", "ab " * 54 + ", " + "ab " * 25) == [75, 5]


def test_a_part_of_7_tokens_stays_whole_and_one_of_8_is_torn():
    assert lengths("comfyui", "(" + "ab " * 70 + ":1.2)" + "cd " * 7) == [70, 7]
    assert lengths("comfyui", "(" + "ab " * 70 + ":1.2)" + "cd " * 8) == [75, 3]
