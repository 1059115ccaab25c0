"""sd-cli, looked into. REFSD_SD_CLI names one that is built with shared ggml libraries.

Full-size weights: a minute to make, 2 GB on disk, then some seconds a test.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from refsd.cases import CASES, select
from refsd.engines.reference import Reference
from refsd.engines.sdcpp.engine import find
from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.tap import Feed
from refsd.golden import conform
from refsd.golden.case import ModelRecipe
from refsd.judges import judges
from refsd.kernels.activations import gelu, gelu_tanh
from refsd.numerics.deviations import DEVIATIONS
from refsd.weights.model_files import model_files

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SMALL = ["-p", "a cat", "-W", "64", "-H", "64", "--steps", "1", "--cfg-scale", "1", "-s", "3"]
UNET_INPUTS = (
    np.zeros(1, np.float32),
    np.zeros((4, 8, 8), np.float32),
    np.zeros((77, 768), np.float32),
)


@pytest.fixture(scope="module")
def program():
    program = Program(Path(os.environ["REFSD_SD_CLI"]))
    assert program.shares_ggml, "REFSD_SD_CLI must be built with SD_BUILD_SHARED_GGML_LIB=ON"
    return program


@pytest.fixture(scope="module")
def model():
    return model_files(ModelRecipe("sd15", "f16"), "ldm")


def test_the_tap_changes_nothing(program, model, tmp_path):
    """Not even where a graph runs in pieces."""
    calls = {"plain": program.run, "whole": program.run_tapped, "pieces": program.run_tapped}
    pictures = {}
    for name, call in calls.items():
        more = {"nodes": "ggml_runner_cut", "ops": "GROUP_NORM"} if name == "pieces" else {}
        call(["-m", str(model), *SMALL, "-o", str(tmp_path / f"{name}.png")], **more)
        pictures[name] = np.asarray(Image.open(tmp_path / f"{name}.png"))
    assert np.array_equal(pictures["plain"], pictures["whole"])
    assert np.array_equal(pictures["plain"], pictures["pieces"])


def test_every_component_is_seen_and_timed(program, model, tmp_path):
    finished = program.run_tapped(["-m", str(model), *SMALL, "-o", str(tmp_path / "a.png")])
    assert [g.output.shape for g in finished.graphs] == [(77, 768), (4, 8, 8), (3, 64, 64)]
    assert {"load", "clip", "sampling", "vae-decoder", "total"} == set(finished.seconds)


def test_what_is_fed_is_computed_on(program, model, tmp_path):
    x = np.full((4, 8, 8), 0.5, np.float32)
    args = ["-m", str(model), *SMALL, "-o", str(tmp_path / "a.png")]
    kind = "f32:1x1x1x1,f32:768x77x1x1,f32:8x8x4x1"
    plain, fed = (
        program.run_tapped(args, feeds, stop=(1, kind)).graphs[-1] for feeds in ((), [Feed(UNET_INPUTS, 0, x)])
    )
    assert np.array_equal(fed.inputs[2], x) and not np.array_equal(plain.inputs[2], x)
    assert np.array_equal(fed.inputs[1], plain.inputs[1])
    assert not np.allclose(fed.output, plain.output)


def test_the_declared_deviations_are_still_there(program, model, tmp_path):
    """In every GroupNorm and every GELU of a real run: a version that mends one must drop its declaration."""
    args = ["-m", str(model), *SMALL, "-o", str(tmp_path / "a.png")]
    ops = [op for graph in program.run_tapped(args, ops="GROUP_NORM,GELU").graphs for op in graph.ops]
    eps = {np.int32(op.params[1]).view(np.float32).item() for op in ops if op.op == "GROUP_NORM"}
    assert eps == {np.float32(DEVIATIONS["sdcpp/group-norm-eps"].sets["eps"]).item()}
    gelus = [op for op in ops if op.op == "GELU"]
    assert len(gelus) == 16
    for op in gelus:
        x = op.source.astype(np.float16).astype(np.float64)
        by_tanh, by_erf = (f(x).astype(np.float16).astype(np.float32) for f in (gelu_tanh, gelu))
        assert np.linalg.norm(by_tanh - op.result) < 0.1 * np.linalg.norm(by_erf - op.result)


@pytest.mark.parametrize("name", [case.name for case in select("full/sd15/*")])
def test_components(program, name):
    """Each passes, or deviates as declared."""
    engines = [found.engine for found in find(str(program.path), model_files)]

    truth = Reference(model_files=model_files)
    runner = conform.Runner(judges(model_files), lambda case: truth.run(case, case.realize()))
    results = conform.run(runner, engines, [CASES[name]])
    assert {r.status for r in results} <= {"pass", "deviates"}, [r.reason for r in results]
