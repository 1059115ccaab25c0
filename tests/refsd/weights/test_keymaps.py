"""Both directions of every table, and the few names on which all else hangs, spelled out."""

import numpy as np
import pytest
from sd15_shapes import sd15_shapes

from refsd.models.clip.network import CLIPSize, clip_keymap, clip_shapes
from refsd.models.flux.network import flux_keymap
from refsd.models.unet.network import unet_keymap
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.models.vae.network import VAESize, vae_keymap, vae_original_keymap, vae_shapes
from refsd.networks.keymap import CONCAT
from refsd.numerics.tensor import StoredTensor, stored


def numbered(shapes):
    """A distinct small tensor for each name: the first axis is kept, so that what is split stays told apart."""
    rng = np.random.default_rng(0)
    return {name: stored(rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}


def round_trip(keymap, weights, rows=None):
    theirs = keymap.write(weights, rows)
    sources, rest = keymap.sources(theirs)
    assert rest == []
    assert sources.keys() == weights.keys()
    shapes = {name: tensor.shape for name, tensor in theirs.items()}
    for name, source in sources.items():
        back = source.read(theirs)
        assert back.shape == weights[name].shape == source.shape(shapes)
        np.testing.assert_array_equal(back.values(), weights[name].values())
    return theirs


SMALL = sd15_shapes(unet_channels=4, context_dim=6, clip_hidden=4, clip_layers=2, vae_channels=4)


@pytest.mark.parametrize("component", ["unet", "vae"])
def test_round_trip(component):
    theirs = round_trip({"unet": unet_keymap, "vae": vae_keymap}[component](), numbered(SMALL[component]))
    assert len(theirs) == len(SMALL[component])


def test_round_trip_clip_keeps_its_names():
    weights = numbered({name: shape for name, shape in SMALL["clip"].items() if "token_embedding" not in name})
    assert round_trip(clip_keymap(), weights).keys() == weights.keys()


@pytest.mark.parametrize(
    ("levels", "res_blocks", "attention"), [(4, 2, (0, 1, 2)), (3, 1, (1, 2)), (2, 2, (0, 1)), (2, 3, (1,))]
)
def test_round_trip_of_other_unets(levels, res_blocks, attention):
    size = UNetSize(4, (4, 8, 16, 16)[:levels], attention, res_blocks, 6)
    round_trip(unet_keymap(levels, res_blocks, attention), numbered(unet_shapes(size)))


def test_round_trip_of_another_vae():
    size = VAESize(4, (4, 8), 1)
    round_trip(vae_keymap(2, 1), numbered(vae_shapes(size)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("time_embed.2.bias", "time_embedding.linear_2.bias"),
        ("input_blocks.4.0.skip_connection.weight", "down_blocks.1.resnets.0.conv_shortcut.weight"),
        ("input_blocks.6.0.op.weight", "down_blocks.1.downsamplers.0.conv.weight"),
        ("input_blocks.11.0.out_layers.3.weight", "down_blocks.3.resnets.1.conv2.weight"),
        ("middle_block.2.emb_layers.1.weight", "mid_block.resnets.1.time_emb_proj.weight"),
        ("output_blocks.2.1.conv.weight", "up_blocks.0.upsamplers.0.conv.weight"),
        ("output_blocks.5.2.conv.weight", "up_blocks.1.upsamplers.0.conv.weight"),
        (
            "output_blocks.11.1.transformer_blocks.0.attn2.to_k.weight",
            "up_blocks.3.attentions.2.transformer_blocks.0.attn2.to_k.weight",
        ),
    ],
)
def test_unet_names(ours, theirs):
    keymap = unet_keymap()
    assert keymap.theirs(ours).names == (theirs,)
    assert keymap.ours(theirs)[0] == ours


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("encoder.down.2.downsample.conv.bias", "encoder.down_blocks.2.downsamplers.0.conv.bias"),
        ("encoder.mid.block_2.norm1.weight", "encoder.mid_block.resnets.1.norm1.weight"),
        ("decoder.up.3.block.2.conv1.weight", "decoder.up_blocks.0.resnets.2.conv1.weight"),
        ("decoder.up.0.block.0.nin_shortcut.weight", "decoder.up_blocks.3.resnets.0.conv_shortcut.weight"),
        ("decoder.mid.attn_1.proj_out.weight", "decoder.mid_block.attentions.0.to_out.0.weight"),
        ("post_quant_conv.weight", "post_quant_conv.weight"),
    ],
)
def test_vae_names(ours, theirs):
    keymap = vae_keymap()
    assert keymap.theirs(ours).names == (theirs,)
    assert keymap.ours(theirs)[0] == ours


@pytest.mark.parametrize("old", ["query", "key", "value", "proj_attn"])
def test_the_old_names_of_vae_attention_are_read(old):
    ours = {"query": "q", "key": "k", "value": "v", "proj_attn": "proj_out"}[old]
    name, source = vae_keymap().ours(f"encoder.mid_block.attentions.0.{old}.weight")
    assert name == f"encoder.mid.attn_1.{ours}.weight"
    weight = stored(np.arange(6.0).reshape(2, 3))
    read = source.read({source.names[0]: weight})
    assert read.shape == read.data.shape == (2, 3, 1, 1)


