"""Token ids, weights and sigmas are read back from graphs as sd-cli computes them."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines.sdcpp import stages
from refsd.engines.sdcpp.stand_ins import CLIP_L_GRAPH
from refsd.engines.sdcpp.tap import Graph
from refsd.golden.engine import EngineFailure
from refsd.models.vae.latents import LATENT_SCALES
from refsd.stages import STAGES

RNG = np.random.default_rng(3)
SIGMAS = np.array([14.61, 3.2, 0.7, 0.0])


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def call(t, context, x, eps):
    return Graph("unet", [np.array([t], np.float32), context, x.astype(np.float32)], eps.astype(np.float32))


def answer(op, graphs, **params):
    program = SimpleNamespace(run_tapped=lambda args: SimpleNamespace(graphs=graphs))
    return stages.run(program, lambda model, layout: Path("model"), op, params)


def sampled(sigmas):
    """The graphs of Euler's method over these levels."""
    x, graphs, context = 14.6 * drawn(4, 8, 8).astype(np.float64), [], drawn(77, 768)
    for i, (s, after) in enumerate(pairwise(sigmas)):
        eps = drawn(4, 8, 8).astype(np.float64)
        graphs.append(call(900 - i, context, x / np.sqrt(s * s + 1), eps))
        x = x + eps * (after - s)
    return [*graphs, Graph("vae", [(x / LATENT_SCALES["sd1"].factor).astype(np.float32)], drawn(3, 64, 64))]


SD = {"engine": "sdcpp", "levels": "sd", "schedule": "discrete", "steps": 3, "strength": 1.0}


def test_the_levels_of_a_run_are_solved_for():
    found = answer("stage/sigmas", sampled(SIGMAS), **SD)
    np.testing.assert_allclose(found["sigmas"], SIGMAS, rtol=3e-6)
    assert found["timesteps"].tolist() == [900, 899, 898]


def test_steps_that_are_not_eulers_have_no_levels():
    graphs = sampled(SIGMAS)
    graphs[1] = call(899, graphs[1].inputs[1], drawn(4, 8, 8), drawn(4, 8, 8))
    with pytest.raises(EngineFailure, match="no sigma makes an Euler step"):
        answer("stage/sigmas", graphs, **SD)


def test_the_weights_of_words_are_what_multiplies_their_hidden_states():
    weights = np.ones((2, 77))
    weights[0, 3:5], weights[1, 9] = 1.3, 0.8
    ids, hidden = RNG.integers(0, 49408, (2, 77)).astype(np.int32), drawn(2, 77, 768)
    context = (hidden * weights[..., None] * [[[0.98]], [[1.01]]]).reshape(154, 768).astype(np.float32)
    encoded = [Graph(CLIP_L_GRAPH, [drawn(77, 77), one], y) for one, y in zip(ids, hidden, strict=True)]
    x = drawn(4, 8, 8)
    found = answer("stage/clip_tokens", [*encoded, call(999, context, x, x)], prompt="a")
    assert np.array_equal(found["ids"], ids)
    np.testing.assert_allclose(found["weights"], weights, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("stage/clip_tokens/sdcpp-weights", None),
        ("stage/clip_tokens/a1111-weights", "as a1111 does"),
        ("stage/clip_tokens/sdcpp-padding-0-long", "SD 1's CLIP alone"),
        ("stage/sigmas/strength-sdcpp-n7", None),
        ("stage/sigmas/flow-discrete-n6", "levels of SD alone"),
        ("stage/tiles/sdcpp-odd", "of the stages it answers stage/clip_tokens, stage/sigmas"),
    ],
)
def test_the_rest_is_refused_by_name(name, why):
    case = CASES[name]
    refusal = stages.refuses(case.op, STAGES[case.op].complete(case.inputs, case.params))
    assert refusal is None if why is None else why in refusal
