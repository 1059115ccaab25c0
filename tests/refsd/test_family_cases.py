"""Every family's cases in the reference: float32 stands within its bound of float64, and bugs do not."""

import functools

import numpy as np
import pytest

from refsd.engine import Reference
from refsd.golden import conform, verdict
from refsd.golden.cases import CASES, select
from refsd.golden.cases.models import CASES as FAMILIES
from refsd.golden.errors import BadInput
from refsd.golden.numerics import FLOAT32, FLOAT64
from refsd.model_mutants import MUTANTS, Mutant, answer, causes
from refsd.weights import recipes

pytestmark = pytest.mark.jitted

# One of each kind of network, small enough to be answered twenty times.
BROKEN = (
    "sd35-large/mmdit/last-step",
    "flux-dev/flux/reference",
    "chroma/chroma/masked",
    "flux2-dev/flux2/reference",
    "clip-l/clip/ended",
    "t5xxl/t5/padded",
    "qwen3-4b/qwen3/padded",
    "taesd/tae-decoder/outliers",
)


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
def _killed(model_files, name, of=tuple(mutant.name for mutant in MUTANTS)):
    case = CASES[name]
    inputs = case.realize()
    exact, quick = (Reference(n, model_files=model_files) for n in (FLOAT64, FLOAT32))
    truth, honest = exact.run(case, inputs), answer(quick, case, Mutant("none"))
    assert honest is not None
    killed = set()
    for mutant in (mutant for mutant in MUTANTS if mutant.name in of):
        wrong = answer(quick, case, mutant)
        if wrong is not None and not all(np.array_equal(wrong[output], honest[output]) for output in honest):
            metrics = conform.measure_case(case, inputs, wrong, truth, honest, FLOAT32)
            killed |= {mutant.name} if not verdict.judge(metrics).passed else set()
    return killed


@pytest.mark.parametrize("name", BROKEN)
def test_a_case_kills_several_bugs(model_files, name):
    assert len(_killed(model_files, name)) >= 3


def test_every_bug_is_killed_by_some_case(model_files):
    killed = set().union(*(_killed(model_files, name) for name in BROKEN))
    assert {mutant.name for mutant in MUTANTS} <= killed


@pytest.mark.parametrize("name", [case.name for case in FAMILIES if case.model.quiet])
def test_quiet_weights_show_a_wrong_eps(model_files, name):
    assert "eps is ten times too large" in _killed(model_files, name, ("eps is ten times too large",))


def test_a_broken_engine_is_told_its_bug(model_files):
    """What `refsd conform` says of an engine that embeds no guidance, and of one whose RoPE turns other pairs."""
    case = CASES["flux-dev/flux/reference"]
    truth = Reference(FLOAT64, model_files=model_files).run(case, case.realize())
    runner = conform.Runner(
        lambda numerics, deviations: Reference(numerics, deviations, model_files),
        lambda case: truth,
        causes=functools.partial(causes, model_files=model_files),
    )
    for mutant in (m for m in MUTANTS if m.name.startswith(("RoPE turns", "the guidance"))):
        (result,) = conform.run(runner, [Broken(mutant, model_files)], [case])
        assert result.status == verdict.FAIL
        assert result.reason.endswith(f"; the reference agrees if {mutant.name}")


def test_cases_without_a_peer_are_asked_for_by_name():
    assert not any(case.name.startswith("lone/") for case in select())
    assert {case.op for case in select("lone/*")} == {"model/chroma-radiance"}
    with pytest.raises(BadInput, match="no case matches"):
        select("*/chroma-radiance/*")
