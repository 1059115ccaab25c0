"""Adapters on a whole small model: as it runs, and merged."""

import numpy as np
import pytest
import tiny_adapters
import tiny_models as tiny
from typer.testing import CliRunner

from refsd.adapters import Adapters, Applied, Merged, load, open_loras, parse
from refsd.cli import app
from refsd.components import forward
from refsd.golden.arithmetic import Arithmetic
from refsd.golden.deviations import DEVIATIONS
from refsd.golden.errors import BadInput
from refsd.golden.numerics import FLOAT64, GGML_CPU, TORCH_BF16
from refsd.golden.tensor import stored
from refsd.kernels.adapters import DoRA, LoRA
from refsd.module import Module, Taps
from refsd.weights import open_checkpoint, open_weights
from refsd.weights.adapter_kinds import KINDS, kind_of
from refsd.weights.adapter_names import Target

INPUTS = tiny.inputs()
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
    tensors, seen, turn = {}, set(), 0
    for part, prefix in (("unet", "diffusion_model."), ("clip", "text_encoder.")):
        shapes = tiny.SHAPES[part]
        for name, shape in shapes.items():
            key, _, leaf = name.rpartition(".")
            if leaf != "weight" or "embedding" in key:
                continue
            turn += 1
            kind = KINDS_IN_TURN[turn % len(KINDS_IN_TURN)]
            if min(shape) % 4 and kind in ("oft", "boft", "oft_peft", "boft_peft"):
                kind = "lokr"
            parts = tiny_adapters.parts(kind, shape, turn)
            if "diff_b" in parts and f"{key}.bias" not in shapes:
                del parts["diff_b"]
            seen.add(kind_of({tiny_part(p): stored(np.asarray(a)) for p, a in parts.items()}))
            tensors |= {f"{prefix}{key}.{p}": array for p, array in parts.items()}
    assert seen == set(KINDS)
    path = tmp_path_factory.mktemp("loras") / "everything.safetensors"
    tiny_adapters.save(path, tensors)
    return path


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
def test_running_is_merging(part, strength, model, everything):
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components[part].weights
    adapters = load([(file, strength) for file, _ in open_loras([str(everything)], checkpoint)], part, weights, F64)
    merged = run(part, Merged(weights, adapters))
    running = run(part, weights, adapters)
    assert distance(running, merged) < 1e-12
    measured = [a.adapter.measured for (a,) in adapters.layers.values() if isinstance(a.adapter, DoRA)]
    assert measured and all(lengths is not None for lengths in measured)
    assert distance(running, run(part, weights)) > 1e-2


def test_several_adapters_on_a_layer_refer_to_its_own_weight(model, everything):
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["clip"].weights
    twice = [(file, s) for s in (0.4, 0.3) for file, _ in open_loras([str(everything)], checkpoint)]
    adapters = load(twice, "clip", weights, F64)
    assert {len(applied) for applied in adapters.layers.values()} == {2}
    assert distance(run("clip", weights, adapters), run("clip", Merged(weights, adapters))) < 1e-12


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
def test_engines_round_inside_an_adapter(numerics, limit, model, everything):
    """Near the truth, not at it; and in the storage dtype."""
    checkpoint = open_checkpoint(model)
    weights = checkpoint.components["clip"].weights
    files = open_loras([str(everything) + ":0.3"], checkpoint)
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
def test_refsd_forward_applies_them(model, everything, tmp_path):
    tiny_adapters.save(tmp_path / "in.safetensors", INPUTS["unet"])
    outputs = {}
    for name, options in {
        "plain": [],
        "once": ["--lora", f"{everything}:0.6"],
        "twice": ["--lora", f"{everything}:0.6", "--lora", f"{everything}:-0.6"],
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
    adapters = load(open_loras([f"{everything}:0.6"], checkpoint), "unet", weights, F64)
    expected = run("unet", weights, adapters)
    np.testing.assert_allclose(outputs["once"]["out"].values(), expected, rtol=0, atol=1e-11)
    assert outputs["once"].metadata["loras"] == "everything.safetensors:0.6"
    assert distance(outputs["once"]["out"].values(), outputs["plain"]["out"].values()) > 1e-2
