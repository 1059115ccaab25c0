import pytest
import small_pictures

from refsd.golden.case import ModelRecipe
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import prompts
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.prompts import Tokenizers
from refsd.tokenizers import prompt as chunks
from refsd.weights import detect, open_checkpoint, recipes


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


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the parts of small_pictures are kept, a folder a family."""
    return tmp_path_factory.mktemp("parts")


@pytest.fixture
def letters(monkeypatch):
    """Their tokenizers, and what makes a small encoder bigG."""
    monkeypatch.setattr(detect, "_BIGG", small_pictures.BIGG)
    for module in (chunks, prompts):
        monkeypatch.setattr(module, "EOS", small_pictures.EOS)
    monkeypatch.setattr(chunks, "BOS", small_pictures.BOS)
    monkeypatch.setattr(prompts.Tokenizers, "clip", lambda self: small_pictures.Letters())
    monkeypatch.setattr(prompts.Tokenizers, "of", lambda self, part: small_pictures.Letters())
