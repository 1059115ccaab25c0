"""Every family's cases in the reference: float32 stands within its bound of float64, and bugs do not."""

import functools

import numpy as np
import pytest

from refsd.engine import Reference
from refsd.golden import conform, verdict
from refsd.golden.cases import CASES, select
from refsd.golden.cases.models import CASES as FAMILIES
from refsd.golden.errors import BadInput
from refsd.golden.numerics import FLOAT32, FLOAT64, TORCH_BF16
from refsd.model_diagnose import causes
from refsd.model_mutants import MUTANTS, Mutant, answer
from refsd.weights import recipes

pytestmark = pytest.mark.jitted

# One of each kind of network, the small ones first: each is asked for the bugs that none before it has killed.
BROKEN = (
    "clip-l/clip/ended",
    "mistral-small/mistral/padded",
    "qwen3-4b/qwen3/padded",
    "t5xxl/t5/padded",
    "taesd/tae-decoder/outliers",
    "sd35-large/mmdit/last-step",
    "chroma/chroma/masked",
    "flux2-dev/flux2/reference",
    "flux-dev/flux/reference",
    "flux-vae/vae-encoder/tall",
    "controlnet/controlnet/between",
)
# Bugs that each is asked for.
EVERYWHERE = {
    "the second item of the batch reads the first",
    "the output's sign is turned",
    "square matrices are transposed",
    "convolutions are flipped",
    "norms have no scale",
}


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
        y = answer(Reference(FLOAT32, model_files=self.model_files), case, self.mutant)
        assert y is not None
        return y


@pytest.mark.parametrize("name", [case.name for case in FAMILIES])
def test_float32_is_within_its_bound(model_files, name):
    truth = Reference(FLOAT64, model_files=model_files)
    runner = conform.Runner(
        lambda numerics, deviations: Reference(numerics, deviations, model_files),
        lambda case: truth.run(case, case.realize()),
    )
    (result,) = conform.run(runner, [Reference(FLOAT32, model_files=model_files)], [CASES[name]])
    assert (result.status, result.reason) == (verdict.PASS, "")


@functools.cache
def _killed(model_files, name, of):
    case = CASES[name]
    inputs = case.realize()
    exact, quick = (Reference(n, model_files=model_files) for n in (FLOAT64, FLOAT32))
    truth, honest = exact.run(case, inputs), answer(quick, case, Mutant("none"))
    assert honest is not None
    killed = set()
    for mutant in (mutant for mutant in MUTANTS if mutant.name in of):
        wrong = answer(quick, case, mutant)
        if wrong is not None and any(wrong[output].shape != honest[output].shape for output in honest):
            continue
        if wrong is not None and not all(np.array_equal(wrong[output], honest[output]) for output in honest):
            metrics = conform.measure_case(case, inputs, wrong, truth, honest, FLOAT32)
            killed |= {mutant.name} if not verdict.judge(metrics).passed else set()
    return killed


@functools.cache
def _graveyard(model_files):
    """Case -> the bugs that it killed."""
    left, killed = {mutant.name for mutant in MUTANTS}, {}
    for name in BROKEN:
        killed[name] = _killed(model_files, name, tuple(sorted(left | EVERYWHERE)))
        left -= killed[name]
    return killed


@pytest.mark.parametrize("name", BROKEN)
def test_a_case_kills_several_bugs(model_files, name):
    assert len(_graveyard(model_files)[name]) >= 3


def test_every_bug_is_killed_by_some_case(model_files):
    killed = set().union(*_graveyard(model_files).values())
    assert {mutant.name for mutant in MUTANTS} - killed == set()


@pytest.mark.parametrize("name", [case.name for case in FAMILIES if case.model.quiet])
def test_quiet_weights_show_a_wrong_eps(model_files, name):
    assert "eps is ten times too large" in _killed(model_files, name, ("eps is ten times too large",))


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("flux-dev/flux/reference", "RoPE turns the other pairs of channels (neighbours, halves)"),
        ("flux-dev/flux/reference", "the guidance is not embedded"),
        ("clip-l/clip/ended", "GELU is quick GELU, or the reverse"),
        ("qwen3-4b/qwen3/quiet", "eps is ten times too small"),
        ("qwen3-4b/qwen3/padded", "heads of keys are taken in turn, not in groups"),
    ],
)
def test_a_broken_engine_is_told_its_bug(model_files, name, bug):
    """What `refsd conform` says of an engine that has it."""
    case, mutant = CASES[name], next(m for m in MUTANTS if m.name == bug)
    truth = Reference(FLOAT64, model_files=model_files).run(case, case.realize())
    runner = conform.Runner(
        lambda numerics, deviations: Reference(numerics, deviations, model_files),
        lambda case: truth,
        causes=functools.partial(causes, model_files=model_files),
    )
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
            "all that it gives is 1.25 times as large",
        ),
        (lambda y: y, TORCH_BF16, "it computes as torch-bf16, and not as float32"),
        (lambda y: y + np.float32(0.01) * y**2, FLOAT32, ""),
    ],
)
def test_size_and_precision_are_told(model_files, change, computes, said):
    case = CASES["mistral-small/mistral/padded"]
    truth = Reference(FLOAT64, model_files=model_files).run(case, case.realize())
    runner = conform.Runner(
        lambda numerics, deviations: Reference(numerics, deviations, model_files),
        lambda case: truth,
        causes=functools.partial(causes, model_files=model_files),
    )
    (result,) = conform.run(runner, [Odd(model_files, change, computes)], [case])
    assert result.status == verdict.FAIL
    assert result.reason.partition("; the reference agrees if ")[2] == said


def test_a_bug_of_one_block_is_told_its_place(model_files):
    bug = next(m for m in MUTANTS if m.name == "k and v are swapped")
    case = CASES["mistral-small/mistral/padded"]

    def rename(name):
        return bug.rename(name) if name.startswith("model.layers.1.") else None

    found = answer(Reference(FLOAT32, model_files=model_files), case, Mutant("one", rename=rename))
    assert found is not None
    assert causes(case, case.realize(), found, FLOAT32, model_files) == ["k and v are swapped in model.layers.1"]


def test_cases_without_a_peer_are_asked_for_by_name():
    assert not any(case.name.startswith("lone/") for case in select())
    assert {case.op for case in select("lone/*")} == {"model/chroma-radiance"}
    with pytest.raises(BadInput, match="no case matches"):
        select("*/chroma-radiance/*")
