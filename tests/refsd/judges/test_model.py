"""Every family's cases in the reference: float32 stands within its bound of float64, and bugs do not."""

import json
from pathlib import Path

import numpy as np
import pytest

from refsd.cases import CASES, select
from refsd.causes.model.mutants import MUTANTS, Change
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.judge import Mutant, Standard
from refsd.golden.mutants import try_all
from refsd.golden.search_cuts import noted_cuts
from refsd.judges import judges
from refsd.judges import model as model_judge
from refsd.judges.model import ModelJudge
from refsd.models.catalogue import pages
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_BF16
from refsd.weights import recipes

pytestmark = pytest.mark.jitted

# Case -> the bugs that it kills, drawn by record_model_bugs.py.
KILLED = json.loads((Path(__file__).parents[2] / "fixtures" / "model_bugs.json").read_text())
# The outputs stay within what float32 allows; taps show them (tests/refsd/causes/model/test_orders.py).
AT_TAPS_ALONE = {"LTX-2's frequencies are powers in float32", "M-RoPE's interleaved sections do not end"}

TINY = [case for page in pages("cases") for case in page.CASES]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        path = folder / f"{model.family}-{model.type}-{model.quiet}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    return give


class Broken(Reference):
    """The reference in float32, with a bug."""

    def __init__(self, mutant, model_files):
        super().__init__(FLOAT32, model_files=model_files)
        self.mutant = mutant

    def run(self, case, inputs):
        y = self.judges.of(case).wrong_answer(case, inputs, self.mutant)
        assert y is not None
        return dict(y)


@pytest.mark.parametrize("name", [case.name for case in TINY])
def test_float32_is_within_its_bound(model_files, name):
    truth, engine = (Reference(numerics, model_files=model_files) for numerics in (FLOAT64, FLOAT32))
    runner = conform.Runner(judges(model_files), lambda case: truth.run(case, case.realize()), itself=[engine.name])
    (result,) = conform.run(runner, [engine], [CASES[name]])
    assert (result.status, result.reason) == (verdict.PASS, "")


def test_outputs_are_measured_in_the_order_of_computation():
    """A stored truth is in the order of names; the honest run is in its own."""
    y = np.ones((2, 3))
    case = Case("x", "model/x", {})
    honest = {"second_in_name": y, "first_in_name": y, "last": y}
    truth = dict(sorted(honest.items()))
    found = {name: 2 * value for name, value in truth.items()} | {"more": y}
    metrics = ModelJudge().measure(Standard(case, {}, truth, honest, FLOAT32), found)
    assert [m.output for m in metrics] == [*honest, "more"]
    assert verdict.judge(metrics).reason.startswith("second_in_name: ")


def _killed(model_files, name, bugs):
    trials = try_all(ModelJudge(model_files), CASES[name], [mutant for mutant in MUTANTS if mutant.name in bugs])
    # A bug that changes a shape is no feat.
    return {t.mutant for t in trials if t.killed and t.judgement.criterion != "output"}


@pytest.mark.parametrize("name", KILLED)
def test_a_case_kills_its_bugs(model_files, name):
    assert len(KILLED[name]) >= 3
    assert set(KILLED[name]) - _killed(model_files, name, KILLED[name]) == set()


def test_every_bug_is_killed_by_some_case():
    killed = {bug for bugs in KILLED.values() for bug in bugs}
    assert {mutant.name for mutant in MUTANTS} ^ killed == AT_TAPS_ALONE, "run tests/fixtures/record_model_bugs.py"


@pytest.mark.parametrize("name", [case.name for case in TINY if case.model.quiet > 0])
def test_quiet_weights_show_a_wrong_eps(model_files, name):
    assert "eps is ten times too large" in _killed(model_files, name, ("eps is ten times too large",))


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("flux-dev/flux/reference", "RoPE turns the other pairs of channels (neighbours, halves)"),
        ("flux-dev/flux/reference", "the guidance is not embedded"),
        ("flux3/flux3/references", "FLUX.3's references have the picture's time, not 0"),
        ("flux3-distilled/flux3/jump", "FLUX.3's time of the step's end is not embedded"),
        ("qwen-image21/qwen-image21/edit", "Qwen-Image 2.1's references are not normalised"),
        ("qwen-image21/qwen-image21/edit", "Qwen-Image 2.1's references have the sampler's time"),
        ("qwen-image21/qwen-image21/edit", "Qwen-Image 2.1's references advance the numbers by half"),
        ("qwen-image-edit-2511/qwen-image/edit", "Qwen-Image's references have the sampler's time"),
        ("qwen3-vl-4b/qwen3_vl/pictures", "DeepStack's features are added one layer late"),
        ("qwen3-vl-8b-vision/qwen3_vision/wide", "Qwen3-VL's last merger normalises four patches as one"),
        ("minimax-h3/minimax-h3/keyframes", "MiniMax-H3's q, k and v are read head by head"),
        ("minimax-h3/minimax-h3/keyframes", "MiniMax-H3's sound has the video's time"),
        ("ltx2/ltx2/video", "LTX-2's gates between the streams have a thousandth of the time"),
        ("ltx23/ltx2/video", "LTX-2's heads have the same frequencies"),
        ("clip-l/clip/ended", "GELU is quick GELU, or the reverse"),
        ("qwen3-4b/qwen3/quiet", "eps is ten times too small"),
        ("qwen3-4b/qwen3/padded", "heads of keys are taken in turn, not in groups"),
    ],
)
def test_a_broken_engine_is_told_its_bug(model_files, name, bug):
    """What `refsd conform` says of an engine that has it."""
    case, mutant = CASES[name], next(m for m in MUTANTS if m.name == bug)
    truth = Reference(FLOAT64, model_files=model_files).run(case, case.realize())
    runner = conform.Runner(judges(model_files), lambda case: truth)
    (result,) = conform.run(runner, [Broken(mutant, model_files)], [case])
    assert result.status == verdict.FAIL
    assert result.reason.endswith(f"; the reference agrees if {bug}")


