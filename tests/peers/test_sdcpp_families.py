"""sd-cli on other families than SD 1.x. REFSD_SD_CLI names one that is built with shared ggml libraries.

The tiny ones take seconds; "full/..." ones gigabytes of disk and memory, and minutes.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from refsd.cases import CASES, families
from refsd.engines.reference import Reference
from refsd.engines.sdcpp.engine import REACHES, SdcppEngine
from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.stand_ins import clip_l
from refsd.golden import conform
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineFailure
from refsd.judges import judges
from refsd.models.flux import AXES_DIM, angles, grid_ids
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import FLOAT64
from refsd.weights.model_files import model_files

pytestmark = pytest.mark.peer

NAMES = [case.name for case in families.CASES]
# 4,096 tokens take minutes: `refsd conform sdcpp` asks them too.
TINY = [name for name in NAMES if not name.startswith("full/") and not name.endswith("/1024x1024")]


class Listener(Program):
    """Keeps the last graph of an answer, and the operations in it that `listed` names."""

    listed = ""

    def run_tapped(self, args, feeds=(), nodes="", ops="", stop=None, skip=(), weights=False):
        finished = super().run_tapped(args, feeds, nodes, self.listed or ops, stop, skip, weights)
        self.graph = finished.graphs[-1]
        return finished


@pytest.fixture(scope="module")
def program():
    program = Listener(Path(os.environ["REFSD_SD_CLI"]))
    program.listed = "RMS_NORM,UPSCALE"
    assert program.shares_ggml, "REFSD_SD_CLI must be built with SD_BUILD_SHARED_GGML_LIB=ON"
    return program


@pytest.fixture(scope="module")
def engine(program):
    return SdcppEngine("sdcpp", program, model_files)


def judged(engine, case: Case):
    truth = Reference(model_files=model_files)
    runner = conform.Runner(judges(model_files), lambda case: truth.run(case, case.realize()))
    (result,) = conform.run(runner, [engine], [case])
    return result


@pytest.mark.parametrize(
    "name", [*TINY, *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in TINY)]
)
def test_the_network_agrees(engine, name):
    result = judged(engine, CASES[name])
    assert result.status == "pass", result.reason


def test_another_input_is_another_answer(engine):
    """That is: what is fed is what is computed on, each input of it."""
    case = CASES["flux/kontext/256-tokens"]
    inputs = case.realize()
    plain = engine.run(case, inputs)["out"]
    for name, tensor in inputs.items():
        other = tensor._replace(data=tensor.data * np.float32(0.5))
        assert not np.allclose(engine.run(case, inputs | {name: other})["out"], plain, atol=1e-4), name


def test_flux_angles_are_float32s(engine, program):
    """The table of rotations that it makes is the deviation's, to a rounding, and no float64 one."""
    engine.run(CASES["flux/dev/256-tokens"], CASES["flux/dev/256-tokens"].realize())
    (table,) = (x for x in program.graph.inputs if x.ndim == 4)
    apart = []
    for deviations in ((), (DEVIATIONS["sdcpp/rope-f32-angles"],)):
        angle = angles(Module({}, Arithmetic(FLOAT64, deviations)), 256, grid_ids(8, 16), AXES_DIM)[0]
        turns = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1)
        apart.append(np.abs(table.reshape(turns.shape) - turns).max())
    assert apart[1] < 6e-8 < 1e-7 < apart[0]


def test_flux_normalises_heads_as_the_original(engine, program):
    engine.run(CASES["flux/dev/256-tokens"], CASES["flux/dev/256-tokens"].realize())
    eps = {np.int32(op.params[0]).view(np.float32).item() for op in program.graph.ops if op.op == "RMS_NORM"}
    assert eps == {np.float32(1e-6).item()}


@pytest.mark.slow
def test_zimage_normalises_heads_with_another_eps(engine, program):
    """The rest of its RMSNorms have the original's."""
    case = CASES["full/zimage/13-tokens"]
    engine.run(case, case.realize())
    found = {}
    for op in program.graph.ops:
        found.setdefault(op.source.ndim > 2, set()).add(np.int32(op.params[0]).view(np.float32).item())
    deviant = DEVIATIONS["sdcpp/zimage-qk-norm-eps"].sets["eps"]
    assert found == {True: {np.float32(deviant).item()}, False: {np.float32(1e-5).item()}}


@pytest.mark.slow
def test_radiance_halves_by_means(engine, program):
    case = CASES["full/chroma-radiance/x0"]
    engine.run(case, case.realize())
    (op,) = (op for op in program.graph.ops if op.op == "UPSCALE")
    assert op.result.shape == (3, 32, 64)
    np.testing.assert_allclose(op.result, op.source.reshape(3, 32, 2, 64, 2).mean((2, 4)), atol=1e-6)


@pytest.mark.parametrize("family", ["zimage", "chroma", "sd3-medium"])
def test_small_ones_do_not_load(program, tmp_path, family):
    """What the page says of them, and why their cases are of the full size."""
    assert not any(reach.tiny for (named, _), reach in REACHES.items() if named == family)
    tae = model_files(ModelRecipe("taef1", "f32", tiny=True), "ldm")
    model = model_files(ModelRecipe(family, "f32", tiny=True), "ldm")
    args = ["--diffusion-model", model, "--clip_l", clip_l(tmp_path), "--taesd", tae, "-p", "a"]
    with pytest.raises(EngineFailure, match="ended with"):
        program.run([*map(str, args), "-W", "64", "-H", "64", "--steps", "1", "-o", str(tmp_path / "o.png")])
