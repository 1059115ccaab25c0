"""The graphs of a picture that sd-cli drew, told apart by their shapes."""

from types import SimpleNamespace

import numpy as np
import pytest

from refsd.engines.sdcpp.picture import flags, tensors
from refsd.engines.sdcpp.tap import Graph, signature
from refsd.golden.engine import EngineFailure
from refsd.models.vae.latents import LatentScale
from refsd.pipelines.settings import Settings

PIPE = SimpleNamespace(autoencoder=SimpleNamespace(scale=LatentScale(0.5, 0.0, "here")))
PLAN = SimpleNamespace(latent_shape=(1, 4, 8, 6), height=64, width=48, guided=True)


def array(*shape):
    return np.full(shape, np.prod(shape), np.float32)


def graph(output, *inputs):
    return Graph(signature(inputs), sorted(inputs, key=lambda a: a.ndim), output)


CLIP = graph(array(77, 32), np.zeros(77, np.int32), array(77, 77))


def call(k, extra=()):
    return graph(array(4, 8, 6) + k, array(4, 8, 6), np.array([900 + k], np.float32), array(77, 32) + k, *extra)


DECODER = graph(array(3, 64, 48), array(4, 8, 6))


def test_calls_come_in_pairs_under_guidance():
    found = tensors([CLIP, CLIP, *(call(k) for k in range(4)), DECODER], PIPE, PLAN)
    assert found["cond"].shape == (1, 77, 32) and np.all(found["uncond"] == found["cond"] + 1)
    assert [found[f"calls.{k}.timesteps"][0] for k in (0, 1)] == [900, 902]
    assert np.all(found["calls.1.uncond"] == found["calls.1.cond"] + 1) and found["calls.1.x"].shape == (1, 4, 8, 6)
    assert found["image"].shape == (1, 3, 64, 48) and np.all(found["latent"] == 0.5 * array(4, 8, 6))
    assert "calls.2.x" not in found and "cond.y" not in found


def test_without_guidance_and_with_pooled_text():
    plan = SimpleNamespace(**{**vars(PLAN), "guided": False})
    found = tensors([CLIP, call(0, [array(20)]), DECODER], PIPE, plan)
    assert found["cond.y"].shape == (1, 20) and "uncond" not in found and "calls.0.uncond" not in found


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        ([CLIP, DECODER], "computed 0 graphs of latents and 1 of a picture"),
        ([call(0), DECODER], "computed 1 graphs of latents"),
        ([call(0), call(1)], "and 0 of a picture"),
        ([call(0, [array(5, 6)]), call(1), DECODER], "is not that of a UNet"),
    ],
)
def test_other_graphs_are_refused(graphs, said):
    with pytest.raises(EngineFailure, match=said):
        tensors(graphs, PIPE, PLAN)


def test_what_is_not_given_is_left_to_the_program():
    given = ["-p", "a cat", "--steps", "3", "--cfg-scale", "0.0", "-s", "0"]
    assert flags(Settings("a cat", steps=3, cfg_scale=0.0, seed=0)) == given
