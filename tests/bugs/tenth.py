"""A tenth fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

import contextlib
from unittest.mock import patch

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug
from tenth_operations import TENTH_OPERATIONS
from tenth_steps import TENTH_STEPS

from refsd.models import anima, flux, flux2, vae_wan
from refsd.module import block
from refsd.numerics.tensor import stored

# --- blocks ------------------------------------------------------------------------------------------------------


@block
def _modulated_kept(m, h, context, vec, temb, angle, eps, qk_eps):
    """The attention's input stands for the block's: h = y + gate attention(y)."""
    shift, scale, gate = anima.modulation(m["adaln_modulation_self_attn"], vec, temb, 3)
    y = m.adaptive_layer_norm(h, shift, scale, eps)
    h = m.gated_add(y, anima.attention(m["self_attn"], y, y, angle, qk_eps), gate)
    shift, scale, gate = anima.modulation(m["adaln_modulation_cross_attn"], vec, temb, 3)
    y = m.adaptive_layer_norm(h, shift, scale, eps)
    h = m.gated_add(h, anima.attention(m["cross_attn"], y, context, None, qk_eps), gate)
    shift, scale, gate = anima.modulation(m["adaln_modulation_mlp"], vec, temb, 3)
    return m.gated_add(h, anima.mlp(m["mlp"], m.adaptive_layer_norm(h, shift, scale, eps)), gate)


@block
def _scale_first(m, x, vec, eps=flux.EPS):
    """The last layer takes the first half for the scale, as diffusers' files have it."""
    scale, shift = np.split(m.linear("adaLN_modulation.1", m.silu(vec)), 2, axis=-1)
    return m.linear("linear", m.modulate(flux.norm(m, x, eps), shift, scale))


def _whole_again(x, times):
    """Channels are repeated as a whole, not one by one."""
    return np.tile(x, (1, times, 1, 1, 1))


# --- models ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ids_without_gaps():
    """Positions are written without gaps into rows that lie 16 numbers apart: token l gets those of token 4 l."""

    def spread(right):
        def ids(*given):
            own = right(*given)
            read = np.zeros_like(own)
            read[: -(-len(own) // 4)] = own[::4]
            return read

        return ids

    with (
        patch.object(flux2, "picture_ids", spread(flux2.picture_ids)),
        patch.object(flux2, "text_ids", spread(flux2.text_ids)),
    ):
        yield


def _no_guidance(m, timesteps, guidance):
    """The network is never shown its guidance."""
    waves = m.shape("time_in.in_layer.weight")[1]
    return flux.mlp_embedder(m["time_in"], m.timestep_embedding(1000 * timesteps, waves))


def _one_table(weights):
    """Every layer adds the first one's biases of positions."""
    first = weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    return {name: first if name.endswith("relative_attention_bias.weight") else t for name, t in weights.items()}


def _read_by_heads(weights):
    """Rows of q, k and v are taken for those of head 0, then of head 1, and so on."""
    found = dict(weights)
    for name in weights:
        if name.endswith("attn.qkv_proj.weight"):
            whole = weights[name].values()
            d = weights[name.replace("qkv_proj", "q_norm")].shape[0]
            apart = whole.reshape(-1, 3, d, whole.shape[1]).swapaxes(0, 1)
            found[name] = stored(np.ascontiguousarray(apart.reshape(whole.shape)))
    return found


_TABLE = {
    "d-blk-01": (
        "block",
        "Josh00-Lu/DiffusionVeteran#3, in Anima",
        _model(
            Bug(patched=_patch(anima, "transformer_block", _modulated_kept)),
            "blocks.*gated_add|blocks",
            "residual|norm|modulat|stands? for|in place of|h is",
            "anima/anima/whole",
            "anima/anima/quiet",
        ),
    ),
    "d-blk-02": (
        "block",
        "leejet/stable-diffusion.cpp#1707, review",
        _model(
            Bug(patched=_patch(flux, "final_layer", _scale_first)),
            "final_layer|modulate",
            "shift.*scale|scale.*shift|swap|exchang",
            "flux-dev/flux/first-step",
            "flux-dev/flux/between",
        ),
    ),
    "d-blk-03": (
        "block",
        "sgl-project/sglang-jax#840, in Wan 2.2's autoencoder, the other way round",
        _model(
            Bug(patched=_patch(vae_wan, "each_channel", _whole_again)),
            "upsamples|add|decoder",
            "repeat|tile|interleav|channel",
            "wan22-vae/wan22-vae-decoder/picture",
            "wan22-vae/wan22-vae-decoder/frames",
        ),
    ),
    "d-mod-01": (
        "model",
        "apple/coreai-models#192",
        _model(
            Bug(patched=_ids_without_gaps),
            "rope|attention|attn",
            "position|stride|every (4th|fourth)|4 times|times 4|tokens?|ids",
            "flux2-dev/flux2/first-step",
            "flux2-klein/flux2/between",
        ),
    ),
    "d-mod-02": (
        "model",
        "vllm-project/vllm-omni#2433",
        _model(
            Bug(patched=_patch(flux2, "conditioning", _no_guidance)),
            "guidance|vec|add|modulation|time_in",
            "guidance|add before it: b left out",
            "flux2-dev/flux2/first-step",
        ),
    ),
    # UMT5's layers share the first one's table of positions. No case has UMT5's weights.
    "d-te-01": (
        "model",
        "OpenNMT/CTranslate2#2102",
        _model(Bug(weights=_one_table), "attention|relative|bias", "first (one|layer)'s|table", "umt5/t5/padded"),
    ),
    "d-te-02": (
        "model",
        "vllm-project/vllm-metal#666, in Gemma 2",
        _model(
            Bug(params=lambda params: {**params, "cap": 1e6}),
            "attention|softcap|self_attn",
            "cap|limit|tanh",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "d-vae-01": (
        "model",
        "VincentGourbin/flux-2-swift-mlx#6",
        _model(
            Bug(params=lambda params: {**params, "eps": 1e-5}),
            "batch_norm|batch_denorm|bn|mean|conv_in",
            "eps",
            "flux2-vae/flux2-vae-encoder/tall",
            "flux2-vae/flux2-vae-decoder/wide",
        ),
    ),
    "d-ld-01": (
        "loader",
        "MiniMax-AI/MiniMax-H3#48",
        _model(
            Bug(weights=_read_by_heads),
            "qkv|attn|norm",
            "head|interleav|order|rows|q, k|qkv",
            "minimax-h3/minimax-h3/video",
            "minimax-h3/minimax-h3/keyframes",
        ),
    ),
}
TENTH: dict[str, HeldOut] = {
    **TENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **TENTH_STEPS,
}
