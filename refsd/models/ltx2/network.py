"""LTX-2's transformer: sizes, tensors, names in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import divisor, positive, shown_value, whole
from refsd.networks.dimensions import Shape, Shapes, blocks, dim, linear, read_size
from refsd.networks.keymap import Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same
from refsd.numerics.errors import BadInput


class LTX2Size(NamedTuple):
    """Dimensions of the transformer; the defaults are those of LTX-2.

    hidden, audio_hidden:     channels of the stream of the video, of the sound's
    channels, audio_channels: of the latents
    caption:                  channels of the texts before the streams' own; 0: they have the streams' already
    frequencies:              channels of the sinusoidal time embeddings
    gates, audio_gates:       heads of each stream that are gated; 0: none
    prompts:                  True if the texts and what looks at them are modulated
    """

    hidden: int = 4096
    audio_hidden: int = 2048
    layers: int = 48
    channels: int = 128
    audio_channels: int = 128
    caption: int = 3840
    frequencies: int = 256
    gates: int = 0
    audio_gates: int = 0
    prompts: bool = False


LTX2 = LTX2Size()
LTX23 = LTX2Size(caption=0, gates=32, audio_gates=32, prompts=True)
PROMPTS = "prompt_adaln"  # in names of the modulations of texts, the same in all layouts
_GATES = (("gates", ""), ("audio_gates", "audio_"))
_BETWEEN = ("audio_to_video_attn", "video_to_audio_attn")
# Modulations of the time: name, stream, number; those of the streams and of their texts are apart.
_CROSS = (
    ("av_ca_video_scale_shift_adaln_single", "", 4),
    ("av_ca_audio_scale_shift_adaln_single", "audio_", 4),
    ("av_ca_a2v_gate_adaln_single", "", 1),
    ("av_ca_v2a_gate_adaln_single", "audio_", 1),
)


def ltx2_shapes(size: LTX2Size) -> Shapes:
    """Return the shapes of all tensors. Source: Lightricks/LTX-2, ltx_core/model/transformer."""
    wide = {"": size.hidden, "audio_": size.audio_hidden}
    latent = {"": size.channels, "audio_": size.audio_channels}
    gates = {"": size.gates, "audio_": size.audio_gates}
    shapes: Shapes = {}
    for name, D in wide.items():
        shapes |= linear(f"{name}patchify_proj", latent[name], D)
        shapes |= _adaln(f"{name}adaln_single", size, D, 9 if size.prompts else 6)
        shapes |= _adaln(f"{name}prompt_adaln_single", size, D, 2) if size.prompts else {}
        if size.caption:
            shapes |= linear(f"{name}caption_projection.linear_1", size.caption, D)
            shapes |= linear(f"{name}caption_projection.linear_2", D, D)
    for name, stream, n in _CROSS:
        shapes |= _adaln(name, size, wide[stream], n)
    for i in range(size.layers):
        at = f"transformer_blocks.{i}."
        for name, D in wide.items():
            shapes |= _attention(f"{at}{name}attn1", D, D, D, gates[name])
            shapes |= _attention(f"{at}{name}attn2", D, D, D, gates[name])
            shapes |= linear(f"{at}{name}ff.net.0.proj", D, 4 * D) | linear(f"{at}{name}ff.net.2", 4 * D, D)
            shapes[f"{at}{name}scale_shift_table"] = (9 if size.prompts else 6, D)
            shapes |= {f"{at}{name}prompt_scale_shift_table": (2, D)} if size.prompts else {}
        narrow = size.audio_hidden
        shapes |= _attention(f"{at}{_BETWEEN[0]}", size.hidden, narrow, narrow, size.gates and size.audio_gates)
        shapes |= _attention(f"{at}{_BETWEEN[1]}", narrow, size.hidden, narrow, size.audio_gates)
        shapes[f"{at}scale_shift_table_a2v_ca_video"] = (5, size.hidden)
        shapes[f"{at}scale_shift_table_a2v_ca_audio"] = (5, narrow)
    for name, D in wide.items():
        shapes |= {f"{name}scale_shift_table": (2, D)} | linear(f"{name}proj_out", D, latent[name])
    return shapes


def _adaln(at: str, size: LTX2Size, D: int, n: int) -> Shapes:
    embedder = f"{at}.emb.timestep_embedder"
    shapes = linear(f"{embedder}.linear_1", size.frequencies, D) | linear(f"{embedder}.linear_2", D, D)
    return shapes | linear(f"{at}.linear", D, n * D)


def _attention(at: str, D: int, other: int, inner: int, gates: int) -> Shapes:
    shapes = linear(f"{at}.to_q", D, inner) | linear(f"{at}.to_k", other, inner)
    shapes |= linear(f"{at}.to_v", other, inner) | linear(f"{at}.to_out.0", inner, D)
    shapes |= {f"{at}.{name}_norm.weight": (inner,) for name in "qk"}
    return shapes | (linear(f"{at}.to_gate_logits", D, gates) if gates else {})


def ltx2_size(shapes: Mapping[str, Shape]) -> LTX2Size:
    """Infer the size from shapes. Dimensions of missing tensors are those of the released model of its kind."""
    usual = LTX23 if any("prompt_" in name or "to_gate_logits." in name for name in shapes) else LTX2
    around = ("patchify_proj.weight", "audio_patchify_proj.weight", "proj_out.weight")
    gates = {field: f"transformer_blocks.0.{name}attn1.to_gate_logits.weight" for field, name in _GATES}
    return read_size(
        usual,
        ltx2_shapes,
        shapes,
        layers=blocks(shapes, "transformer_blocks.", usual.layers, around),
        caption=dim(shapes, "caption_projection.linear_1.weight", 1, usual.caption),
        prompts=any("prompt_" in name for name in shapes),
        **{field: dim(shapes, name, 0, getattr(usual, field)) for field, name in gates.items()},
    )


_AROUND = (
    ("patchify_proj", "proj_in"),
    ("audio_patchify_proj", "audio_proj_in"),
    ("adaln_single", "time_embed"),
    ("audio_adaln_single", "audio_time_embed"),
    ("prompt_adaln_single", "prompt_adaln"),
    ("audio_prompt_adaln_single", "audio_prompt_adaln"),
    ("av_ca_video_scale_shift_adaln_single", "av_cross_attn_video_scale_shift"),
    ("av_ca_audio_scale_shift_adaln_single", "av_cross_attn_audio_scale_shift"),
    ("av_ca_a2v_gate_adaln_single", "av_cross_attn_video_a2v_gate"),
    ("av_ca_v2a_gate_adaln_single", "av_cross_attn_audio_v2a_gate"),
)
_BLOCK = (
    ("scale_shift_table_a2v_ca_video", "video_a2v_cross_attn_scale_shift_table"),
    ("scale_shift_table_a2v_ca_audio", "audio_a2v_cross_attn_scale_shift_table"),
    *(
        (f"{attention}.{which}_norm", f"{attention}.norm_{which}")
        for attention in ("attn1", "attn2", "audio_attn1", "audio_attn2", *_BETWEEN)
        for which in "qk"
    ),
)


def ltx2_keymap(layers: int = 48) -> Keymap:
    """Map Lightricks' names to and from diffusers'."""
    rows = prefix_rows(_AROUND) + block_rows(layers, "transformer_blocks", "transformer_blocks", _BLOCK)
    return Keymap(rows, rest_same=True)


_ROPE = {"split": True, "interleaved": False}
_FIXED = {
    "patch_size": 1,
    "patch_size_t": 1,
    "vae_scale_factors": [8, 32, 32],
    "audio_patch_size": 1,
    "audio_patch_size_t": 1,
    "audio_scale_factor": 4,
    "audio_sampling_rate": 16000,
    "audio_hop_length": 160,
    "activation_fn": "gelu-approximate",
    "qk_norm": "rms_norm_across_heads",
    "norm_elementwise_affine": False,
    "attention_bias": True,
    "attention_out_bias": True,
    "rope_double_precision": True,
    "causal_offset": 1,
    "ff_bias": True,
    "audio_ff_bias": True,
    "use_prompt_adaln_single": True,
    "use_keyframes_abs_pos_embedding": False,
}


def _config(size: LTX2Size) -> dict[str, Any]:
    return {
        "_class_name": "LTX2VideoTransformer3DModel",
        **_FIXED,
        "in_channels": size.channels,
        "out_channels": size.channels,
        "num_attention_heads": size.hidden // 128,
        "attention_head_dim": 128,
        "cross_attention_dim": size.hidden,
        "pos_embed_max_pos": 20,
        "base_height": 2048,
        "base_width": 2048,
        "gated_attn": size.gates > 0,
        "cross_attn_mod": size.prompts,
        "audio_in_channels": size.audio_channels,
        "audio_out_channels": size.audio_channels,
        "audio_num_attention_heads": size.audio_hidden // 64,
        "audio_attention_head_dim": 64,
        "audio_cross_attention_dim": size.audio_hidden,
        "audio_pos_embed_max_pos": 20,
        "audio_gated_attn": size.audio_gates > 0,
        "audio_cross_attn_mod": size.prompts,
        "num_layers": size.layers,
        "norm_eps": 1e-06,
        "caption_channels": size.caption or 3840,
        "rope_theta": 10000.0,
        "timestep_scale_multiplier": 1000,
        "cross_attn_timestep_scale_multiplier": 1000,
        "rope_type": "split",
        "use_prompt_embeddings": size.caption > 0,
        "perturbed_attn": True,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """A config.json that lacks a field means diffusers' default; without one it is as in the released models."""
    size = ltx2_size(shapes)
    turned = given.get("rope_type", "interleaved" if given else "split")
    if type(turned) is not str or turned not in _ROPE:
        raise BadInput(f"{path}: rope_type is {shown_value(turned)}; {' or '.join(_ROPE)} expected")
    multiplier = positive(path, given, "timestep_scale_multiplier", 1000)
    heads = (("", size.hidden), ("audio_", size.audio_hidden))
    return {
        **{
            f"{name}head_dim": divisor(path, given, f"{name}attention_head_dim", 1, channels)
            for name, channels in heads
            if f"{name}attention_head_dim" in given
        },
        "extent": [
            whole(path, given, field, usual)
            for field, usual in (("pos_embed_max_pos", 20), ("base_height", 2048), ("base_width", 2048))
        ],
        "audio_extent": whole(path, given, "audio_pos_embed_max_pos", 20),
        "theta": positive(path, given, "rope_theta", 10000.0),
        "split": _ROPE[turned],
        "eps": positive(path, given, "norm_eps", 1e-6),
        "gate_scale": positive(path, given, "cross_attn_timestep_scale_multiplier", 1000) / multiplier,
    }


_NAMES = counted("diffusers", ltx2_keymap, {"transformer_blocks.": LTX2.layers}, lambda size: (size.layers,))

LTX2_NETWORK = Network(
    "ltx2",
    "LTX-2",
    "denoiser",
    ltx2_size,
    ltx2_shapes,
    places=(
        Location(same("original"), DENOISER, ("audio_patchify_proj.", "audio_adaln_single.")),
        Location(
            _NAMES, ("model.diffusion_model.", *FOLDER), ("av_cross_attn_video_a2v_gate.", "audio_time_embed.")
        ),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _NAMES, _config),
    computed={field: (value,) for field, value in _FIXED.items()},
    config=_read_config,
    unread=("video_embeddings_connector.*", "audio_embeddings_connector.*"),
    # The sound's autoencoder and vocoder, and the layer before the texts' connectors.
    beside=("audio_vae.*", "vocoder.*", "text_embedding_projection.*"),
    adapters=DENOISER_NAMINGS,
)
NETWORKS = (LTX2_NETWORK,)
