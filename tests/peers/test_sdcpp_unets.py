"""sd-cli on SD 2, SDXL, their kin and ControlNet. REFSD_SD_CLI names one that is built with shared ggml libraries.

It loads the full size only: gigabytes of disk and memory a family, and minutes.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from test_sdcpp_families import Listener

from refsd.cases import CASES, unets
from refsd.engines.reference import Reference
from refsd.engines.sdcpp.engine import REACHES, SdcppEngine
from refsd.engines.sdcpp.reach import Call, whole_file
from refsd.engines.sdcpp.stand_ins import CLIP_L_GRAPH
from refsd.engines.sdcpp.tap import signature
from refsd.engines.sdcpp.unets import texts
from refsd.golden import conform
from refsd.golden.case import Case
from refsd.golden.metrics import measure
from refsd.golden.verdict import judge_output
from refsd.judges import judges
from refsd.models.unet import size_condition
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import FLOAT64, GGML_CPU
from refsd.samplers.parameterization import EPS, V
from refsd.weights.model_files import model_files

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SDXS_09 = "full/sdxs-09/unet"
EXPECTED = {"full/sdxl/clip_g": ("deviates", ("sdcpp/openclip-projection",))}


@pytest.fixture(scope="module")
def program():
    program = Listener(Path(os.environ["REFSD_SD_CLI"]))
    assert program.shares_ggml, "REFSD_SD_CLI must be built with SD_BUILD_SHARED_GGML_LIB=ON"
    return program


@pytest.fixture(scope="module")
def engine(program):
    return SdcppEngine("sdcpp", program, model_files)


@pytest.mark.parametrize("name", [case.name for case in unets.CASES if case.name != SDXS_09])
def test_the_network_agrees(engine, name):
    truth = Reference(model_files=model_files)
    runner = conform.Runner(judges(model_files), lambda case: truth.run(case, case.realize()))
    (result,) = conform.run(runner, [engine], [CASES[name]])
    assert (result.status, result.deviations) == EXPECTED.get(name, ("pass", ())), result.reason


def test_sdxl_is_told_the_sizes(program, tmp_path):
    """Original, crop and target behind the pooled vector, each number embedded; float32's angles are 3e-6 off."""
    case = CASES["full/vega/unet"]
    assert case.model is not None
    args = REACHES["vega", "model/unet"].flags(model_files, case.model, tmp_path)
    args += ["-p", "a", "--cfg-scale", "1", "--steps", "1", "-W", "128", "-H", "64"]
    shapes = ((4, 8, 16), (1,), (77, 2048), (2816,))
    kind = signature([np.zeros(shape, np.float32) for shape in shapes])
    graph = program.run_tapped(args, stop=(1, kind), skip=(CLIP_L_GRAPH,)).graphs[-1]
    (y,) = (x for x in graph.inputs if x.shape == (2816,))
    sizes = np.array([[64, 128, 0, 0, 64, 128]], np.float64)
    want = size_condition(Module({}, Arithmetic(FLOAT64)), np.zeros((1, 1280)), sizes)[0]
    np.testing.assert_allclose(y[1280:], want[1280:], atol=5e-6)


def test_sdxls_clip_l(program, tmp_path):
    """The layer before the last, not normed. The engine asks for no pooled vector of it: hence no case."""
    other = CASES["full/sdxl/clip_g"]
    assert other.model is not None
    case = Case("full/sdxl/clip", "model/clip", other.inputs, other.params, other.model)
    inputs = case.realize()
    call = Call(program, whole_file(model_files, other.model, tmp_path), case, {}, model_files, tmp_path)
    (found,) = texts(call, inputs["input_ids"].values()[0].astype(np.int32), "a", 2, 1)
    truth, honest = (
        Reference(numerics, [], model_files).run(case, inputs)["last_hidden_state"]
        for numerics in (FLOAT64, GGML_CPU)
    )
    judged = judge_output(measure("last_hidden_state", found[None], truth, honest, None, -1))
    assert judged.passed, judged.reason


def test_the_deviations_are_in_sdxls_nodes_too(engine, program):
    """Every GroupNorm's eps; its GELUs are the tanh's."""
    program.listed = "GROUP_NORM,GELU"
    case = CASES["full/sdxl-inpaint/unet"]
    try:
        engine.run(case, case.realize())
    finally:
        program.listed = ""
    norms = [op for op in program.graph.ops if op.op == "GROUP_NORM"]
    eps = {np.int32(op.params[1]).view(np.float32).item() for op in norms}
    assert eps == {np.float32(DEVIATIONS["sdcpp/group-norm-eps"].sets["eps"]).item()}
    assert sum(op.op == "GELU" for op in program.graph.ops) == 70


def test_sdxs_09_looks_at_pixels_that_overlap(engine, program):
    """Its widest level's first attention has keys of the text; sd-cli's are of the 1024 numbers from a pixel on.

    Its pixels have 320: three neighbours and a part are in each. And it has one head, where SD 2 has five.
    """
    program.listed = "ADD,MUL_MAT,SOFT_MAX"
    case = CASES[SDXS_09]
    try:
        engine.run(case, case.realize())
    finally:
        program.listed = ""
    ops = program.graph.ops
    # Of the first attention's keys, and as many as there are pixels.
    wide = ((320, 1024), (8 * 16, 320))
    first = next(i for i, op in enumerate(ops) if op.op == "MUL_MAT" and (op.source.shape, op.result.shape) == wide)
    weight, keys = ops[first].source.astype(np.float64), ops[first].result
    pixels = next(op.result for op in ops[first::-1] if op.op == "ADD" and op.result.shape == keys.shape)
    flat = pixels.astype(np.float16).astype(np.float64).ravel()
    # The last three would begin where there are not 1024 left.
    want = np.stack([weight @ flat[320 * i : 320 * i + 1024] for i in range(8 * 16 - 3)])
    assert np.linalg.norm(keys[: len(want)] - want) < 1e-5 * np.linalg.norm(want)
    scores = next(op.result for op in ops[first:] if op.op == "SOFT_MAX")
    assert scores.shape == (8 * 16, 8 * 16)


@pytest.mark.parametrize("prediction", [EPS, V])
def test_what_is_made_of_a_prediction(program, tmp_path, prediction):
    """From both inputs and the first answer of two of Euler's steps: SD 2's v too, whatever the UNet."""
    high, low = 9.0, 2.5
    case = CASES["full/tiny-sd/unet"]
    assert case.model is not None
    args = REACHES["tiny-sd", "model/unet"].flags(model_files, case.model, tmp_path)
    args += ["-p", "a", "--cfg-scale", "1", "--sampling-method", "euler", "-W", "64", "-H", "64", "--steps", "2"]
    args += ["--prediction", prediction.name, "--sigmas", f"{high},{low},0"]
    unet = (np.zeros((4, 8, 8), np.float32), np.zeros(1, np.float32), np.zeros((77, 768), np.float32))
    finished = program.run_tapped(args, stop=(2, signature(unet)), skip=(CLIP_L_GRAPH,))
    first, second = (graph for graph in finished.graphs if graph.signature == signature(unet))
    (x, after), y = (one.inputs[-1].astype(np.float64) for one in (first, second)), first.output.astype(np.float64)
    c_skip, c_out, c_in = prediction.scalings(high)
    x = x / c_in
    x = x + (low - high) * (x - (c_skip * x + c_out * y)) / high
    np.testing.assert_allclose(after, x * prediction.scalings(low)[2], atol=2e-6)
