"""FLUX.2 and its autoencoder against answers recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_flux2 as tiny
from tiny_models import sampled

from refsd.golden.recipe import realize
from refsd.models.flux2 import MISTRAL_LAYERS, QWEN3_LAYERS, flux2, pack, picture_ids, stacked, text_ids, unpack
from refsd.models.flux2.network import flux2_keymap
from refsd.models.vae_flux2 import decode, encode, to_denoiser, to_vae
from refsd.models.vae_flux2 import pack as pack_squares
from refsd.models.vae_flux2 import unpack as unpack_squares
from refsd.models.vae_flux2.network import flux2_vae_keymap, flux2_vae_original_keymap
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored
from refsd.weights.recipes import tensor_recipe

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "flux2.npz")
INPUTS, VAE_INPUTS = tiny.inputs(), tiny.inputs_vae()
WEIGHTS = {model: tiny.weights(model) for model in ("dev", "klein", "vae")}
ANSWERS = [f"{model}{more}" for model in ("dev", "klein") for more in ("", "/reference", "/references")]
ANSWERS += ["klein/cached"]


def run(answer, numerics=FLOAT64, weights=None, taps=None, rows=slice(None), **changed):
    model, _, more = answer.partition("/")
    m = Module(weights or WEIGHTS[model], Arithmetic(numerics), taps=taps)
    given = {name: x[rows] for name, x in (INPUTS | changed).items() if x is not None}
    first, second = m.store(given.pop("more/0")), m.store(given.pop("more/1"))
    reference = {"": None, "reference": first}.get(more, [first, second])
    for name in ("timesteps", "guidance"):
        if name in given:
            given[name] = given[name].astype(numerics.compute_dtype)
    given |= {name: m.store(given[name]) for name in ("x", "context")}
    return flux2(m, **given, reference=reference, axes_dim=tiny.AXES, cached_references=more == "cached")


def vae(numerics=FLOAT64, weights=None):
    return Module(weights or WEIGHTS["vae"], Arithmetic(numerics))


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_recorded_answers_of_diffusers(answer):
    y = run(answer)
    assert y.shape == INPUTS["x"].shape
    assert distance(sampled(y), RECORDED[answer]) <= 1e-12


def test_the_recorded_latent_and_picture():
    m = vae()
    latent, picture = (m.store(VAE_INPUTS[name]) for name in ("x", "picture"))
    assert distance(sampled(encode(m, picture, tiny.GROUPS)), RECORDED["vae/latent"]) <= 1e-12
    assert distance(sampled(decode(m, latent, tiny.GROUPS)), RECORDED["vae/picture"]) <= 1e-12


def test_every_answer_is_asked_for():
    mistral = [f"mistral/{mask}/{i}" for mask in ("whole", "padded") for i in range(tiny.MISTRAL.layers + 1)]
    assert sorted(RECORDED.files) == sorted([*ANSWERS, "vae/latent", "vae/picture", *mistral, "about"])


# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 1e-5, "torch-f16": 4e-3, "torch-bf16": 3e-2, "ggml-cpu": 2e-3, "ggml-cpu-flash": 2e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("answer", ["dev", "klein/references"])
def test_every_profile_runs_near_the_truth(answer, profile):
    numerics = PROFILES[profile]
    y = run(answer, numerics)
    assert y.dtype == numerics.storage_dtype
    assert 0 < distance(sampled(y), RECORDED[answer]) <= AWAY[profile]


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_encodes_and_decodes_near_the_truth(profile):
    m = vae(PROFILES[profile])
    for function, given, want in ((encode, "picture", "vae/latent"), (decode, "x", "vae/picture")):
        y = function(m, m.store(VAE_INPUTS[given]), tiny.GROUPS)
        assert y.dtype == PROFILES[profile].storage_dtype
        assert 0 < distance(sampled(y), RECORDED[want]) <= AWAY[profile]


@pytest.mark.jitted
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_items_of_a_batch_do_not_meet(answer):
    both = run(answer)
    for i in range(2):
        assert distance(run(answer, rows=slice(i, i + 1))[0], both[i]) <= 1e-13


@pytest.mark.parametrize("model", ("dev", "klein"))
def test_every_weight_is_used(model):
    weights = Read(WEIGHTS[model])
    run(model, weights=weights)
    assert weights.read == set(weights)


def test_every_weight_of_the_autoencoder_is_used():
    weights = Read(WEIGHTS["vae"])
    m = vae(weights=weights)
    decode(m, encode(m, m.store(VAE_INPUTS["picture"]), tiny.GROUPS), tiny.GROUPS)
    assert weights.read == set(weights)


def test_a_model_that_embeds_guidance_asks_for_it():
    with pytest.raises(BadInput, match="guidance"):
        run("dev", guidance=None)


@pytest.mark.jitted
def test_klein_takes_none():
    np.testing.assert_array_equal(run("klein"), run("klein", guidance=None))
    assert distance(run("dev", guidance=INPUTS["guidance"] + 1), run("dev")) > 1e-3


@pytest.mark.jitted
def test_a_reference_and_its_place_count():
    plain, one, two = (run(answer) for answer in ("klein", "klein/reference", "klein/references"))
    assert distance(one, plain) > 1e-3 and distance(two, one) > 1e-3
    turned = {"more/0": INPUTS["more/1"], "more/1": INPUTS["more/0"]}
    assert distance(run("klein/references", **turned), two) > 1e-6


def test_positions():
    x = np.zeros((2, 1, 3, 5))
    np.testing.assert_array_equal(picture_ids(x, 20)[6], [20, 1, 1, 0])
    np.testing.assert_array_equal(text_ids(3), [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2]])


def test_a_pixel_is_a_token():
    x = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    tokens = pack(x)
    np.testing.assert_array_equal(tokens[1, 7], x[1, :, 1, 2])
    np.testing.assert_array_equal(unpack(tokens, 4, 5), x)


def test_squares_are_channel_row_column():
    z = np.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    packed = pack_squares(z)
    want = [z[1, c, 2 + row, 4 + column] for c in range(3) for row in range(2) for column in range(2)]
    np.testing.assert_array_equal(packed[1, :, 1, 2], want)
    np.testing.assert_array_equal(unpack_squares(packed), z)


def test_the_statistics_are_those_of_the_packed_channels():
    rng = np.random.default_rng(0)
    z, mean, var = rng.standard_normal((2, 3, 4, 6)), rng.standard_normal(12), rng.uniform(0.5, 2, 12)
    m = Module({"bn.running_mean": stored(mean), "bn.running_var": stored(var)})
    x = to_denoiser(m, z)
    c, row, column = 2, 1, 0
    k = 4 * c + 2 * row + column
    want = (z[:, c, row::2, column::2] - mean[k]) / np.sqrt(var[k] + 1e-4)
    np.testing.assert_allclose(x[:, k], want, rtol=1e-13)
    np.testing.assert_allclose(to_vae(m, x), z, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sides", [(3, 4), (4, 3)])
def test_an_odd_latent_is_refused(sides):
    with pytest.raises(BadInput, match="even"):
        to_denoiser(vae(), np.zeros((1, tiny.VAE.latent_channels, *sides)))


def test_a_variance_below_zero_is_refused():
    var = np.array([1, -0.25, 1, 1])
    m = Module({"bn.running_mean": stored(np.zeros(4)), "bn.running_var": stored(var)})
    for function, x in ((to_denoiser, np.zeros((1, 1, 2, 2))), (to_vae, np.zeros((1, 4, 1, 1)))):
        with pytest.raises(BadInput, match=r'"bn\.running_var" holds -0\.25'):
            function(m, x)


def test_the_recipes_of_a_real_file_draw_variances():
    name, shape = "bn.running_var", (128,)
    assert realize(tensor_recipe(name, shape, "f32"), name).values().min() > 0


def test_taps():
    taps = Taps()
    run("dev/references", taps=taps)
    blocks = {f"double_blocks.{i}.{stream}" for i in range(2) for stream in range(2)}
    blocks |= {"single_blocks.0", "single_blocks.1"}
    assert blocks | {"time_in", "guidance_in", "final_layer"} <= set(taps)
    tokens = 3 * 5 + 2 * 4 + 3 * 1
    assert taps["double_blocks.1.0"].shape == (2, tokens, tiny.DEV.hidden)
    assert taps["single_blocks.1"].shape == (2, tiny.TEXT + tokens, tiny.DEV.hidden)
    assert taps["final_layer"].shape == (2, 3 * 5, tiny.DEV.in_channels)
    assert "" not in taps


def test_a_context_is_three_states_side_by_side():
    states = [np.full((2, 5, 4), i) for i in range(41)]
    assert stacked(states).shape == (2, 5, 12)
    np.testing.assert_array_equal(stacked(states)[1, 2], np.repeat(MISTRAL_LAYERS, 4))
    np.testing.assert_array_equal(stacked(states, QWEN3_LAYERS)[1, 2], np.repeat(QWEN3_LAYERS, 4))


def test_a_shallow_language_model_makes_no_context():
    with pytest.raises(BadInput, match="layer 30; the language model has 28"):
        stacked([np.zeros((1, 1, 1))] * 29)


KEYMAPS = {
    "dev": flux2_keymap(2, 2),
    "klein": flux2_keymap(2, 2),
    "vae": flux2_vae_keymap(2, 1),
    "vae as black-forest-labs names it": flux2_vae_original_keymap(),
}


@pytest.mark.parametrize("name", KEYMAPS)
def test_the_keymap_goes_there_and_back(name):
    weights = WEIGHTS[name.split()[0]]
    there = KEYMAPS[name].write(weights)
    sources, unread = KEYMAPS[name].sources(there)
    assert not unread
    assert set(sources) == set(weights)
    for ours, source in sources.items():
        tensor = source.read(there)
        assert tensor.shape == weights[ours].shape
        np.testing.assert_array_equal(stored(tensor.values()).data, weights[ours].data)


def test_both_places_of_the_quant_convolutions_are_read():
    keymap = flux2_vae_original_keymap()
    for name in ("quant_conv.weight", "encoder.quant_conv.weight"):
        assert list(keymap.sources([name])[0]) == ["quant_conv.weight"]
    for name in ("post_quant_conv.bias", "decoder.post_quant_conv.bias"):
        assert list(keymap.sources([name])[0]) == ["post_quant_conv.bias"]


def test_diffusers_keeps_the_last_scale_before_the_shift():
    name = "final_layer.adaLN_modulation.1.weight"
    weight = WEIGHTS["dev"][name]
    shift, scale = np.split(weight.data, 2)
    there = KEYMAPS["dev"].write({name: weight})["norm_out.linear.weight"]
    np.testing.assert_array_equal(there.data, np.concatenate([scale, shift]))
