"""The reference answers cases: operations, models by recipe, blocks that bring their weights."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tiny_models as tiny

from refsd.components import forward
from refsd.engines.reference import Reference
from refsd.files.writers import Spec, write_safetensors
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import Engine
from refsd.golden.recipe import Recipe
from refsd.judges.model import ModelJudge
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import memory
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.numerics.tensor import stored

# Plumbing: tests/refsd/models runs the same models unjitted.
pytestmark = pytest.mark.jitted

MODEL = ModelRecipe("sd15", "f32", tiny=True)
INPUTS = {
    component: {name: stored(x) for name, x in arguments.items()} for component, arguments in tiny.inputs().items()
}


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    """A ModelFiles that hands out the tiny checkpoint, and counts."""
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    tensors = tiny.checkpoint()
    write_safetensors(path, {name: Spec(t.type, t.shape) for name, t in tensors.items()}, tensors.values())

    def give(recipe, layout):
        assert (recipe, layout) == (MODEL, "ldm")
        give.calls += 1
        return path

    give.calls = 0
    return give


def model_case(component):
    # The file has no config: heads are as SD 1.5's, but for CLIP's, which the width gives.
    params = {"num_heads": 4, "eos": 99} if component == "clip" else {}
    return Case(f"model/{component}/tiny", f"model/{component}", {}, params, MODEL)


def test_it_is_an_engine():
    reference: Engine = Reference()
    case = Case("silu/one", "silu", {"x": Recipe((3, 5))})
    assert reference.refuses(case) is None
    assert reference.numerics(case) is FLOAT64
    assert reference.deviations(case) == ()
    y = reference.run(case, case.realize())["y"]
    x = case.realize()["x"].values().astype(np.float64)
    np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-14)


def test_it_refuses_what_it_does_not_know():
    reference = Reference()
    assert "no operation fold" in str(reference.refuses(Case("x", "fold", {})))
    assert "no operation model/vision" in str(reference.refuses(Case("x", "model/vision", {})))
    assert reference.refuses(model_case("unet")) == "no model files"
    for case in (Case("x", "fold", {}), Case("x", "model/vision", {}), model_case("unet")):
        with pytest.raises(BadInput):
            reference.run(case, {})


@pytest.mark.parametrize("component", ["unet", "clip", "vae-encoder", "vae-decoder"])
def test_a_model_by_recipe(component, model_files):
    case = model_case(component)
    got = Reference(model_files=model_files).run(case, INPUTS[component])
    m = Module(tiny.weights(tiny.PARTS[component]))
    want = forward(component, m, tiny.inputs()[component], case.params)
    assert list(got) == list(want)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-13)


def test_a_checkpoint_stays_open_between_cases(model_files):
    reference = Reference(model_files=model_files)
    before = model_files.calls
    for _ in range(2):
        reference.run(model_case("vae-decoder"), INPUTS["vae-decoder"])
    assert model_files.calls == before + 1


@pytest.mark.parametrize("component", ["flux-double", "flux-single"])
def test_a_block_brings_its_weights(component):
    inputs = {**INPUTS[component], **tiny.weights(component)}
    case = Case(f"model/{component}/tiny", f"model/{component}", {}, tiny.PARAMS[component])
    reference = Reference()
    assert reference.refuses(case) is None
    got = reference.run(case, inputs)
    want = forward(component, Module(tiny.weights(component)), tiny.inputs()[component], tiny.PARAMS[component])
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12)
    incomplete = {name: tensor for name, tensor in inputs.items() if "mod" not in name}
    with pytest.raises(BadInput, match=r"the weights lack \"\w+\.lin\.weight\""):
        reference.run(case, incomplete)


def test_taps_on_request(model_files):
    taps = Taps("mid*")
    ModelJudge(model_files).tapped(model_case("unet"), INPUTS["unet"], Arithmetic(FLOAT64), taps)
    assert "middle_block.1.transformer_blocks.0.attn2" in taps


def test_numerics_and_deviations_are_applied(model_files):
    case = model_case("unet")
    truth = Reference(model_files=model_files).run(case, INPUTS["unet"])["out"]
    quick = Reference(FLOAT32, model_files=model_files).run(case, INPUTS["unet"])["out"]
    assert quick.dtype == np.float32
    assert 0 < np.abs(quick - truth).max() < 1e-4
    eps = DEVIATIONS["sdcpp/group-norm-eps"]
    reference = Reference(deviations=[eps], model_files=model_files)
    assert reference.deviations(case) == (eps,)
    deviating = reference.run(case, INPUTS["unet"])["out"]
    assert 1e-7 < np.linalg.norm(deviating - truth) / np.linalg.norm(truth) < 1e-2


def test_params_that_do_not_fit_are_named(model_files):
    reference = Reference(model_files=model_files)
    for params, says in (
        ({"clip_skip": 3}, "clip_skip is 3, the model takes at most 2"),
        ({"clip_skip": 0}, "clip_skip is 0"),
        ({"num_heads": 7}, "num_heads is 7, the model takes a divisor of 64"),
        ({"num_heads": "4"}, "num_heads is '4'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected quick_gelu or gelu"),
        ({"heads": 4}, "no param heads"),
    ):
        case = Case("c", "model/clip", {}, params, MODEL)
        with pytest.raises(BadInput, match=says):
            reference.run(case, INPUTS["clip"])


def test_memory_is_a_size():
    assert 2**28 < memory() < 2**50


ANSWER = """
import hashlib, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import tiny_models as tiny
from refsd.components import forward
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored
from refsd.module import Module
import threadpoolctl, numba

rng = np.random.default_rng(0)
blas = [p["num_threads"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
unet = {"x": rng.standard_normal((2, 4, 24, 40)), "timesteps": np.array([981.25, 1.5]),
        "context": rng.standard_normal((2, 77, 24))}
vae = {"z": rng.standard_normal((1, 4, 24, 40))}
with one_answer(FLOAT64):
    for component, inputs in (("unet", unet), ("vae-decoder", vae)):
        y = forward(component, Module(tiny.weights(tiny.PARTS[component])), inputs)["out"]
        print(hashlib.sha256(y.tobytes()).hexdigest())
    # The full-size time embedding: few rows, for which OpenBLAS takes another kernel on one thread than on two.
    m = Module({"emb.weight": stored(rng.standard_normal((320, 1280)))})
    print(hashlib.sha256(m.linear("emb", rng.standard_normal((2, 1280))).tobytes()).hexdigest())
print(max(blas), numba.get_num_threads(), file=sys.stderr)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU")
@pytest.mark.parametrize("coretype", ["", "Haswell"])
def test_float64_does_not_move_with_the_number_of_threads(coretype):
    running = {}
    for threads in ("1", "2"):
        env = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
        env.pop("OPENBLAS_CORETYPE", None)
        if coretype:
            env["OPENBLAS_CORETYPE"] = coretype
        command = [sys.executable, "-P", "-c", ANSWER, os.path.dirname(tiny.__file__)]
        running[threads] = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    answers = []
    for threads, process in running.items():
        out, said = process.communicate()
        assert process.returncode == 0, said
        assert said.split()[-2:] == [threads, threads]
        answers.append(out.split())
    assert len(answers[0]) == 3
    assert answers[0] == answers[1]
