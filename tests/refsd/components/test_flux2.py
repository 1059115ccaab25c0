"""FLUX.2's components: what they take, what they refuse in one line, and that they run what the page runs."""

import numpy as np
import pytest
import small_families as small
import tiny_flux2 as tiny
import tiny_text_encoders as text

from refsd.components import COMPONENTS
from refsd.components.checks import check
from refsd.models.flux2 import MISTRAL_LAYERS, QWEN3_LAYERS, flux2, stacked
from refsd.models.mistral import mistral
from refsd.models.qwen3 import qwen3
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

IDS = {"input_ids": tiny.IDS, "attention_mask": tiny.MASK}
GIVEN = {name: x for name, x in tiny.inputs().items() if not name.startswith("more")}
VAE_GIVEN = tiny.inputs_vae()
AXES = {"axes_dim": [*tiny.AXES]}
HEAD = {"head_dim": tiny.MISTRAL.head_dim}
CASES = {
    "flux2": ("klein", {name: x for name, x in GIVEN.items() if name != "guidance"}, AXES),
    "flux2-vae-encoder": ("vae", {"x": VAE_GIVEN["picture"]}, {"num_groups": tiny.GROUPS}),
    "flux2-vae-decoder": ("vae", {"z": VAE_GIVEN["x"]}, {"num_groups": tiny.GROUPS}),
    "mistral": ("mistral", IDS, HEAD),
}


def module(model):
    return Module(tiny.weights(model))


def refuse(name, model, inputs, params, match):
    with pytest.raises(BadInput, match=match) as error:
        check(name, COMPONENTS[name], module(model), inputs, params, "inputs")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", CASES)
def test_what_fits_is_taken(name):
    model, inputs, params = CASES[name]
    check(name, COMPONENTS[name], module(model), inputs, params, "inputs")


def test_dev_needs_a_guidance_and_klein_refuses_it():
    check("flux2", COMPONENTS["flux2"], module("dev"), GIVEN, AXES, "inputs")
    refuse("flux2", "dev", CASES["flux2"][1], AXES, "guidance .*needed: the weights embed one; 4 is usual")
    refuse("flux2", "klein", GIVEN, AXES, "guidance .*of no use: the weights do not embed it, as klein's")


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "match"),
    [
        ("flux2", "x", (2, 11, 3, 5), "C is 11, the model takes 12"),
        ("flux2", "context", (2, 5, 10), "E is 10, the model takes 11"),
        ("flux2", "timesteps", (3,), "N is 3 here and 2"),
        ("flux2-vae-encoder", "x", (2, 3, 12, 6), "W is 6, the model takes a multiple of 4"),
        ("flux2-vae-decoder", "z", (2, 3, 12, 6), "C is 3, the model takes 12"),
    ],
)
def test_what_does_not_fit_is_refused(name, tensor, shape, match):
    model, inputs, params = CASES[name]
    refuse(name, model, inputs | {tensor: np.zeros(shape, np.float32)}, params, match)


@pytest.mark.parametrize("head_dim", [3, 5, 40])
def test_heads_are_even_and_whole(head_dim):
    refuse("mistral", "mistral", IDS, {"head_dim": head_dim}, f"head_dim is {head_dim}, .* an even divisor of 20")


def test_mistral_gives_the_last_two():
    m = module("mistral")
    told = COMPONENTS["mistral"].run(m, **IDS, **HEAD)
    assert "context" not in told, "three layers are too few for FLUX.2's context"
    states = mistral(m, tiny.IDS, tiny.MASK, **HEAD)
    np.testing.assert_array_equal(told["last_hidden_state"], states[-1])
    np.testing.assert_array_equal(told["penultimate"], states[-2])


@pytest.mark.jitted
def test_the_contexts():
    weights = repeated(tiny.weights("mistral"), 31)
    got = COMPONENTS["mistral"].run(Module(weights), **IDS, **HEAD)["context"]
    want = stacked(mistral(Module(weights), tiny.IDS, tiny.MASK, **HEAD), MISTRAL_LAYERS)
    np.testing.assert_array_equal(got, want)
    weights = repeated(text.weights("qwen3"), 28)
    got = COMPONENTS["qwen3"].run(Module(weights), text.IDS, text.MASK)["context"]
    np.testing.assert_array_equal(got, stacked(qwen3(Module(weights), text.IDS, text.MASK), QWEN3_LAYERS))


def repeated(weights, layers):
    """The same first layer, over and over."""
    first = {name: tensor for name, tensor in weights.items() if ".layers.0." in name}
    others = {name: tensor for name, tensor in weights.items() if ".layers." not in name}
    return others | {n.replace(".0.", f".{i}.", 1): tensor for i in range(layers) for n, tensor in first.items()}


def test_a_picture_goes_there_and_back():
    m, groups = module("vae"), {"num_groups": tiny.GROUPS}
    latent = COMPONENTS["flux2-vae-encoder"].run(m, VAE_GIVEN["picture"].astype(np.float64), **groups)
    assert latent.shape == (2, 4 * tiny.VAE.latent_channels, 3, 2)
    assert COMPONENTS["flux2-vae-decoder"].run(m, latent, **groups).shape == VAE_GIVEN["picture"].shape


@pytest.mark.jitted
def test_references_in_their_order():
    """Each has its size; another order is another answer, and one that is left out is none."""
    size = small.FAMILIES["flux2-klein"]["flux2"]
    m = Module({name: stored(array) for name, array in small.weights("flux2", size).items()})
    rng = np.random.default_rng(8)
    x, first, second = (rng.standard_normal((2, 128, *shape)) for shape in ((2, 3), (1, 4), (3, 1)))
    plain = {"x": x, "timesteps": np.array([0.5, 0.25]), "context": rng.standard_normal((2, 3, size.context_dim))}
    run = COMPONENTS["flux2"].run
    want = flux2(m, **plain, reference=[first, second])
    np.testing.assert_array_equal(run(m, **plain, reference=first, reference_2=second), want)
    np.testing.assert_array_equal(run(m, **plain, reference=first, reference_4=second), want)
    assert not np.allclose(run(m, **plain, reference=second, reference_2=first), want)


@pytest.mark.parametrize("name", ["mistral", "qwen3"])
def test_the_hidden_states_that_are_asked_for(name):
    of = {"mistral": (tiny, HEAD, mistral), "qwen3": (text, {}, qwen3)}
    fixtures, params, model = of[name]
    m = Module(fixtures.weights(name))
    states = model(m, fixtures.IDS, fixtures.MASK, **params)
    told = COMPONENTS[name].run(m, fixtures.IDS, fixtures.MASK, layers=[2, 0], **params)
    assert told.keys() == {"hidden_states"}
    np.testing.assert_array_equal(told["hidden_states"], np.concatenate([states[2], states[0]], -1))
    for wrong, match in (
        ([-1], "param layers is"),
        (["a"], "param layers is"),
        ([9], "layer 9; the language model has"),
    ):
        with pytest.raises(BadInput, match=match):
            COMPONENTS[name].run(m, fixtures.IDS, fixtures.MASK, layers=wrong, **params)
