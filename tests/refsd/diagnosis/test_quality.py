"""What storage types cost a model."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
from damaged_files import save

from refsd.adapters import Merged
from refsd.cli import main
from refsd.components import forward, load
from refsd.diagnosis.quality import Quantized, _rounding, decibels, measure, remarks
from refsd.diagnosis.ranges import drawn_inputs
from refsd.diagnosis.sampling_run import drawn_run
from refsd.files.storage import storage_of
from refsd.golden.case import ModelRecipe
from refsd.golden.named_numerics import named
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FP8_TENSOR, INT8_ROWS, MXFP4, MXFP8, NVFP4
from refsd.numerics.quantization import rounded
from refsd.numerics.tensor import stored
from refsd.pipelines.loaded_component import load_component
from refsd.weights import open_checkpoint, recipes
from refsd.weights.loras import open_loras


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recipes.make(ModelRecipe("zimage", "f32", True), tmp_path_factory.mktemp("m") / "a.safetensors")


@pytest.fixture(scope="module")
def loaded(path):
    m, params = load(open_checkpoint(path), "zimage", named("float32", []))
    return m, drawn_inputs("zimage", m), params


def storages(*names):
    return [storage_of(name) for name in names]


def test_fewer_bits_cost_more_and_a_matrix_helps(loaded):
    m, inputs, params = loaded
    rows = {
        (row.type, row.importance): row
        for row in measure("zimage", m, inputs, params, storages("q8_0", "q4_0", "q4_k"))
    }
    assert set(rows) == {
        ("q8_0", False),
        *((type, matrix) for type in ("q4_0", "q4_k") for matrix in (False, True)),
    }
    assert 1e-3 < rows["q8_0", False].error < min(rows["q4_k", False].error, rows["q4_0", False].error) < 0.5
    assert rows["q4_0", True].error < rows["q4_0", False].error
    for row in rows.values():
        errors = list(row.layers.values())
        assert errors == sorted(errors, reverse=True)
        assert "layers.0.feed_forward.w2" in row.layers
        assert "x_embedder" not in row.layers
    assert rows["q4_k", False].bits == 4.5


def test_embeddings_and_vectors_keep_their_type(loaded):
    m, _, _ = loaded
    weights = Quantized(m.weights, storage_of("q4_0"), {})
    for name in ("x_embedder.weight", "final_layer.linear.weight", "layers.0.attention_norm1.weight"):
        assert weights[name].type == "f32"
    ours = weights["layers.0.attention.out.weight"]
    exact = m.weights["layers.0.attention.out.weight"].values()
    assert ours.type == "q4_0"
    assert 0.01 < np.linalg.norm(ours.values() - exact) / np.linalg.norm(exact) < 0.15


def test_a_type_that_is_none():
    with pytest.raises(BadInput, match="--types q9_9: expected some of"):
        storage_of("q9_9")
    with pytest.raises(BadInput, match=r"--types q4_0\+int9: activations are int8, uint8, fp8"):
        storage_of("q4_0+int9")


def test_the_table(path, monkeypatch, capsys):
    for options in ((), ("--json",)):
        monkeypatch.setattr("sys.argv", ["refsd", "quality", str(path), "--types", "q8_0", *options])
        with pytest.raises(SystemExit) as exit:
            main()
        assert not exit.value.code
        out = capsys.readouterr().out
        if options:
            (row,) = json.loads(out)
            assert row["type"] == "q8_0"
            assert len(row["drift"]) == 4
        else:
            assert out.splitlines()[1].split()[:4] == ["q8_0", "no", "35", "8.5"]


class Sampling:
    """A run of one step: the latent is the output of the network."""

    def __init__(self, inputs, params):
        self.inputs, self.params = inputs, params

    def latents(self, m):
        return [forward("zimage", m, self.inputs, self.params)["out"]]


def test_the_drift_is_that_of_the_run_with_the_same_weights(loaded):
    m, inputs, params = loaded
    (row,) = measure("zimage", m, inputs, params, storages("q8_0"), Sampling(inputs, params))  # type: ignore[arg-type]
    assert row.drift == (row.error,)


def test_a_run_drifts_on_as_its_steps_go(path):
    checkpoint = open_checkpoint(path)
    loaded = load_component(checkpoint, "zimage", named("float32", []))
    inputs = drawn_inputs("zimage", loaded.module)
    run = drawn_run(checkpoint, loaded, inputs, 3)
    exact = run.latents(loaded.module)
    assert [x.shape for x in exact] == [inputs["x"].shape] * 3
    assert all(np.array_equal(x, y) for x, y in zip(exact, run.latents(loaded.module), strict=True))
    x, sigmas = exact[1], run.plan.sigmas
    one = {**inputs, "x": x, "timesteps": np.array([run.plan.levels.to_t(sigmas[2])])}
    velocity = -forward("zimage", loaded.module, one, loaded.params)["out"]  # Z-Image predicts data - noise
    np.testing.assert_allclose(exact[2], x + (sigmas[3] - sigmas[2]) * velocity, rtol=1e-4, atol=1e-5)
    row = next(measure("zimage", loaded.module, inputs, loaded.params, storages("q4_0"), run))
    assert 0 < row.drift[0] < row.drift[-1] < 1


def test_a_lora_is_merged_and_requantized_or_stays_beside(tmp_path):
    model = recipes.make(ModelRecipe("sd15", "f16", True), tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(model)
    key = "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
    O, K = checkpoint.components["unet"].weights.shapes[f"{key}.weight"]
    rng = np.random.default_rng(3)
    factors = {
        "lora_down.weight": rng.standard_normal((4, K)).astype(np.float32),
        "lora_up.weight": rng.standard_normal((O, 4)).astype(np.float32),
        "alpha": np.array(4.0, np.float32),
    }
    at = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    lora = save(tmp_path / "l.safetensors", {f"{at}.{name}": stored(x) for name, x in factors.items()})
    loaded = load_component(checkpoint, "unet", named("float32", []), open_loras([str(lora)], checkpoint))
    inputs = drawn_inputs("unet", loaded.module)
    merged, beside = measure("unet", loaded.module, inputs, loaded.params, storages("q8_0"))
    assert (merged.adapter, beside.adapter) == ("merged", "beside")
    # A rank of 4 times values of 1 is far larger than the weights: merged, its rounding is the layer's.
    assert merged.layers[key] > 0 and merged.error != beside.error
    weights = Quantized(Merged(loaded.module.weights, loaded.module.adapters), storage_of("q8_0"), {})
    exact = (
        loaded.module.weights[f"{key}.weight"].values() + factors["lora_up.weight"] @ factors["lora_down.weight"]
    )
    assert np.linalg.norm(weights[f"{key}.weight"].values() - exact) < 0.01 * np.linalg.norm(exact)


def test_what_is_left_of_a_lora_that_is_smaller_than_the_steps_of_a_quantized_file(tmp_path, monkeypatch, capsys):
    """The shares are computed again from gguf's own quantization of each layer."""
    model = recipes.make(ModelRecipe("flux2-klein", "q4_0", True), tmp_path / "m.gguf")
    rng, factors, left = np.random.default_rng(0), {}, []
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    for tensor in gguf.GGUFReader(model).tensors:
        if tensor.tensor_type != q4_0 or "blocks" not in tensor.name:
            continue
        weight = gguf.quants.dequantize(tensor.data, q4_0)
        a, b = rng.standard_normal((4, weight.shape[1])), rng.standard_normal((len(weight), 4))
        b *= 0.025 * np.linalg.norm(weight) / np.linalg.norm(b @ a)
        a, b = a.astype(np.float32), b.astype(np.float32)
        key = f"diffusion_model.{tensor.name.removesuffix('.weight')}"
        factors |= {f"{key}.lora_A.weight": stored(a), f"{key}.lora_B.weight": stored(b)}
        again = gguf.quants.dequantize(gguf.quants.quantize(weight + b @ a, q4_0), q4_0)
        left.append(float(((again - weight) * (b @ a)).sum() / ((b @ a) ** 2).sum()))
    lora = save(tmp_path / "l.safetensors", factors)
    command = ["refsd", "quality", str(model), "--types", "q4_0", "--steps", "0", "--lora", str(lora)]
    shown = []
    for options in (["--json"], []):
        monkeypatch.setattr("sys.argv", [*command, *options])
        with pytest.raises(SystemExit) as exit:
            main()
        assert not exit.value.code
        shown.append(capsys.readouterr().out)
    merged, beside, *_ = json.loads(shown[0])
    shares = list(merged["effects"].values())
    assert shares == pytest.approx(sorted(left), abs=0.005) and max(left) < 0.4  # gguf rounds a few codes otherwise
    assert not beside["effects"]
    assert f" {100 * shares[0]:.0f} to {100 * shares[-1]:.0f} %  " in shown[1].splitlines()[1]


