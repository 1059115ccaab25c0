"""sd-cli draws any multiple of 8 with transformers: it fills the last patches, and cuts them off."""

import msgspec
import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.engines.registry import find
from refsd.golden.recipe import Recipe
from refsd.numerics.profiles import FLOAT64, GGML_CPU
from refsd.numerics.tensor import stored
from refsd.weights import recipes

pytestmark = pytest.mark.peer

ODD = 9, 13


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        path = folder / f"{model.family}-{model.type}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    return give


@pytest.mark.parametrize("name", ["flux/dev/256-tokens", "flux/fill/256-tokens"])
def test_an_odd_latent(model_files, name):
    """-W 104 -H 72: the network is given 9 x 13 latents, and answers as ours does to 10 x 14."""
    given = CASES[name].inputs["x"].shape
    case = msgspec.structs.replace(CASES[name], inputs={**CASES[name].inputs, "x": Recipe((*given[:2], *ODD))})
    engine = next(found.engine for found in find("sdcpp", model_files=model_files))
    inputs = case.realize()
    x = inputs["x"].values()
    whole = {**inputs, "x": stored(np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1))))}
    truth, honest = (
        Reference(numerics, model_files=model_files).run(case, whole)["out"][:, :, : ODD[0], : ODD[1]]
        for numerics in (FLOAT64, GGML_CPU)
    )
    theirs = engine.run(case, inputs)["out"]
    assert theirs.shape == truth.shape
    far = [np.linalg.norm(y.astype(np.float64) - truth) / np.linalg.norm(truth) for y in (theirs, honest)]
    assert far[0] <= 4 * far[1] + 1e-5, far
