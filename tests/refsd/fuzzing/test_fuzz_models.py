"""Random cases of models are drawn from the corpus, the same for a seed; finds are cut to their operation."""

import json

import pytest
from injection import Bug, Injected, wrong_operation
from typer.testing import CliRunner

from refsd.cli import app
from refsd.cli.find_case import find_case
from refsd.components.hollow import hollow_module
from refsd.fuzzing import fuzz
from refsd.fuzzing.draw_blocks import blocks, draw_block
from refsd.fuzzing.draw_models import bases, components, draw_model
from refsd.golden.engine import EngineDied
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from refsd.requests.isolated_engine import IsolatedEngine
from refsd.shrinking.failure import runner_of
from refsd.shrinking.named_axes import sizes_of
from refsd.weights.recipe_files import RecipeFiles


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    with RecipeFiles(tmp_path_factory.mktemp("models")) as files:
        yield files


@pytest.mark.parametrize("op", components())
def test_what_is_drawn_is_a_case_of_its_component(op):
    """`draw_model` itself checks each case by what the component takes."""
    cases = [draw_model(7, op, number) for number in range(6)]
    assert len({str(case.inputs) + str(case.model) for case in cases}) == 6
    assert draw_model(7, op, 3) == cases[3] == find_case(f"fuzz/7/{op}/3")
    assert {case.model.family for case in cases} <= {case.model.family for case in bases(op)}


@pytest.mark.parametrize("op", blocks())
def test_a_block_is_drawn_alone_in_many_widths(op):
    cases = [draw_block(7, op, number) for number in range(5)]
    assert draw_block(7, op, 3) == cases[3] == find_case(f"fuzz/7/{op}/3")
    assert len({case.model.sizes for case in cases}) > 1
    weights = hollow_module(cases[0]).weights
    at = {"block/mmdit": "joint_blocks.", "block/zimage": "layers.", "block/flux-double": "double_blocks."}
    if op in at:
        assert {name.split(".")[1] for name in weights if name.startswith(at[op])} <= {"0", "1"}
    if op == "block/flux-double":
        assert not any(name.startswith("single_blocks.") for name in weights)


def test_odd_sides_batches_texts_types_and_data_occur():
    cases = [
        draw_model(1, op, number) for op in ("model/unet", "model/flux", "model/qwen3") for number in range(25)
    ]
    sizes = [sizes_of(case) for case in cases]
    assert {size["N"] for size in sizes} == {1, 2, 3}
    sides = {(size["H"], size["W"]) for size in sizes if "H" in size}
    assert any(h % 2 for h, _ in sides) and any(h != w for h, w in sides) and any(1 in side for side in sides)
    assert {1, 77} < {size.get("J", size.get("L")) for size in sizes}
    assert {"f32", "f16", "bf16", "q8_0"} <= {case.model.type for case in cases}
    assert {case.model.quiet for case in cases} == {0, 3, 6}
    assert {"bell", "outliers", "integers"} <= {case.inputs["x"].data for case in cases if "x" in case.inputs}


def fuzzed(bug, ops, count, model_files):
    fuzzer = fuzz.Fuzzer(IsolatedEngine(Injected(bug, FLOAT32, model_files)), runner_of(model_files))
    for case in fuzz.cases(7, ops, count, 0):
        fuzzer.try_case(case)
    return fuzzer


SMALL = ["model/t5", "model/qwen3", "model/tae-decoder", "model/mmdit"]


@pytest.mark.jitted
def test_an_honest_engine_is_not_accused(model_files):
    fuzzer = fuzzed(Bug(), SMALL, 2 * len(SMALL), model_files)
    assert [(find.case, find.reason) for find in fuzzer.finds] == [] and fuzzer.asked.keys() == {*SMALL}


@pytest.mark.jitted
def test_a_find_is_cut_to_its_operation(model_files):
    def late(self, right, x, weight, eps=1e-6):
        return right(x, weight, 1e3 * eps)

    fuzzer = fuzzed(wrong_operation(rms_norm=late, rms_norm_apart=late), ["model/t5"], 3, model_files)
    (find,) = fuzzer.finds
    assert find.op == "model/t5" and find.shapes == {"x": [1, 1]}
    assert "layer_norm" in find.title and find.times == 3


@pytest.mark.jitted
def test_an_engine_that_dies_is_named_and_the_rest_goes_on(model_files):
    def die(case, inputs, y):
        if case.op == "model/t5":
            raise EngineDied("ended by SIGSEGV: it said nothing")
        return y

    fuzzer = fuzzed(Bug(answer=die), ["model/t5", "model/mmdit"], 4, model_files)
    (find,) = fuzzer.finds
    assert (find.kind, find.op, find.times) == ("crash", "model/t5", 2) and fuzzer.asked["model/mmdit"] == 2
    assert find.shapes == {"input_ids": [1, 1]}


@pytest.mark.jitted
def test_the_command_asks_models_by_their_prefix_alone(tmp_path):
    words = ["fuzz", "refsd:float32", "--ops", "model/t5", "--count", "2", "--json", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout[done.stdout.index("{") :])["asked"] == {"model/t5": 2}
    done = CliRunner().invoke(app, ["fuzz", "refsd:float32", "--ops", "model/t55"])
    assert isinstance(done.exception, BadInput) and 'no operation matches (did you mean "model/t5"' in str(
        done.exception
    )
