"""Norms of queries and keys: which is wrong, and in which stream, of an engine that shows outputs alone."""

from unittest.mock import patch

import numpy as np
import pytest
from injection import Bug, Injected

from refsd.cases import CASES
from refsd.models import lumina2, zimage
from refsd.module import block
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


def test_an_attention_in_the_mlp_s_place_is_told(tmp_path):
    """Lumina 2's blocks are Z-Image's."""

    @block
    def twice(m, x, angle, eps, c=None, mask=None):
        parts = (None,) * 4 if c is None else np.split(zimage.modulation(m, c), 4, axis=-1)
        for scale, gate, name in ((*parts[:2], "attention"), (*parts[2:], "ffn")):
            h = zimage.norm(m, f"{name}_norm1", x, eps)
            h = zimage.attention(m["attention"], h if c is None else zimage.scaled(m, h, scale), angle, mask)
            h = zimage.norm(m, f"{name}_norm2", h, eps)
            x = m.add(x, h) if c is None else m.gated_add(x, h, m.apply(np.tanh, gate))
        return x

    bug = Bug(patched=lambda: patch.object(lumina2, "transformer_block", twice))
    with RecipeFiles(tmp_path) as files:
        result = ask(runner_of(files), Injected(bug, FLOAT32, files), CASES["lumina2/lumina2/masked"])
    assert result is not None
    assert result.causes[:1] == ("the attention is called again in the MLP's place",), result.causes


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
