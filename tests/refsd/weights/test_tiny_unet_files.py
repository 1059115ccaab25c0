"""Single files of tiny SD and SDXS: the numbers have gaps; SDXS-09's widest level looks at the text only."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.components import forward, load
from refsd.models.ip_adapter import Prompt
from refsd.models.unet import transformer_block
from refsd.models.unet.network import unet_keymap
from refsd.models.unet.tensors import UNetSize
from refsd.models.unet.tiny_names import tiny_unet_keymap
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

TINY_SD = UNetSize(32, (32, 64, 64), (0, 1, 2), 1, 24, middle=None)
SIZES = {
    "tiny-sd": TINY_SD,
    "sdxs-512": TINY_SD._replace(attention=(1, 2)),
    "sdxs-09": TINY_SD._replace(channels=64, widths=(64, 128, 128), context_dim=40, linear=True, cross_only=(0,)),
}
UNET = "model.diffusion_model."
INPUTS = {
    "x": np.random.default_rng(1).standard_normal((2, 4, 4, 8)),
    "timesteps": np.array([3.5, 800.0]),
}


def script_names(name, first_level_out):
    """diffusers' names -> the script's, written from the script's replacements. A second opinion on the table."""
    for theirs, ours in (
        *((f"down_blocks.{i}.resnets.0.", f"input_blocks.{3 * i + 1}.0.") for i in range(3)),
        *((f"down_blocks.{i}.attentions.0.", f"input_blocks.{3 * i + 1}.1.") for i in range(3)),
        *((f"down_blocks.{i}.downsamplers.0.conv.", f"input_blocks.{3 * i + 3}.0.op.") for i in range(3)),
        *((f"up_blocks.{i}.resnets.{j}.", f"output_blocks.{3 * i + j}.0.") for i in range(3) for j in range(2)),
        *(
            (f"up_blocks.{i}.attentions.{j}.", f"output_blocks.{3 * i + j}.1.")
            for i in range(0 if first_level_out else 1, 3)
            for j in range(2)
        ),
        *((f"up_blocks.{i}.upsamplers.0.", f"output_blocks.{3 * i + 2}.{1 if i == 0 else 2}.") for i in range(3)),
        ("time_embedding.linear_1", "time_embed.0"),
        ("time_embedding.linear_2", "time_embed.2"),
        ("conv_in.", "input_blocks.0.0."),
        ("conv_norm_out.", "out.0."),
        ("conv_out.", "out.2."),
    ):
        if name.startswith(theirs):
            name = ours + name[len(theirs) :]
            break
    for theirs, ours in (
        (".norm1.", ".in_layers.0."),
        (".conv1.", ".in_layers.2."),
        (".norm2.", ".out_layers.0."),
        (".conv2.", ".out_layers.3."),
        (".time_emb_proj.", ".emb_layers.1."),
        (".conv_shortcut.", ".skip_connection."),
    ):
        if name.split(".")[2] == "0" and ".transformer_blocks." not in name:
            name = name.replace(theirs, ours)
    return name


def answer(path, context):
    checkpoint = open_checkpoint(path)
    m, params = load(checkpoint, "unet", Arithmetic(FLOAT64))
    return checkpoint, forward("unet", m, {**INPUTS, "context": context}, params)["out"]


@pytest.mark.jitted
@pytest.mark.parametrize("first_level_out", [True, False], ids=["sd.cpp's names", "the script's names"])
@pytest.mark.parametrize("name", SIZES)
def test_a_converted_file_is_the_folder_it_was_made_of(tmp_path, name, first_level_out):
    size = SIZES[name]
    arrays = small.weights("unet", size)
    theirs = unet_keymap(3, 1, size.attention).write({n: stored(a) for n, a in arrays.items()})
    converted = {
        UNET + script_names(n, first_level_out): np.ascontiguousarray(t.values()) for n, t in theirs.items()
    }
    numbers = {int(n.split(".")[3]) for n in converted if n.startswith(f"{UNET}input_blocks.")}
    assert numbers == {0, 1, 3, 4, 6, 7}
    save_file(converted, tmp_path / "converted.safetensors")
    save_file({UNET + n: a for n, a in arrays.items()}, tmp_path / "ours.safetensors")
    context = np.random.default_rng(2).standard_normal((2, 5, size.context_dim))
    checkpoint, got = answer(tmp_path / "converted.safetensors", context)
    assert checkpoint.components["unet"].size == size
    np.testing.assert_array_equal(got, answer(tmp_path / "ours.safetensors", context)[1])


