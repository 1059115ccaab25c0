"""Norms of queries and keys: which is wrong, and in which stream, of an engine that shows outputs alone."""

import numpy as np
import pytest
from injection import Bug, Injected

from refsd.cases import CASES
from refsd.numerics.profiles import FLOAT32
from refsd.shrinking.failure import ask, runner_of
from refsd.weights.recipe_files import RecipeFiles

pytestmark = pytest.mark.jitted


class Closed(Injected):
    def run_tapped(self, case, inputs):
        return super().run_tapped(case, inputs)[0], {}


def _exchanged(stream, *pairs):
    """Weights of norms in a stream read from others. pairs: a norm and the one that is read for it"""

    def weights(right):
        return {
            name: right[next((name.replace(a, b) for a, b in pairs if stream in name and a in name), name)]
            for name in right
        }

    return Bug(weights=weights)


def _by_imagenet(inputs):
    """Pixels of -1..1 normalised by ImageNet's means and deviations."""
    mean, deviation = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).reshape(2, 3, 1, 1)
    return {**inputs, "x": ((0.5 * inputs["x"] + 0.5 - mean) / deviation).astype(inputs["x"].dtype)}


def _in_eights(inputs):
    at = np.arange(inputs["positions"].shape[1])
    return {**inputs, "positions": inputs["positions"][:, at - at // 8 * 8]}


@pytest.mark.parametrize(
    ("case", "change", "cause"),
    [
        (
            "qwen3-vl-8b-vision/qwen3_vision/wide",
            _by_imagenet,
            "pixels are normalised by ImageNet's statistics, not by 1/2 and 1/2",
        ),
        ("qwen3-vl-4b/qwen3_vl/image", _in_eights, "positions begin again with the first in each 8 tokens"),
    ],
)
def test_inputs_made_otherwise_are_told(case, change, cause, tmp_path):
    with RecipeFiles(tmp_path) as files:
        result = ask(runner_of(files), Injected(Bug(inputs=change), FLOAT32, files), CASES[case])
    assert result is not None and result.causes[:1] == (cause,), result.causes


Q, K = ".query_norm.", ".key_norm."


@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        (_exchanged("_blocks", (K, Q)), "the norm of k has the weights of q's"),
        (_exchanged("txt_attn", (Q, K)), "the norm of q has the weights of k's, of the text's stream"),
        (_exchanged("img_attn", (Q, K), (K, Q)), "the norms of q and k are swapped, of the picture's stream"),
        (_exchanged("_blocks", (Q, K), (K, Q)), "the norms of q and k are swapped"),
    ],
)
def test_the_wrong_norm_and_its_stream_are_named(bug, cause, tmp_path):
    with RecipeFiles(tmp_path) as files:
        result = ask(runner_of(files), Closed(bug, FLOAT32, files), CASES["flux-dev/flux/between"])
    assert result is not None and result.causes[:1] == (cause,), result.causes
