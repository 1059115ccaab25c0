"""The judge of models, with recipe weights in a folder of its own."""

import pytest

from refsd.judges.model import ModelJudge
from refsd.weights import recipes


@pytest.fixture(scope="module")
def kind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        path = folder / f"{model.family}-{model.type}-{model.quiet}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    return ModelJudge(give)