def test_small_weights_become_zeros_in_nvfp4_blocks_and_the_layer_is_named(loaded):
    """ggml's NVFP4 has no scale of the tensor: groups of 16 weights that are all below 6 * 2^-10 become zeros."""
    m, inputs, params = loaded
    name = "layers.0.attention.out.weight"
    exact = m.weights[name].values()
    small = Module({**m.weights, name: stored(exact * np.float32(0.001 / exact.std()))}, m.arithmetic, m.prefix)
    rows = list(measure("zimage", small, inputs, params, storages("nvfp4", "nvfp4-w4a4", "mxfp4")))
    plain, scaled, mxfp4 = rows
    assert next(iter(plain.lost)) == "layers.0.attention.out" and plain.lost["layers.0.attention.out"] > 0.999
    assert plain.layers["layers.0.attention.out"] == 1
    assert not scaled.lost and not mxfp4.lost
    assert remarks(rows)[0].startswith("nvfp4: 100 % of the weights of layers.0.attention.out became")


def test_types_that_cover_fewer_layers_are_named(loaded):
    m, inputs, params = loaded
    rows = list(measure("zimage", m, inputs, params, storages("q4_k", "q8_0")))
    fewer, all_of_them = len(rows[0].layers), len(rows[-1].layers)
    assert 0 < fewer < all_of_them
    (remark,) = remarks(rows)
    assert remark.startswith(
        f"q4_k covers {fewer} of the {all_of_them} layers of q8_0: its rows are multiples of 256"
    )
    assert not remarks(rows[-1:])