class Odd(Reference):
    """A reference that declares float32, whatever it does."""

    def __init__(self, model_files, change, computes=FLOAT32):
        super().__init__(computes, model_files=model_files)
        self.change = change

    def numerics(self, case):
        return FLOAT32

    def run(self, case, inputs):
        return {name: self.change(y) for name, y in super().run(case, inputs).items()}


@pytest.mark.parametrize(
    ("change", "computes", "said"),
    [
        (
            lambda y: np.float32(1.25) * y,
            FLOAT32,
            "every output is multiplied by 1.25",
        ),
        (lambda y: y, TORCH_BF16, "it computes as torch-bf16, and not as float32"),
        (lambda y: y + np.float32(0.01) * y**2, FLOAT32, ""),
    ],
)
def test_size_and_precision_are_told(model_files, change, computes, said):
    case = CASES["mistral-small/mistral/padded"]
    truth = Reference(FLOAT64, model_files=model_files).run(case, case.realize())
    runner = conform.Runner(judges(model_files), lambda case: truth)
    (result,) = conform.run(runner, [Odd(model_files, change, computes)], [case])
    assert result.status == verdict.FAIL
    assert result.reason.partition("; the reference agrees if ")[2] == said


def test_the_nearest_bug_is_sought_after_the_search_for_a_cause_and_is_no_cut_of_it(model_files, monkeypatch):
    monkeypatch.setattr(model_judge, "_NEAREST", -1.0)
    case, kind = CASES["mistral-small/mistral/padded"], ModelJudge(model_files)
    inputs = case.realize()
    truth, honest = (kind.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    found = {name: y + 0.01 * y**2 for name, y in honest.items()}
    with noted_cuts() as cuts:
        assert kind._nearest(Standard(case, inputs, truth, honest, FLOAT32), found) is None
    assert cuts == []


def test_a_bug_of_one_block_is_told_its_place(model_files):
    bug = next(m for m in MUTANTS if m.name == "k and v are swapped")
    case = CASES["mistral-small/mistral/padded"]

    def rename(name):
        return bug.change.rename(name) if name.startswith("model.layers.1.") else None

    kind, inputs = ModelJudge(model_files), case.realize()
    found = kind.wrong_answer(case, inputs, Mutant("one", Change(rename=rename)))
    assert found is not None
    truth, honest = (kind.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    named = kind.explain(Standard(case, inputs, truth, honest, FLOAT32), found).causes
    assert named == ["k and v are swapped in model.layers.1"]


def test_cases_without_a_peer_are_asked_for_by_name():
    assert not any(case.name.startswith("lone/") for case in select())
    lone = {
        "chroma-radiance",
        "unet",
        "esrgan",
        "zimage",
        "qwen-image",
        "minimax-h3",
        "mistral",
        "flux2",
        "flux2-vae-decoder",
        "ideogram4",
    }
    assert {case.op.removeprefix("model/") for case in select("lone/*")} == lone
    with pytest.raises(BadInput, match="no case matches"):
        select("*/chroma-radiance/*")


def test_pictures_are_pictures():
    """0..1 in 16ths, from black to white: what an encoder makes of 2 x - 1 is exact in every type."""
    pictures = 0
    for case in TINY:
        for name, recipe in case.inputs.items():
            if recipe.data == "integers" and recipe.offset == 0.5:
                values = case.realize()[name].values()
                assert (values.min(), values.max()) == (0, 1) and not (values * 16 % 1).any(), case.name
                pictures += 1
    assert pictures >= 6


def test_taps_of_large_models_are_asked_for_where_they_fit_the_memory(monkeypatch):
    (unet,), (flux,) = (select(name) for name in ("full/sd15/unet/quiet", "full/flux-dev/256-tokens"))
    monkeypatch.setattr(model_judge, "memory", lambda: 24 << 30)
    assert ModelJudge().asks_for_taps(unet)
    assert not ModelJudge().asks_for_taps(flux)
    monkeypatch.setattr(model_judge, "memory", lambda: 4 << 30)
    assert not ModelJudge().asks_for_taps(unet)
