"""Folders of diffusers: every field of every config.json, and indices of shards.

A field that changes what the model computes, and that no shape tells, must be refused or be seen in the answer.
"""

import json
import math
from pathlib import Path
from random import Random

import numpy as np
import small_families as small
from kind import Files, Kind, Mutation
from mutations import json_changed, value
from readings import checkpoint_read, tensors_read
from safetensors.numpy import load_file, save_file

from refsd.files.formats import open_weights
from refsd.models.catalogue import NETWORKS

# Every field of the classes of diffusers 0.42.1 and transformers 5.23.0, with its default.
CONFIGS = json.loads((Path(__file__).parent / "configs.json").read_text())
FAMILIES = {
    family: parts
    for family, parts in small.FAMILIES.items()
    if NETWORKS[next(iter(parts))].folder is not None
    and family not in ("sd15-inpaint", "sd15-edit", "sdxl-inpaint", "sdxl-refiner")
}

# Shapes and names of tensors tell these; a field that says otherwise is not read.
TOLD_BY_SHAPES = {
    "in_channels",
    "out_channels",
    "block_out_channels",
    "down_block_types",
    "up_block_types",
    "layers_per_block",
    "cross_attention_dim",
    "transformer_layers_per_block",
    "reverse_transformer_layers_per_block",
    "encoder_hid_dim",
    "num_class_embeds",
    "projection_class_embeddings_input_dim",
    "time_embedding_dim",
    "class_embeddings_concat",
    "latent_channels",
    "use_quant_conv",
    "use_post_quant_conv",
    "decoder_block_out_channels",
    "encoder_block_out_channels",
    "num_encoder_blocks",
    "num_decoder_blocks",
    "conditioning_channels",
    "conditioning_embedding_out_channels",
    "num_layers",
    "num_single_layers",
    "num_attention_heads",
    "joint_attention_dim",
    "pooled_projection_dim",
    "caption_projection_dim",
    "guidance_embeds",
    "timestep_guidance_channels",
    "approximator_num_channels",
    "approximator_hidden_dim",
    "approximator_layers",
    "dual_attention_layers",
    "pos_embed_max_size",
    "patch_size",
    "mlp_ratio",
    "addition_time_embed_dim",
    "dim",
    "n_layers",
    "n_refiner_layers",
    "n_heads",
    "n_kv_heads",
    "cap_feat_dim",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "projection_dim",
    "d_model",
    "d_kv",
    "d_ff",
    "num_heads",
    "relative_attention_num_buckets",
    "axes_lens",
    "qk_norm",
    "mid_block_only_cross_attention",
    "mid_block_add_attention",
    "use_linear_projection",
    "add_upsample",
    "upsample_fn",
    "base_dim",
    "dim_mult",
    "num_res_blocks",
    "temperal_downsample",
    "z_dim",
    "num_channels",
    "image_size",
    "redux_dim",
    "txt_in_features",
    "decoder_base_dim",
    "input_channels",
    "num_refiner_layers",
    "num_kv_heads",
    "multiple_of",
    "ffn_dim_multiplier",
    "text_dim",
    "freq_dim",
    "ffn_dim",
    "rope_max_seq_len",
    "timestep_embed_dim",
    "text_hidden_dim",
    "num_text_layers",
    "text_num_attention_heads",
    "text_num_key_value_heads",
    "text_intermediate_size",
    "num_layerwise_text_blocks",
    "num_refiner_text_blocks",
    "cond_in_channels",
    "timestep_channels",
    "flow_map",
    "context_in_dim",
    "decoder_layers_per_block",
    "decoder_spatio_temporal_scaling",
    "spatio_temporal_scaling",
    "downsample_type",
    "upsample_type",
    "upsample_factor",
    "timestep_conditioning",
    "addition_embed_type",
    "llm_features_dim",
    "adaln_dim",
    "time_embed_dim",
    "time_embed_hidden_dim",
    "audio_in_channels",
    "ffn_hidden_size",
    "text_in_dim",
    "extra_condition_channels",
    "decoder_num_attention_heads",
    "decoder_num_register_tokens",
    "decoder_ffn_mult",
    "audio_out_channels",
    "audio_num_attention_heads",
    "audio_cross_attention_dim",
    "gated_attn",
    "audio_gated_attn",
    "cross_attn_mod",
    "audio_cross_attn_mod",
    "caption_channels",
    "use_prompt_embeddings",
}
# What a forward pass in float64 does not read: sizes to train at, seeds of dropout, dtypes, what other heads need.
NOT_COMPUTED = {
    "_class_name",
    "architectures",
    "model_type",
    "sample_size",
    "dropout",
    "dropout_rate",
    "attention_dropout",
    "classifier_dropout",
    "upcast_attention",
    "force_upcast",
    "addition_embed_type_num_heads",
    "batch_norm_momentum",
    "latent_magnitude",
    "latent_shift",
    "output_hidden_states",
    "output_attentions",
    "return_dict",
    "dtype",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "problem_type",
    "initializer_range",
    "initializer_factor",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "num_decoder_layers",
    "use_cache",
    "is_decoder",
    "scale_decoder_outputs",
    "tie_word_embeddings",
    "max_window_layers",
    "vision_use_head",
    "scale_factor_temporal",
    "scale_factor_spatial",
    "final_logit_softcapping",
    "spatial_compression_ratio",
    "temporal_compression_ratio",
    "resnet_norm_eps",
    "clip_output",
    "perturbed_attn",
}


