"""What adapter files call layers: every naming of every family finds every layer, and all of its rows once."""

import json
from pathlib import Path

import numpy as np
import pytest

from refsd.models.catalogue import NETWORKS
from refsd.models.clip.network import CLIP_G
from refsd.models.qwen_image.network import QWEN_IMAGE_LAYERED
from refsd.weights.adapter_names import ADAPTED, Target, aliases, split

PUBLISHED = np.load(Path(__file__).parents[2] / "fixtures" / "published_layouts.npz")
SIZES = {component: NETWORKS[component].size({}) for component in ADAPTED} | {
    "clip_g": CLIP_G,
    "qwen-image-layered": QWEN_IMAGE_LAYERED,
}
SHAPES = {component: NETWORKS[component].shapes for component in ADAPTED}
TABLES = ("patch_embedding", "n_embedding", "embed_tokens", "shared", "relative_attention_bias")


def found(*components):
    return aliases({c: SIZES[c] for c in components}, {c: SHAPES[c](SIZES[c]) for c in components})


@pytest.mark.parametrize("component", ADAPTED)
def test_every_naming_covers_every_row_of_every_layer_once(component):
    shapes = SHAPES[component](SIZES[component])
    weights = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if name.endswith(".weight")}
    weights = {key: shape for key, shape in weights.items() if not key.endswith(TABLES)}
    names = found(component)
    for prefix in dict.fromkeys(naming.prefix for naming in NETWORKS[component].adapters):
        here = {name: target for name, target in names.items() if name.startswith(prefix)}
        whole = {t.key for t in here.values() if t.component == component and t.count is None}
        assert whole >= weights.keys(), prefix
        pieces = {}
        for target in here.values():
            if target.component == component and target.count is not None:
                pieces.setdefault(target.key, set()).add(target)
        for key, targets in pieces.items():
            rows = [np.arange(weights[key][0])[target.rows(weights[key][0])] for target in targets]
            assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(weights[key][0])), key