def test_decibels():
    assert decibels(0.1) == pytest.approx(20)
    assert decibels(0.0) == float("inf")


PRODUCTS = {
    "comfy-int8": INT8_ROWS,
    "comfy-int8-convrot": replace(INT8_ROWS, rotation=256),
    "comfy-fp8": FP8_TENSOR,
    "nvfp4-w4a4": NVFP4,
    "mxfp8-w8a8": MXFP8,
    "mxfp4-w4a4": MXFP4,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_rounds_both_factors(name):
    """Weights are kept as the product's activations are rounded, and a layer is the product of both."""
    draw = np.random.default_rng(3).standard_normal
    w, x = draw((20, 512)).astype(np.float32), draw((2, 7, 512)).astype(np.float32)
    w[3, 5], x[1, 2, 9] = 40, -30
    storage = storage_of(name)
    kept = storage.keep(w, None)
    as_it_is = lambda y: y
    assert np.abs(kept.values() - rounded(w, PRODUCTS[name], as_it_is)).max() <= 3e-7 * 40
    arithmetic = _rounding(Arithmetic(FLOAT32), storage)
    found = arithmetic.linear(x, arithmetic.expand(kept), None, kept.product_type)
    want = rounded(x, PRODUCTS[name], as_it_is).astype(np.float64) @ rounded(w, PRODUCTS[name], as_it_is).T
    assert np.linalg.norm(found - want) <= 1e-6 * np.linalg.norm(want)
    assert np.linalg.norm(x @ w.T - want) >= 1e-3 * np.linalg.norm(want)


def test_activations_beside_a_block_type_cost_more(loaded):
    m, inputs, params = loaded
    types = ("q8_0", "q8_0+int8", "q8_0+uint8", "q8_0+nvfp4")
    rows = {row.type: row for row in measure("zimage", m, inputs, params, storages(*types))}
    assert rows["q8_0"].error < rows["q8_0+int8"].error < rows["q8_0+nvfp4"].error / 3
    # One scale for all rows, not one a row.
    assert rows["q8_0+int8"].error < rows["q8_0+uint8"].error < rows["q8_0+nvfp4"].error
    layer = "layers.0.feed_forward.w2"
    assert rows["q8_0"].layers[layer] < rows["q8_0+int8"].layers[layer] < rows["q8_0+nvfp4"].layers[layer]


def test_w4a8_is_int8_in_rotated_rows():
    """Codes of 4 bits, which cost 7 % of bell-shaped rows, become int8; activations are rotated and rounded."""
    draw = np.random.default_rng(4).standard_normal
    w, x = draw((20, 512)).astype(np.float32), draw((2, 7, 512)).astype(np.float32)
    storage = storage_of("w4a8")
    kept = storage.keep(w, None)
    assert kept.product_type == "i8/256" and storage.bits == 4.5
    assert 0.06 < np.linalg.norm(kept.values() - w) / np.linalg.norm(w) < 0.08
    arithmetic = _rounding(Arithmetic(FLOAT32), storage)
    found = arithmetic.linear(x, arithmetic.expand(kept), None, kept.product_type)
    how = replace(INT8_ROWS, rotation=256)
    want = rounded(x, how, lambda y: y).astype(np.float64) @ kept.values().T
    assert np.linalg.norm(found - want) <= 1e-6 * np.linalg.norm(want)
