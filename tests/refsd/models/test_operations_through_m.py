"""No model computes outside of its Module, where no numerics would round and no tap would see it."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.model.mutants import Change
from refsd.golden.judge import Mutant
from refsd.judges.model import ModelJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32
from refsd.weights import recipes

pytestmark = pytest.mark.jitted

# One case of each component, and those of families whose forward takes another path.
NAMES = (
    "sd21/unet/quiet",
    "sdxl/unet/between",
    "controlnet/controlnet/between",
    "controlnet-union/controlnet/kind",
    "sd35-medium/mmdit/first-step",
    "flux-dev/flux/reference",
    "chroma/chroma/masked",
    "lone/chroma-radiance/chroma-radiance/masked",
    "flux2-dev/flux2/reference",
    "flux3-distilled/flux3/jump",
    "zimage/zimage/masked",
    "ernie-image/ernie-image/masked",
    "lone/ideogram4/ideogram4/masked",
    "minimax-h3/minimax-h3/keyframes",
    "ltx23/ltx2/video",
    "lone/zimage-control/zimage/controlled",
    "lone/qwen-image-control/qwen-image/controlled",
    "flux-vae/vae-encoder/tall",
    "flux2-vae/flux2-vae-decoder/wide",
    "wan-vae/wan-vae-encoder/frames",
    "wan-vae/wan-vae-decoder/frames",
    "wan22-vae/wan22-vae-encoder/frames",
    "wan22-vae/wan22-vae-decoder/frames",
    "minimax-h3-vae/minimax-h3-vae-encoder/picture",
    "minimax-h3-vae/minimax-h3-vae-decoder/frames",
    "ltx2-vae/ltx2-vae-encoder/frames",
    "ltx-video-vae/ltx2-vae-decoder/frames",
    "qwen-image21-vae/qwen-image21-vae-encoder/tall",
    "qwen-image21-vae/qwen-image21-vae-decoder/wide",
    "taesd/tae-encoder/odd",
    "taesd/tae-decoder/outliers",
    "esrgan/esrgan/odd",
    "clip-g/clip_g/ended",
    "t5xxl/t5/padded",
    "qwen3-4b/qwen3/padded",
    "mistral-small/mistral/padded",
    "lone/ministral-3b/mistral/stretched",
)
# What gives weights: a model may look at them.
WEIGHTS = "expand", "borrow"


class Result(np.ndarray):
    """What an operation gave. NumPy's arithmetic on it is an error; moving its numbers is none."""

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        raise AssertionError(f"np.{ufunc.__name__} outside of the Module")

    def astype(self, dtype, **how):
        """A model that asks for float64 leaves the engine's numerics: T5's position bias and mask are added so."""
        y = super().astype(dtype, **how)
        return np.asarray(y) if dtype is np.float64 else y


class Watching(Arithmetic):
    """Every operation takes plain arrays and gives a Result."""

    def __init__(self, numerics):
        super().__init__(numerics)
        self.inside = False

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name.startswith("_") or name in WEIGHTS or not callable(value) or self.inside:
            return value

        def watched(*args, **kwargs):
            self.inside = True
            try:
                y = value(*map(_plain, args), **{key: _plain(x) for key, x in kwargs.items()})
            finally:
                self.inside = False
            return y.view(Result) if isinstance(y, np.ndarray) else y

        return watched


def _plain(x):
    return x.view(np.ndarray) if isinstance(x, Result) else x


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return lambda model, layout: recipes.make(model, folder / f"{model.family}.safetensors", layout)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_computes_through_its_module(model_files, name):
    case = CASES[name]
    watched = Mutant("watched", Change(Watching))
    y = ModelJudge(model_files).wrong_answer(case, case.realize(), watched)
    assert y is not None
    assert all(np.isfinite(_plain(part)).all() for part in y.values())


def test_arithmetic_on_a_result_is_seen():
    x = Watching(FLOAT32).silu(np.ones(3, np.float32))
    with pytest.raises(AssertionError, match="multiply outside"):
        np.multiply(x, 2)