@pytest.mark.parametrize(
    ("component", "name", "target"),
    [
        ("unet", "lora_unet_down_blocks_0_resnets_1_conv2", ("input_blocks.2.0.out_layers.3",)),
        ("flux", "transformer.transformer_blocks.3.attn.to_k", ("double_blocks.3.img_attn.qkv", 3072, 3072)),
        ("flux", "lora_transformer_single_transformer_blocks_7_proj_mlp", ("single_blocks.7.linear1", 9216, 12288)),
        ("flux", "transformer.norm_out.linear", ("final_layer.adaLN_modulation.1", 3072, 6144)),
        ("flux", "lora_unet_single_blocks_7_modulation_lin", ("single_blocks.7.modulation.lin",)),
        ("flux2", "diffusion_model.double_blocks.0.img_mlp.2", ("double_blocks.0.img_mlp.2",)),
        (
            "mmdit",
            "transformer.transformer_blocks.0.attn.add_v_proj",
            ("joint_blocks.0.context_block.attn.qkv", 3072, 1536),
        ),
        ("zimage", "diffusion_model.layers.29.attention.to_out.0", ("layers.29.attention.out",)),
        ("zimage", "lora_unet_layers_29_attention_to_q", ("layers.29.attention.qkv", 0, 3840)),
        ("wan", "diffusion_model.blocks.3.cross_attn.k", ("blocks.3.cross_attn.k",)),
        ("wan", "lora_unet_blocks_3_ffn_2", ("blocks.3.ffn.2",)),
        ("wan", "transformer.blocks.3.attn1.to_out.0", ("blocks.3.self_attn.o",)),
        ("lumina2", "diffusion_model.layers.3.attention.qkv", ("layers.3.attention.qkv",)),
        ("lumina2", "transformer.layers.3.attn.to_q", ("layers.3.attention.qkv", 0, 2304)),
        ("lumina2", "transformer.layers.3.attn.to_v", ("layers.3.attention.qkv", 3072, 768)),
        ("lumina2", "transformer.noise_refiner.1.norm1.linear", ("noise_refiner.1.adaLN_modulation.1",)),
        ("qwen-image", "transformer_blocks.59.attn.to_out.0", ("transformer_blocks.59.attn.to_out.0",)),
        (
            "qwen-image",
            "lora_unet_transformer_blocks_7_txt_mlp_net_0_proj",
            ("transformer_blocks.7.txt_mlp.net.0.proj",),
        ),
        ("qwen-image", "transformer.transformer_blocks.0.img_mod.1", ("transformer_blocks.0.img_mod.1",)),
        (
            "qwen-image",
            "diffusion_model.transformer_blocks.3.attn.add_q_proj",
            ("transformer_blocks.3.attn.add_q_proj",),
        ),
        (
            "flux3",
            "diffusion_model.content_mode_blocks.image_cond.4.mlp_in",
            ("content_mode_blocks.image_cond.4.mlp_in",),
        ),
        ("flux3", "diffusion_model.single_blocks.27.attn_out", ("single_blocks.27.attn_out",)),
        ("flux3", "transformer.mode_blocks.image.0.attn.to_q", ("content_mode_blocks.image.0.q_proj",)),
        ("flux3", "base_model.model.txt_mode_blocks.3.ff.linear_out", ("txt_mode_blocks.3.mlp_out",)),
        (
            "flux3",
            "transformer.single_stream_modulations.image_cond.linear",
            ("single_stream_modulations.image_cond.lin",),
        ),
        ("flux3", "lora_unet_content_mode_blocks_image_1_v_proj", ("content_mode_blocks.image.1.v_proj",)),
        (
            "flux3",
            "lora_unet_content_mode_blocks_image_cond_1_v_proj",
            ("content_mode_blocks.image_cond.1.v_proj",),
        ),
        ("flux3", "lora_transformer_single_transformer_blocks_9_attn_to_out_0", ("single_blocks.9.attn_out",)),
        ("flux3", "lora_unet_final_layer_image_linear", ("final_layer.image.linear",)),
        ("ernie-image", "transformer.layers.3.self_attention.to_q", ("layers.3.self_attention.to_q",)),
        ("ernie-image", "diffusion_model.layers.23.mlp.linear_fc2", ("layers.23.mlp.linear_fc2",)),
        ("ernie-image", "lora_unet_layers_9_self_attention_to_out_0", ("layers.9.self_attention.to_out.0",)),
        ("ideogram4", "transformer.layers.3.attention.to_k", ("layers.3.attention.qkv", 4608, 4608)),
        ("ideogram4", "diffusion_model.layers.33.feed_forward.w3", ("layers.33.feed_forward.w3",)),
        ("ideogram4", "diffusion_model.layers.9.attention.qkv", ("layers.9.attention.qkv",)),
        ("minimax-h3", "diffusion_model.blocks.49.attn.qkv_proj", ("blocks.49.attn.qkv_proj",)),
        ("minimax-h3", "lora_unet_token_refiner_blocks_1_mlp_fc2", ("token_refiner.blocks.1.mlp.fc2",)),
        ("minimax-h3", "transformer.transformer_blocks.3.adaln_proj.linear", ("blocks.3.adaln_proj.linear",)),
        ("ltx2", "diffusion_model.transformer_blocks.47.attn1.to_q", ("transformer_blocks.47.attn1.to_q",)),
        (
            "ltx2",
            "lora_unet_transformer_blocks_1_audio_ff_net_0_proj",
            ("transformer_blocks.1.audio_ff.net.0.proj",),
        ),
        ("ltx2", "transformer.audio_proj_in", ("audio_patchify_proj",)),
        ("ltx2", "transformer.av_cross_attn_video_a2v_gate.linear", ("av_ca_a2v_gate_adaln_single.linear",)),
        ("krea2", "transformer.transformer_blocks.3.attn.to_gate", ("transformer_blocks.3.attn.to_gate",)),
        ("krea2", "diffusion_model.blocks.27.attn.wo", ("transformer_blocks.27.attn.to_out.0",)),
        ("krea2", "base_model.model.txtfusion.projector", ("text_fusion.projector",)),
        ("krea2", "lora_unet_txtfusion_refiner_blocks_1_mlp_up", ("text_fusion.refiner_blocks.1.ff.up",)),
        ("qwen-image21", "transformer.transformer_blocks.3.attn.to_q", ("transformer_blocks.3.attn.to_q",)),
        ("qwen-image21", "lora_unet_transformer_blocks_31_img_mlp_out", ("transformer_blocks.31.img_mlp.out",)),
        ("qwen-image21", "diffusion_model.modulation.1", ("modulation.1",)),
        (
            "qwen-image21",
            "diffusion_model.transformer_blocks.7.img_mlp.gate_up",
            ("transformer_blocks.7.img_mlp.gate_up",),
        ),
        (
            "qwen-image21",
            "transformer.transformer_blocks.7.img_mlp.gate_layer",
            ("transformer_blocks.7.img_mlp.gate_up", 0, 12288),
        ),
        (
            "qwen-image21",
            "transformer_blocks.7.img_mlp.proj",
            ("transformer_blocks.7.img_mlp.gate_up", 12288, 12288),
        ),
        ("clip", "lora_te1_text_model_encoder_layers_3_mlp_fc1", ("text_model.encoder.layers.3.mlp.fc1",)),
        ("clip_g", "lora_te2_text_model_encoder_layers_31_mlp_fc1", ("text_model.encoder.layers.31.mlp.fc1",)),
        ("t5", "lora_te3_encoder_block_0_layer_0_SelfAttention_q", ("encoder.block.0.layer.0.SelfAttention.q",)),
        ("qwen3", "text_encoder.layers.0.mlp.up_proj", ("model.layers.0.mlp.up_proj",)),
        ("qwen2_5_vl", "lora_te_model_layers_0_self_attn_q_proj", ("model.layers.0.self_attn.q_proj",)),
    ],
)
def test_a_name_and_its_layer(component, name, target):
    assert found(component)[name] == Target(component, *target)


def test_swapped_halves_come_back_in_their_places():
    target = found("flux")["transformer.norm_out.linear"]
    ours = np.arange(6144)
    theirs = np.concatenate([ours[3072:], ours[:3072]])
    there = np.zeros_like(ours)
    there[target.rows(6144)] = theirs
    np.testing.assert_array_equal(there, ours)


def test_text_encoders_that_a_checkpoint_lacks_are_known_and_other_denoisers_are_not():
    names = found("flux")
    assert "lora_te1_text_model_encoder_layers_0_mlp_fc1" in names
    assert not any(target.component == "unet" for target in names.values())
    assert found()["lora_unet_mid_block_attentions_0_proj_in"].component == "unet"


@pytest.mark.parametrize("file", [name for name in PUBLISHED.files if "_lora_" in name or "_lokr_" in name])
def test_published_adapters_fit_their_layers(file):
    """Of each tensor that tells rows or columns, they are the layer's."""
    names = found("flux")
    shapes = {of: SHAPES[of](SIZES[of]) for of in ("flux", "clip", "t5")}
    rows = [row.rsplit(" [", 1) for row in bytes(PUBLISHED[file]).decode().splitlines()]
    assert rows
    for name, shape in ((name, json.loads(f"[{shape}")) for name, shape in rows):
        module, part = split(name)
        target = names[module]
        there = shapes[target.component][f"{target.key}.weight"]
        if part == "up":
            assert shape[0] == (target.count or there[0]), name
        elif part == "down":
            assert shape[1] == there[1], name
