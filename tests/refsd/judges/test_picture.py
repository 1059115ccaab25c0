"""Whole pictures as a kind of case, on a small model."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.judge import Mutant, Standard
from refsd.golden.search_cuts import noted_cuts
from refsd.golden.verdict import judge
from refsd.judges.picture import MUTANTS, PictureJudge, settings_of
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.weights import recipes

TINY = ModelRecipe("sd15", "f16", tiny=True)
PARAMS = {"prompt": "a cat", "width": 64, "height": 64, "steps": 1, "cfg_scale": 1.0, "sampler": "euler"}
PARAMS |= {"schedule": "discrete", "rng": "cuda", "seed": 42}


@pytest.fixture(scope="module")
def standard(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    recipes.make(TINY, path)
    kind, case = PictureJudge(lambda model, layout: path), Case("p", "picture", {}, PARAMS, TINY)
    truth, honest = (kind.answer(case, {}, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    return kind, Standard(case, {}, truth, honest, FLOAT32)


def test_bytes_rounded_or_cut_off_conform(standard):
    kind, of = standard
    truth = of.truth["pixels"]
    assert truth.shape == (64, 64, 3) and (truth % 1 != 0).any() and (truth >= 0).all() and (truth <= 255).all()
    for found in (of.honest["pixels"], np.floor(truth + 0.5), np.minimum(np.floor(truth) + 0.5, 255)):
        assert judge(kind.measure(of, {"pixels": found})).passed
    # Cut off, and taken for rounded.
    assert not judge(kind.measure(of, {"pixels": np.floor(truth)})).passed


def test_one_level_of_255_is_too_much(standard):
    kind, of = standard
    wrong = np.floor(of.truth["pixels"] + 0.5)
    wrong[3, 4, 1] += 1 if wrong[3, 4, 1] > of.truth["pixels"][3, 4, 1] else -1
    judged = judge(kind.measure(of, {"pixels": wrong}))
    assert not judged.passed and "element [3, 4, 1]" in judged.reason
    assert not judge(kind.measure(of, {"pixels": of.honest["pixels"][:32]})).passed


def test_a_known_bug_is_named(standard, monkeypatch):
    kind, of = standard
    mutant = Mutant("seed 0", {"seed": 0})
    monkeypatch.setattr("refsd.judges.picture.MUTANTS", (mutant,))
    wrong = kind.wrong_answer(of.case, {}, mutant)
    assert not judge(kind.measure(of, wrong)).passed
    assert kind.explain(of, {"pixels": np.floor(wrong["pixels"] + 0.5)}).causes == ["seed 0"]
    assert kind.explain(of, {"pixels": of.honest["pixels"][..., ::-1]}).causes == ["blue before red"]
    assert kind.explain(of, {"pixels": of.honest["pixels"] * 0}).causes == []


def test_bugs_are_tried_by_wall_time(standard, monkeypatch):
    """CPU time adds up over the threads that draw."""
    kind, of = standard
    monkeypatch.setattr("refsd.judges.picture.MUTANTS", (Mutant("seed 0", {"seed": 0}),))
    monkeypatch.setattr("refsd.judges.picture._SEARCH", 0.0)
    now = iter([5.0, 6.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    wrong = kind.wrong_answer(of.case, {}, Mutant("", {"seed": 0}))
    with noted_cuts() as cuts:
        assert kind.explain(of, wrong).causes == [] and cuts == [0.0]
    assert [*now] == []


def test_bugs_differ_from_the_case():
    kind = PictureJudge()
    case = CASES["full/sd15/picture/euler"]
    names = [mutant.name for mutant in kind.mutants(case)]
    assert "the sampler euler" not in names and "the first noise scaled by sigma" not in names
    assert "the sampler heun" in names and len(names) < len(MUTANTS)
    assert kind.refuses(case, FLOAT32) == "no model files"


@pytest.mark.parametrize(
    "params, said",
    [
        ({**PARAMS, "sample": "euler"}, "no setting 'sample', did you mean|no setting 'sample'"),
        ({"steps": 4}, "expected a prompt"),
        ({**PARAMS, "first_noise": "comfy"}, "first_noise 'comfy'"),
    ],
)
def test_settings_that_are_none(params, said):
    with pytest.raises(BadInput, match=said):
        settings_of(params)


def test_the_case_settings_are_read():
    settings, engine = settings_of(CASES["full/sd15/picture/cpu-noise-unit-data"].params)
    assert (settings.rng, settings.sampler, engine) == ("cpu", "dpm++2m", "comfyui")
    assert settings_of(CASES["full/sd15/picture/given-sigmas"].params)[0].sigmas == (14.0, 6.0, 2.0, 0.5, 0.0)