@pytest.mark.parametrize("name", SIZES)
def test_round_trip(name):
    size = SIZES[name]
    arrays = {n: stored(a) for n, a in small.weights("unet", size).items()}
    keymap = tiny_unet_keymap(3, size.attention)
    written = keymap.write(arrays)
    found, rest = keymap.sources(written)
    assert rest == []
    assert {n: source.read(written) for n, source in found.items()}.keys() == arrays.keys()
    assert all(found[n].read(written) is tensor for n, tensor in arrays.items())


def test_where_attn1_takes_the_text_it_looks_at_the_text():
    """Against the equations, written again: two attentions over the text, 2 heads."""
    rng = np.random.default_rng(3)
    D, E, L, J, heads = 8, 5, 6, 3, 2
    w = {f"{at}.to_{part}.weight": rng.standard_normal((D, D if part == "q" else E)) for at in ("attn1", "attn2")
         for part in "qkv"}  # fmt: skip
    for at in ("attn1", "attn2"):
        w |= {f"{at}.to_out.0.weight": rng.standard_normal((D, D)), f"{at}.to_out.0.bias": rng.standard_normal(D)}
    for i in (1, 2, 3):
        w |= {f"norm{i}.weight": rng.standard_normal(D), f"norm{i}.bias": rng.standard_normal(D)}
    w |= {"ff.net.0.proj.weight": np.zeros((8 * D, D)), "ff.net.0.proj.bias": np.zeros(8 * D)}
    w |= {"ff.net.2.weight": np.zeros((D, 4 * D)), "ff.net.2.bias": np.zeros(D)}
    x, context = rng.standard_normal((2, L, D)), rng.standard_normal((2, J, E))
    m = Module({name: stored(array) for name, array in w.items()}, Arithmetic(FLOAT64))
    got = transformer_block(m, x, Prompt(context), heads)

    for i, at in enumerate(("attn1", "attn2"), 1):
        centred = x - x.mean(-1, keepdims=True)
        h = (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"norm{i}.weight"]
            + w[f"norm{i}.bias"]
        )
        q = (h @ w[f"{at}.to_q.weight"].T).reshape(2, L, heads, -1)
        k, v = ((context @ w[f"{at}.to_{part}.weight"].T).reshape(2, J, heads, -1) for part in "kv")
        weight = np.exp(np.einsum("nlhd,njhd->nhlj", q, k) / np.sqrt(D // heads))
        weight /= weight.sum(-1, keepdims=True)
        y = np.einsum("nhlj,njhd->nlhd", weight, v).reshape(2, L, D)
        x = x + y @ w[f"{at}.to_out.0.weight"].T + w[f"{at}.to_out.0.bias"]
    np.testing.assert_allclose(got, x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("said", "holds"),
    [([True, False, False], True), (None, False), (True, False), ([True, True, False], False), ("yes", False)],
)
def test_what_config_says_of_it_must_be_what_the_shapes_say(tmp_path, said, holds):
    size = SIZES["sdxs-09"]
    arrays = small.weights("unet", size)
    theirs = unet_keymap(3, 1, size.attention).write({n: stored(a) for n, a in arrays.items()})
    (tmp_path / "unet").mkdir()
    save_file(
        {n: np.ascontiguousarray(t.values()) for n, t in theirs.items()},
        tmp_path / "unet" / "diffusion_pytorch_model.safetensors",
    )
    config = {"use_linear_projection": True, "attention_head_dim": [1, 2, 2], "mid_block_type": None}
    if said is not None:
        config["only_cross_attention"] = said
    (tmp_path / "unet" / "config.json").write_text(json.dumps(config))
    if holds:
        assert open_checkpoint(tmp_path).components["unet"].size == size
        return
    with pytest.raises(BadInput, match=r"only_cross_attention is .*; the shapes .* say .True, False, False.$"):
        open_checkpoint(tmp_path)
