"""Stages as cases: each kills a known bug, each known bug is killed, honest engines pass, the place is named."""

import functools

import numpy as np
import pytest

from refsd.golden.judge import Standard
from refsd.golden.mutants import try_all
from refsd.golden.verdict import judge
from refsd.goldens.making import answerable
from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, TORCH_F16
from refsd.stages import STAGES

JUDGE = StageJudge()
CASES = {case.name: case for stage in STAGES.values() for case in stage.cases}


@functools.cache
def _standard(name: str) -> Standard:
    case = CASES[name]
    if (why := JUDGE.refuses(case, FLOAT32)) is not None:
        pytest.skip(why)  # CLIP's vocabulary comes with a package for Python 3.11 alone
    inputs = case.realize()
    truth, honest = (JUDGE.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    return Standard(case, inputs, truth, honest, FLOAT32)


def _judged(name: str, found):
    return judge(JUDGE.measure(_standard(name), found))


def _mutant(name: str, bug: str):
    case = CASES[name]
    return next(mutant for mutant in JUDGE.mutants(case) if mutant.name == bug)


def _wrong(name: str, bug: str):
    found = JUDGE.wrong_answer(CASES[name], _standard(name).inputs, _mutant(name, bug))
    assert found is not None
    return found


@functools.cache
def _trials(op: str):
    return [trial for case in STAGES[op].cases for trial in try_all(JUDGE, case)]


@pytest.mark.parametrize("op", STAGES)
def test_every_case_fails_a_mutant_and_every_mutant_fails_a_case(op):
    if (why := JUDGE.refuses(STAGES[op].cases[0], FLOAT32)) is not None:
        pytest.skip(why)  # CLIP's vocabulary comes with a package for Python 3.11 alone
    trials = _trials(op)
    for case in STAGES[op].cases:
        assert any(t.killed for t in trials if t.case.name == case.name), f"{case.name} fails no known bug"
    for mutant in STAGES[op].mutants:
        assert any(t.killed for t in trials if t.mutant == mutant.name), f"{op}: {mutant.name} gets through"


@pytest.mark.parametrize("name", CASES)
def test_an_honest_float32_run_passes(name):
    standard = _standard(name)
    judged = _judged(name, standard.honest)
    assert judged.passed, judged.reason
    assert list(standard.truth) == list(standard.honest)
    assert all(y.dtype == np.float64 for y in standard.truth.values())


@pytest.mark.parametrize(
    ("name", "bug", "says"),
    [
        ("stage/clip_tokens/diffusers-special", "special tokens are text", "ids: token 1 is 27, truth 49406"),
        (
            "stage/clip_tokens/a1111-long",
            "chunks wherever 75 are full",
            "ids: chunk 0, token ",
        ),
        ("stage/sigmas/flow-discrete-n6", "ends at the lowest sigma, not 0", "sigmas: step 6 is 0.00299"),
        (
            "stage/guidance/cfg",
            "every item of the batch is the first",
            "guided: item 1, channel 0, row 0",
        ),
    ],
)
def test_the_first_wrong_item_is_the_place(name, bug, says):
    assert _judged(name, _wrong(name, bug)).reason.startswith(says)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("stage/clip_tokens/sdcpp-break", "BREAK is a word"),
        ("stage/clip_tokens/diffusers-foreign", "words end at every character outside ASCII"),
        ("stage/sigmas/flow-linspace-n7", "an unshifted linspace is shifted"),
        ("stage/sigmas/flow-below-one-n6", "the list for one step more, without its last level"),
        ("stage/sigmas/sd-karras-n5", "the list for one step more, without its first level"),
        ("stage/sigmas/sd-karras-n5", "nearest trained timestep, not a real one"),
        ("stage/prediction/eps-high", "x not scaled for the ControlNet"),
        ("stage/noising/flow-sdcpp", "noise as of a variance-exploding model"),
        ("stage/latents/flux", "scale and shift of sd3"),
        ("stage/latents/sd1", "scale and shift of sd3"),
        ("stage/tiles/diffusers-small-last", "a small last tile under a whole one's ramp"),
        ("stage/tiles/diffusers-odd", "only the last row of tiles decoded"),
        ("stage/tiles/sdcpp-wraps", "the last column of tiles not decoded"),
        ("stage/language_tokens/zimage-sdcpp-empty", "empty texts encoded"),
        ("stage/adapter/dora", "DoRA's strength on the delta, before the lengths"),
        ("stage/adapter/lora-fused", "alpha over the first part's rank"),
        ("stage/adapter/loha", "the first factor's a in the second"),
        ("stage/weights/fp8-fused-own", "joined parts: the first one's scale for all"),
        ("stage/prediction/flow-reference", "the picture to edit is denoised, too"),
        ("stage/prediction/flow-reference", "the answer for the picture to edit is read"),
        ("stage/sigmas/flow-uniform-n8", "timesteps of the levels before the shift"),
        ("stage/adapter/lora-peft-fused", "parts sought behind as many rows of the first as the layer has inputs"),
        ("stage/adapter/lora-peft-fused", "alpha over the file's rank, not over the module's own"),
        ("stage/adapter/lora-two-streams", "modules of the other stream or transformer are merged, too"),
        ("stage/adapter/lora-two-streams", "modules of the other stream in place of this one's"),
        ("stage/adapter/lora-other-transformer", "modules of the other stream or transformer are merged, too"),
        ("stage/weights/square-f32", "a square's rows and columns swapped"),
        ("stage/weights/table-with-added", "added rows as float16's bytes"),
        ("stage/conditioning/sdxl", "height and width swapped"),
        ("stage/conditioning/sd1-negative-image", "no tokens of the image without the prompt"),
        ("stage/clip_layer/sdcpp-sd1", "clip skip stays for the next request"),
        ("stage/inpaint/inpaint-diffusers", "black under the mask"),
        ("stage/inpaint/inpaint-sdcpp", "nothing kept"),
        ("stage/reference/flux2-dev-sdcpp", "height and width of the new size exchanged"),
        ("stage/reference/flux3-diffusers", "resized to whole tokens, neither cut nor continued"),
        ("stage/inpaint/inpaint-grey", "grey is not made black or white"),
        ("stage/inpaint/inpaint-grey", "all but black is white"),
        ("stage/inpaint/inpaint-sdcpp", "mask of a latent half the size, its corner taken"),
        ("stage/language_tokens/zimage-lines", "the text cut at blanks alone, not into words"),
        ("stage/guidance/zimage", "scale as usual, not Z-Image's"),
        ("stage/guidance/pix2pix", "scales of text and image swapped"),
    ],
)
def test_a_known_bug_is_named(name, bug):
    assert JUDGE.explain(_standard(name), _wrong(name, bug)).causes[0] == bug