def _examples(folder: Path) -> dict[str, Files]:
    made: dict[str, Files] = {}
    for family, parts in FAMILIES.items():
        ((component, size),) = parts.items()
        part = NETWORKS[component].folder
        assert part is not None
        layout = "diffusers" if (component, "diffusers") in small.KEYMAPS else "original"
        some = np.float32([0.5, -0.25, 0.125])
        shapes = small.shapes(component, size)
        weights = {name: some[np.arange(math.prod(shape)) % 3].reshape(shape) for name, shape in shapes.items()}
        path = folder / f"{family}.safetensors"
        save_file(small.written(component, layout, size, weights), path)
        config = {**CONFIGS.get("clip" if component == "clip_g" else component, {}), **part.config(size)}
        if "rope_parameters" in config:
            turning = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
            config["rope_parameters"] = {**config["rope_parameters"], **turning}
        place = part.folder or "controlnet"
        made[family] = {f"{place}/{part.file}": path, f"{place}/config.json": json.dumps(config).encode()}
    return made


def _config(files: Files) -> str:
    return next(name for name in files if name.endswith("config.json"))


def _mutate(rng: Random, files: Files) -> Mutation:
    name = _config(files)
    content = files[name]
    assert isinstance(content, bytes)
    if rng.random() < 0.2:
        changed, what, _ = json_changed(rng, content)
        return Mutation({**files, name: changed}, what)
    config = json.loads(content)
    field = rng.choice(sorted(config))
    other = value(rng, config[field])
    without = {"sliding_window"} if config.get("use_sliding_window") is False else set()
    without |= {"hidden_act"} if "hidden_activation" in config else set()  # Gemma 2 reads the latter
    computed = field not in TOLD_BY_SHAPES | NOT_COMPUTED | without and not _means_the_same(config[field], other)
    return Mutation(
        {**files, name: json.dumps({**config, field: other}).encode()},
        f"{field}: {config[field]!r:.40} -> {other!r:.40}",
        computed,
    )


def _means_the_same(before, after) -> bool:
    """As Python and diffusers take it: 1 is 1.0, what is empty or 0 is false, and so is false at every level."""
    if isinstance(before, list) and isinstance(after, list) and all(one is False for one in before + after):
        return True
    if isinstance(before, bool):
        return before == bool(after)
    if isinstance(before, int | float) and isinstance(after, int | float):
        return before == after
    return before == after or (not before and not after)


def _place(folder: Path) -> Path:
    return folder / "controlnet" if (folder / "controlnet").is_dir() else folder


def _read(folder: Path):
    return checkpoint_read(_place(folder))


def _commands(folder: Path) -> list[list[str]]:
    return [["info", str(_place(folder))], ["info", str(_place(folder)), "--json"]]


# Shards

INDEX = "a.safetensors.index.json"
SHARDS = {"a-1.safetensors": ["x", "y"], "a-2.safetensors": ["z"], "a-3.safetensors": ["w"]}
WHERE = {name: file for file, names in SHARDS.items() for name in names}


def _sharded(folder: Path) -> dict[str, Files]:
    for i, (file, names) in enumerate(SHARDS.items()):
        save_file({name: np.full(3, i + 1, np.float32) for name in names}, folder / file)
    index = {"metadata": {"total_size": 48}, "weight_map": WHERE}
    return {"plain": {INDEX: json.dumps(index).encode(), **{file: folder / file for file in SHARDS}}}


def _mutate_index(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(["json", "file", "file", "shard", "more"])
    if kind == "json":
        changed, what, _ = json_changed(rng, bytes(files[INDEX]))  # type: ignore[arg-type]
        return Mutation({**files, INDEX: changed}, what)
    where = dict(WHERE)
    if kind == "file":
        name = rng.choice(sorted(where))
        where[name] = rng.choice(
            [
                "gone.safetensors",
                "../a-1.safetensors",
                "/etc/passwd",
                "",
                "\x00",
                "x\x00.safetensors",
                "a" * 300 + ".safetensors",
                "a-1.safetensors",
                "a-2.safetensors",
                INDEX,
                "\x1b[2J.safetensors",
                "\ud800.safetensors",
                ".",
                "..",
                "a-1.bin",
                "con.bin",
            ]
        )
        what = f"{name} in {where[name]!r:.40}"
    elif kind == "more":
        what = rng.choice(["v", "", "\x1b[2J"])
        where[what] = "a-1.safetensors"
    else:
        what = rng.choice(sorted(SHARDS))
        return Mutation({**files, what: rng.choice([b"", b"no", files["a-1.safetensors"]])}, f"another {what}")
    index = {"metadata": {}, "weight_map": where}
    return Mutation({**files, INDEX: json.dumps(index).encode()}, what, where != WHERE)


def _read_index(folder: Path):
    return tensors_read(open_weights(folder / INDEX))


def _second_index(folder: Path):
    where = json.loads((folder / INDEX).read_bytes())["weight_map"]
    found = {name: load_file(folder / file)[name] for name, file in where.items()}
    return {name: ["f32", list(array.shape), array.tobytes().hex()] for name, array in found.items()}


FOLDERS = Kind("folders", _examples, _mutate, _read, None, _commands)
INDICES = Kind(
    "shards",
    _sharded,
    _mutate_index,
    _read_index,
    _second_index,
    lambda folder: [["info", str(folder / INDEX), "--tensors"]],
)
