"""Random blocks: a torch with one wrong block is found and its case reduced; a right one raises no alarm."""

import pytest

from refsd.engines.torch.engine import find
from refsd.fuzzing import fuzz
from refsd.requests.isolated_engine import IsolatedEngine
from refsd.shrinking.failure import runner_of
from refsd.weights.recipe_files import RecipeFiles

pytest.importorskip("diffusers")
pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    with RecipeFiles(tmp_path_factory.mktemp("models")) as files:
        yield files


@pytest.fixture(scope="module")
def engine(model_files):
    return find(model_files=model_files)[0].engine


def fuzzed(engine, ops, count, model_files):
    fuzzer = fuzz.Fuzzer(IsolatedEngine(engine), runner_of(model_files))
    for case in fuzz.cases(7, ops, count, 0):
        fuzzer.try_case(case)
    return fuzzer


def test_blocks_that_are_right_raise_no_alarm(engine, model_files):
    ops = ["block/flux-double", "block/zimage", "block/unet-transformer", "block/vae-decoder-attention"]
    fuzzer = fuzzed(engine, ops, 4, model_files)
    assert [(find.case, find.reason) for find in fuzzer.finds] == [] and sum(fuzzer.asked.values()) >= 2


def test_a_wrong_block_is_found_and_reduced(engine, model_files, monkeypatch):
    """The gate of the text's feed-forward is left out, in diffusers' double block alone."""
    from diffusers.models.transformers import transformer_flux

    right = transformer_flux.AdaLayerNormZero.forward

    def ungated(self, *arguments, **more):
        x, gate, shift, scale, gate_mlp = right(self, *arguments, **more)
        return x, gate, shift, scale, 0 * gate_mlp + 1

    monkeypatch.setattr(transformer_flux.AdaLayerNormZero, "forward", ungated)
    (find,) = fuzzed(engine, ["block/flux-double", "block/flux-single"], 2, model_files).finds
    assert find.case.startswith("fuzz/7/block/flux-double/") and find.kind == "wrong"
    assert find.shapes["x"][0] == 1 and find.shapes["x"][2:] == [2, 2] and find.shapes["context"][:2] == [1, 1]