def test_numbers_of_a_bug_that_nobody_knows_are_explained_by_none():
    name = "stage/guidance/cfg"
    honest = _standard(name).honest["guided"]
    found = {
        "guided": honest + np.float32(0.3) * np.sin(np.arange(honest.size, dtype=np.float32)).reshape(honest.shape)
    }
    assert not _judged(name, found).passed
    assert JUDGE.explain(_standard(name), found).causes == []


def test_an_output_that_is_missing_or_of_another_shape_fails():
    name = "stage/clip_tokens/diffusers-empty"
    honest = _standard(name).honest
    assert _judged(name, {"ids": honest["ids"]}).reason == "output 'weights' is missing"
    longer = {**honest, "ids": np.append(honest["ids"], [[7.0]], axis=1)}
    assert _judged(name, longer).reason == "output 'ids' has shape [1, 78], expected [1, 77]"


def test_what_does_not_fit_is_said():
    stage = STAGES["stage/guidance"]
    with pytest.raises(BadInput, match="inputs"):
        stage.complete({"cond": 0}, {})
    with pytest.raises(BadInput, match="missing params form, scale"):
        stage.complete({"cond": 0, "uncond": 0}, {})
    with pytest.raises(BadInput, match="params"):
        stage.complete({"cond": 0, "uncond": 0}, {"strength": 1})


def test_cases_that_the_reference_cannot_answer_here_are_left_out_with_the_reason(monkeypatch, capsys):
    chosen = [CASES["stage/sigmas/sd-n1"], CASES["stage/clip_tokens/diffusers-empty"]]
    assert answerable(chosen) == chosen and not capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert answerable(chosen) == chosen[:1]
    what = "1 case left out: CLIP's vocabulary is not installed: pip install open_clip_torch\n"
    assert capsys.readouterr().err == what


def test_stages_are_answered_where_storage_is_float32():
    case = CASES["stage/sigmas/sd-n1"]
    assert JUDGE.refuses(case, GGML_CPU) is None
    assert JUDGE.refuses(case, TORCH_F16) == "no stage is computed in float16"
