"""FLUX.1 and Chroma against answers recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_flux
import tiny_models as tiny

from refsd.models.chroma import chroma, seen
from refsd.models.chroma.network import chroma_keymap
from refsd.models.flux import flux, grid_ids, pack, unpack
from refsd.models.flux.network import flux_keymap
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "flux.npz")
INPUTS = tiny_flux.inputs()
MODELS = {"flux": flux, "chroma": chroma}
WEIGHTS = {model: tiny_flux.weights(model) for model in MODELS}
KEYMAPS = {"flux": flux_keymap(2, 2), "chroma": chroma_keymap(2, 2, 2)}
ANSWERS = ["flux", "flux/reference", "chroma", "chroma/mask"]


def run(answer, numerics=FLOAT64, weights=None, taps=None, rows=slice(None), **changed):
    """The optional argument that an answer is not named after is left out."""
    model, _, given = answer.partition("/")
    m = Module(weights or WEIGHTS[model], Arithmetic(numerics), taps=taps)
    values = {
        name: x[rows]
        for name, x in INPUTS[model].items()
        if name not in ("context_mask", "reference") or (given and name.endswith(given))
    }
    values |= changed
    for name, x in values.items():
        if name in ("timesteps", "guidance") and x is not None:
            values[name] = x.astype(numerics.compute_dtype)
        elif name not in ("context_mask", "guidance"):
            values[name] = m.store(x)
    return MODELS[model](m, **values, axes_dim=tiny_flux.AXES)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_recorded_answers_of_diffusers(answer):
    y = run(answer)
    assert y.shape == INPUTS["flux"]["x"].shape
    assert distance(tiny.sampled(y), RECORDED[answer]) <= 1e-12


def test_every_answer_is_asked_for():
    assert sorted(RECORDED.files) == sorted([*ANSWERS, "about"])


# What a profile may be away from the truth: a few times what it measures here. Chroma numbers its modulation by
# angles that float32 does not hold.
AWAY = {"float32": 1e-5, "torch-f16": 4e-3, "torch-bf16": 2e-2, "ggml-cpu": 1e-3, "ggml-cpu-flash": 1e-3}
AWAY_CHROMA = AWAY | {"float32": 2e-4}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_profile_runs_near_the_truth(answer, profile):
    numerics = PROFILES[profile]
    y = run(answer, numerics)
    assert y.dtype == numerics.storage_dtype
    bound = (AWAY_CHROMA if answer.startswith("chroma") else AWAY)[profile]
    assert 0 < distance(tiny.sampled(y), RECORDED[answer]) <= bound


@pytest.mark.jitted
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_items_of_a_batch_do_not_meet(answer):
    both = run(answer)
    for i in range(2):
        assert distance(run(answer, rows=slice(i, i + 1))[0], both[i]) <= 1e-13


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("model", MODELS)
def test_every_weight_is_used(model):
    weights = Read(WEIGHTS[model])
    run(model, weights=weights)
    assert weights.read == set(weights)


def test_packing_is_channel_row_column():
    x = np.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    tokens = pack(x)
    want = [x[1, c, 2 + row, 4 + column] for c in range(3) for row in range(2) for column in range(2)]
    np.testing.assert_array_equal(tokens[1, 5], want)  # the second row's third
    np.testing.assert_array_equal(unpack(tokens, 4, 6), x)
    np.testing.assert_array_equal(grid_ids(4, 6, index=1)[5], [1, 1, 2])


def test_a_model_that_embeds_guidance_asks_for_it():
    with pytest.raises(BadInput, match="guidance"):
        run("flux", guidance=None)


def test_schnell_takes_none():
    weights = {name: tensor for name, tensor in WEIGHTS["flux"].items() if not name.startswith("guidance_in")}
    np.testing.assert_array_equal(run("flux", weights=weights), run("flux", weights=weights, guidance=None))


def test_taps():
    taps = Taps()
    run("flux/reference", taps=taps)
    blocks = {f"double_blocks.{i}.{stream}" for i in range(2) for stream in range(2)}
    blocks |= {"single_blocks.0", "single_blocks.1"}
    assert blocks | {"time_in", "guidance_in", "vector_in", "final_layer"} <= set(taps)
    assert taps["double_blocks.1.0"].shape == (2, 15 + 2, tiny_flux.D)
    assert taps["single_blocks.1"].shape == (2, tiny_flux.TEXT + 15 + 2, tiny_flux.D)
    assert taps["final_layer"].shape == (2, 15, 4 * tiny_flux.CHANNELS)
    assert "" not in taps
    taps = Taps()
    run("chroma", taps=taps)
    assert blocks | {"distilled_guidance_layer"} <= set(taps)
    assert taps["distilled_guidance_layer"].shape == (3 * 2 + 12 * 2 + 2, 2, tiny_flux.D)


def test_what_chroma_does_not_see_does_not_matter():
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    context = INPUTS["chroma"]["context"].copy()
    context[1, 3:] += 1
    changed, plain = run("chroma/mask", context=context), run("chroma/mask")
    np.testing.assert_allclose(changed, plain, rtol=0, atol=1e-14 * np.abs(plain).max())
    assert distance(run("chroma", context=context)[1], run("chroma")[1]) > 1e-3
    np.testing.assert_array_equal(run("chroma/mask", context_mask=mask.astype(np.float32)), plain)


def test_chroma_sees_the_first_pad():
    np.testing.assert_array_equal(
        seen([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]), [[True, True, True, False, False], [True] * 5]
    )


@pytest.mark.parametrize("model", MODELS)
def test_the_keymap_goes_there_and_back(model):
    rows = tiny_flux.rows()
    there = KEYMAPS[model].write(WEIGHTS[model], rows)
    sources, unread = KEYMAPS[model].sources(there)
    assert not unread
    assert set(sources) == set(WEIGHTS[model])
    for name, source in sources.items():
        np.testing.assert_array_equal(stored(source.read(there).values()).data, WEIGHTS[model][name].data)