def test_a_second_name_for_the_same_tensor_is_left_over():
    names = [f"encoder.mid_block.attentions.0.{name}.weight" for name in ("to_q", "query")]
    sources, rest = vae_keymap().sources(names)
    assert list(sources) == ["encoder.mid.attn_1.q.weight"]
    assert rest == names[1:]


def test_attention_of_the_original_may_be_linear():
    name = "decoder.mid.attn_1.q.weight"
    _, source = vae_original_keymap().ours(name)
    assert source.read({name: stored(np.ones((4, 4)))}).shape == (4, 4, 1, 1)
    assert source.read({name: stored(np.ones((4, 4, 1, 1)))}).shape == (4, 4, 1, 1)


def test_clip_without_its_head():
    assert clip_keymap().ours("encoder.layers.3.mlp.fc1.weight")[0] == "text_model.encoder.layers.3.mlp.fc1.weight"
    assert clip_keymap().ours("text_projection.weight")[0] == "text_projection.weight"
    assert clip_keymap().ours("logit_scale") is None


FLUX_D, FLUX_M = 8, 32
FLUX = {
    "img_in.weight": (FLUX_D, 4),
    "double_blocks.1.img_attn.qkv.weight": (3 * FLUX_D, FLUX_D),
    "double_blocks.1.img_attn.qkv.bias": (3 * FLUX_D,),
    "double_blocks.0.txt_attn.norm.key_norm.scale": (4,),
    "single_blocks.2.linear1.weight": (3 * FLUX_D + FLUX_M, FLUX_D),
    "single_blocks.2.linear1.bias": (3 * FLUX_D + FLUX_M,),
    "single_blocks.2.linear2.weight": (FLUX_D, FLUX_D + FLUX_M),
    "final_layer.adaLN_modulation.1.weight": (2 * FLUX_D, FLUX_D),
}
FLUX_ROWS = {f"single_blocks.2.linear1.{leaf}": [FLUX_D] * 3 + [FLUX_M] for leaf in ("weight", "bias")}


def test_flux_round_trip():
    weights = numbered(FLUX)
    theirs = round_trip(flux_keymap(2, 3), weights, FLUX_ROWS)
    qkv = weights["double_blocks.1.img_attn.qkv.weight"].data
    np.testing.assert_array_equal(theirs["transformer_blocks.1.attn.to_k.weight"].data, qkv[FLUX_D : 2 * FLUX_D])
    assert theirs["single_transformer_blocks.2.proj_mlp.bias"].shape == (FLUX_M,)
    shift_scale = weights["final_layer.adaLN_modulation.1.weight"].data
    np.testing.assert_array_equal(theirs["norm_out.linear.weight"].data[:FLUX_D], shift_scale[FLUX_D:])


def test_packed_rows_are_joined_as_bytes():
    """Two rows of one q8_0 block each, 34 bytes."""
    parts = [StoredTensor("q8_0", (2, 32), np.full(68, i, np.uint8)) for i in range(3)]
    joined = CONCAT.join(parts)
    assert joined.type == "q8_0"
    assert joined.shape == (6, 32)
    np.testing.assert_array_equal(joined.data, np.repeat(np.arange(3, dtype=np.uint8), 68))
    for part, back in zip(parts, CONCAT.split(joined, [2, 2, 2]), strict=True):
        np.testing.assert_array_equal(back.data, part.data)


def test_parts_of_different_types_become_float32():
    joined = CONCAT.join([stored(np.ones((1, 2), np.float16)), stored(np.zeros((2, 2), np.float32))])
    assert (joined.type, joined.shape) == ("f32", (3, 2))
    np.testing.assert_array_equal(joined.data, [[1, 1], [0, 0], [0, 0]])


def test_what_no_row_knows_is_left_over():
    names = ["up_blocks.0.nothing.weight", "conv_in.weight", "down_blocks.7.resnets.0.conv1.weight"]
    sources, rest = unet_keymap().sources(names)
    assert list(sources) == ["input_blocks.0.0.weight"]
    assert rest == [names[0], names[2]]
    with pytest.raises(KeyError):
        unet_keymap().write({"label_emb.1.0.weight": stored(np.ones(1))})


def test_an_incomplete_concatenation_is_left_over():
    names = [f"transformer_blocks.0.attn.{name}.weight" for name in ("to_q", "to_k")]
    assert flux_keymap(1, 0).sources(names) == ({}, names)


def test_every_name_of_the_clip_table_is_known():
    shapes = clip_shapes(CLIPSize(hidden=4, layers=2, mlp=8, vocab=5, positions=3))
    assert all(clip_keymap().theirs(name).names == (name,) for name in shapes)
