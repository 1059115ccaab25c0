import pytest

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.case import ModelRecipe
from refsd.golden.numerics import FLOAT64
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.prompts import Tokenizers
from refsd.weights import open_checkpoint, recipes


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A whole small model in a file."""
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    recipes.make(ModelRecipe("sd15", "f16", True), path)
    return path


@pytest.fixture(scope="session")
def sd(tiny):
    """The same in float64."""
    return open_pipeline(open_checkpoint(tiny), Tokenizers(), Arithmetic(FLOAT64), budget=1 << 30)
