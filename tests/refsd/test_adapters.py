"""Adapters on a whole small model: as it runs, and merged."""

import numpy as np
import pytest
import tiny_adapters
import tiny_models as tiny
from typer.testing import CliRunner

from refsd.adapters import Adapters, Applied, Merged
from refsd.cli import app
from refsd.components import forward
from refsd.files.formats import open_weights
from refsd.kernels.adapters import DoRA, LoKr, LoRA
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, GGML_CPU, TORCH_BF16, TORCH_F16
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint
from refsd.weights.adapter_kinds import KINDS, kind_of
from refsd.weights.adapter_names import Target
from refsd.weights.loras import load, open_loras, parse

INPUTS = tiny.inputs()
TO_Q = "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
F64 = Arithmetic(FLOAT64)
KINDS_IN_TURN = list(tiny_adapters.LAYER_KINDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    tiny_adapters.save(path, {name: tensor.data for name, tensor in tiny.checkpoint().items()})
    return path


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Every layer of the UNet and of CLIP has an adapter, kinds in turn."""
    path, seen = on_every_layer(tmp_path_factory, KINDS_IN_TURN)
    assert seen == set(KINDS)
    return path


@pytest.fixture(scope="module")
def weakened(tmp_path_factory):
    """The same with kinds that know other strengths than 1."""
    return on_every_layer(tmp_path_factory, [kind for kind in KINDS_IN_TURN if not kind.endswith("peft")])[0]


def on_every_layer(tmp_path_factory, kinds):
    tensors, seen, turn = {}, set(), 0
    for part, prefix in (("unet", "diffusion_model."), ("clip", "text_encoder.")):
        shapes = tiny.SHAPES[part]
        for name, shape in shapes.items():
            key, _, leaf = name.rpartition(".")
            if leaf != "weight" or "embedding" in key:
                continue
            turn += 1
            kind = kinds[turn % len(kinds)]
            if min(shape) % 4 and kind in ("oft", "boft", "oft_peft", "boft_peft"):
                kind = "lokr"
            parts = tiny_adapters.parts(kind, shape, turn)
            if "diff_b" in parts and f"{key}.bias" not in shapes:
                del parts["diff_b"]
            seen.add(kind_of({tiny_part(p): stored(np.asarray(a)) for p, a in parts.items()}))
            tensors |= {f"{prefix}{key}.{p}": array for p, array in parts.items()}
    path = tmp_path_factory.mktemp("loras") / "everything.safetensors"
    tiny_adapters.save(path, tensors)
    return path, seen


def tiny_part(name):
    from refsd.weights.adapter_names import split

    return split(f"x.{name}")[1]


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def run(part, weights, adapters=None, arithmetic=F64):
    m = Module(weights, arithmetic, adapters=adapters)
    component = {"unet": "unet", "clip": "clip"}[part]
    return next(iter(forward(component, m, INPUTS[component], tiny.PARAMS.get(component)).values()))


@pytest.mark.parametrize("part", ["unet", "clip"])
@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_running_is_merging(part, strength, model, everything, weakened):
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components[part].weights
    path = everything if strength == 1 else weakened
    adapters = load([(file, strength) for file, _ in open_loras([str(path)], checkpoint)], part, weights, F64)
    merged = run(part, Merged(weights, adapters))
    running = run(part, weights, adapters)
    assert distance(running, merged) < 1e-12
    measured = [a.adapter.measured for (a,) in adapters.layers.values() if isinstance(a.adapter, DoRA)]
    assert measured and all(lengths is not None for lengths in measured)
    assert distance(running, run(part, weights)) > 1e-2


def test_several_adapters_on_a_layer_refer_to_its_own_weight(model, weakened):
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["clip"].weights
    twice = [(file, s) for s in (0.4, 0.3) for file, _ in open_loras([str(weakened)], checkpoint)]
    adapters = load(twice, "clip", weights, F64)
    assert {len(applied) for applied in adapters.layers.values()} == {2}
    assert distance(run("clip", weights, adapters), run("clip", Merged(weights, adapters))) < 1e-12


@pytest.mark.parametrize(("rule", "in_turn"), [("comfyui", True), ("a1111", True), ("lycoris", False)])
@pytest.mark.parametrize("layer", [TO_Q, "input_blocks.1.1.proj_in"])
def test_in_turn_or_each_on_the_layers_own_weight(layer, rule, in_turn, model, tmp_path):
    """ComfyUI and A1111 patch a weight again and again: a DoRA and an OFT see what was patched before."""
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["unet"].weights
    shape = weights.shapes[f"{layer}.weight"]
    for name, kind in (("a", "lora"), ("b", "dora"), ("c", "oft")):
        parts = tiny_adapters.parts(kind, shape, ord(name))
        tensors = {f"diffusion_model.{layer}.{p}": array for p, array in parts.items()}
        tiny_adapters.save(tmp_path / f"{name}.safetensors", tensors)
    loras = [f"{tmp_path / name}.safetensors:{s}" for name, s in (("a", 0.8), ("b", 0.7), ("c", -0.5))]
    adapters = load(open_loras(loras, checkpoint, rule), "unet", weights, F64)
    own = np.array(weights[f"{layer}.weight"].values(), np.float64)
    want = own.copy()
    for applied in adapters.layers[layer]:
        want += applied.adapter.delta(want if in_turn else own, applied.strength)
    merged = Merged(weights, adapters)
    assert distance(merged[f"{layer}.weight"].values(), want) < 1e-14
    assert distance(run("unet", weights, adapters), run("unet", merged)) < 1e-12
    assert distance(run("unet", weights, adapters), run("unet", weights)) > 1e-3


@pytest.mark.parametrize(("first", "count", "rows"), [(4, 4, range(4, 8)), (6, 12, [*range(6, 12), *range(6)])])
def test_rows_of_a_layer(first, count, rows):
    """q, k or v alone; and halves that stand the other way round."""
    rng = np.random.default_rng(1)
    weight, x = rng.standard_normal((12, 5)), rng.standard_normal((2, 3, 5))
    lora = LoRA(rng.standard_normal((2, 5)), rng.standard_normal((count, 2)))
    adapters = Adapters({"qkv": [Applied(lora, 0.5, target=Target("x", "qkv", first, count))]}, F64)
    weights = {"qkv.weight": stored(weight)}
    want = x @ weight.T
    want[..., list(rows)] += 0.5 * x @ (lora.up @ lora.down).T
    assert distance(Module(weights, F64, adapters=adapters).linear("qkv", x), want) < 1e-14
    assert distance(Module(Merged(weights, adapters), F64).linear("qkv", x), want) < 1e-14


def test_a_tap_sees_the_adapted_output(model, everything):
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["clip"].weights
    adapters = load(open_loras([str(everything)], checkpoint), "clip", weights, F64)
    seen = []
    for of, applied in ((weights, adapters), (Merged(weights, adapters), None)):
        taps = Taps(ops=True)
        forward("clip", Module(of, F64, taps=taps, adapters=applied), INPUTS["clip"], tiny.PARAMS["clip"])
        seen.append(taps)
    assert list(seen[0]) == list(seen[1]) and len(seen[0]) > 20
    assert all(distance(seen[0][name], seen[1][name]) < 1e-12 for name in seen[0])


@pytest.mark.parametrize(("numerics", "limit"), [(TORCH_BF16, 0.05), (GGML_CPU, 0.01)])
def test_engines_round_inside_an_adapter(numerics, limit, model, weakened):
    """Near the truth, not at it; and in the storage dtype."""
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["clip"].weights
    files = open_loras([str(weakened) + ":0.3"], checkpoint)
    truth = run("clip", weights, load(files, "clip", weights, F64))
    arithmetic = Arithmetic(numerics)
    got = run("clip", weights, load(files, "clip", weights, arithmetic), arithmetic)
    assert got.dtype == numerics.storage_dtype
    assert 1e-9 < distance(got.astype(np.float64), truth) < limit


SHAPES_OF_RANK_ONE = {
    "lora": ({"lora_down.weight": (1, 32), "lora_up.weight": (32, 1)}, 32),
    "loha": ({f"hada_w{h}_{side}": (32, 1) if side == "a" else (1, 32) for h in (1, 2) for side in "ab"}, 32),
    "lokr-w2": ({"lokr_w1": (4, 4), "lokr_w2_a": (8, 1), "lokr_w2_b": (1, 8)}, 8),
    "lokr-w1": ({"lokr_w1_a": (4, 1), "lokr_w1_b": (1, 4), "lokr_w2": (8, 8)}, 4),
}


@pytest.mark.parametrize("kind", SHAPES_OF_RANK_ONE)
def test_the_rank_one_deviation(kind, model, tmp_path):
    """stable-diffusion.cpp divides alpha by the columns where the rank is 1."""
    rng = np.random.default_rng(0)
    shapes, columns = SHAPES_OF_RANK_ONE[kind]
    tensors = {part: rng.standard_normal(shape, np.float32) for part, shape in shapes.items()}
    at = "lora_unet_input_blocks_1_1_transformer_blocks_0_attn1_to_q"
    tensors = {f"{at}.{part}": array for part, array in (tensors | {"alpha": np.float32(3)}).items()}
    tiny_adapters.save(tmp_path / "a.safetensors", tensors)
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["unet"].weights
    scales = []
    for deviations in ((), (DEVIATIONS["sdcpp/rank-one"],)):
        files = open_loras([str(tmp_path / "a.safetensors")], checkpoint)
        adapters = load(files, "unet", weights, Arithmetic(FLOAT64, deviations))
        ((applied,),) = adapters.layers.values()
        scales.append(applied.adapter.scale)
    assert scales == [3.0, 3.0 / columns]


def test_lycoris_adds_its_epsilon_in_the_compute_type(model, everything):
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["unet"].weights
    adapters = load(open_loras([str(everything)], checkpoint), "unet", weights, F64)
    found = [applied.adapter for (applied,) in adapters.layers.values() if isinstance(applied.adapter, DoRA)]
    assert {a.eps for a in found} == {np.finfo(np.float64).eps} and {a.on_input for a in found} == {True, False}


def test_a_command_lines_words():
    assert parse("a.safetensors") == ("a.safetensors", 1.0) or parse("a.safetensors").strength == 1.0
    assert parse("a.safetensors:0.5").strength == 0.5 and str(parse("a.safetensors:0.5").path) == "a.safetensors"
    assert parse("a:-1").strength == -1
    assert str(parse("C:/a.safetensors").path) == "C:/a.safetensors"
    for wrong in ("a.safetensors:much", "a.safetensors:", "a.safetensors:nan"):
        with pytest.raises(BadInput, match="expected FILE or FILE:STRENGTH"):
            parse(wrong)


@pytest.mark.jitted
def test_refsd_forward_applies_them(model, weakened, tmp_path):
    tiny_adapters.save(tmp_path / "in.safetensors", INPUTS["unet"])
    dora, parts = tmp_path / "dora.safetensors", tiny_adapters.parts("dora", (32, 32), 1)
    tiny_adapters.save(dora, {f"diffusion_model.{TO_Q}.{part}": array for part, array in parts.items()})
    outputs = {}
    for name, options in {
        "plain": [],
        "once": ["--lora", f"{weakened}:0.6"],
        "twice": ["--lora", f"{weakened}:0.6", "--lora", f"{weakened}:-0.6"],
        "by a rule": ["--lora", f"{dora}:0.6", "--lora-rule", "comfyui"],
        "by another": ["--lora", f"{dora}:0.6"],
    }.items():
        out = tmp_path / f"{name}.safetensors"
        arguments = [
            "forward",
            model,
            "--component",
            "unet",
            "-i",
            tmp_path / "in.safetensors",
            "-o",
            out,
            *options,
        ]
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        outputs[name] = open_weights(out)
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["unet"].weights
    adapters = load(open_loras([f"{weakened}:0.6"], checkpoint), "unet", weights, F64)
    expected = run("unet", weights, adapters)
    np.testing.assert_allclose(outputs["once"]["out"].values(), expected, rtol=0, atol=1e-11)
    assert outputs["once"].metadata["loras"] == "everything.safetensors:0.6"
    assert [outputs[name].metadata["lora_rule"] for name in ("once", "by a rule")] == ["trainer", "comfyui"]
    adapters = load(open_loras([f"{dora}:0.6"], checkpoint, "comfyui"), "unet", weights, F64)
    ruled = outputs["by a rule"]["out"].values()
    np.testing.assert_allclose(ruled, run("unet", weights, adapters), rtol=0, atol=1e-11)
    assert distance(outputs["by another"]["out"].values(), ruled) > 1e-4
    with pytest.raises(BadInput, match="--lora-rule kohya: expected one of trainer, lycoris, peft, comfyui"):
        open_loras([str(dora)], checkpoint, "kohya")
    assert distance(outputs["once"]["out"].values(), outputs["plain"]["out"].values()) > 1e-2


def _half(y):
    return np.asarray(y).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("kind", ["lora", "lokr"])
def test_half_precision_rounds_each_operation(kind):
    """As PEFT's layers do: LoRA's two products, its scale and the sum; LoKr's delta, its scale, product and sum."""
    rng = np.random.default_rng(3)
    x, weight, w1, w2 = (_half(rng.standard_normal(shape)) for shape in ((5, 12), (6, 12), (2, 3), (3, 4)))
    down, up = _half(rng.standard_normal((4, 12))), _half(rng.standard_normal((6, 4)))
    y = _half(x @ weight.T)
    if kind == "lora":
        adapter = LoRA(down, up, scale=0.7)
        wide = _half(_half(_half(x @ down.T) @ up.T) * np.float32(0.35))
    else:
        adapter = LoKr(w1, w2, scale=0.7)
        wide = _half(x @ _half(_half(np.kron(w1, w2)) * np.float32(0.35)).T)
    adapters = Adapters({"layer": [Applied(adapter, 0.5)] * 2}, Arithmetic(TORCH_F16))
    out = adapters.linear("layer", x.astype(np.float16), y.astype(np.float16), weight, None)
    assert out.dtype == np.float16
    np.testing.assert_array_equal(out, _half(_half(y + wide) + wide))
