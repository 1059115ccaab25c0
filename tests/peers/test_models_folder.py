"""What diffusers and transformers save in a folder, opened here: key maps and config.json tell all."""

import diffusers
import numpy as np
import pytest
import tiny_vae_wan22
import torch
import transformers
from float64_peers import distance, draw, draw_weights, float64_throughout, redraw
from test_models_chroma import peer_chroma
from test_models_clip import peer_clip, prompts
from test_models_ernie_image import peer_ernie_image
from test_models_flux2 import answer as answer_of_flux2
from test_models_flux2 import peer_flux2
from test_models_flux3 import answer as answer_of_flux3
from test_models_flux3 import peer_flux3
from test_models_flux_whole import image_ids, packed, peer_flux
from test_models_ideogram4 import peer_ideogram4
from test_models_krea2 import STATES, TEXT_HEAD, peer_krea2
from test_models_ltx2 import inputs_of as inputs_of_ltx2
from test_models_ltx2 import peer_ltx2
from test_models_lumina2 import peer_lumina2
from test_models_minimax_h3 import inputs_of, peer_minimax_h3
from test_models_qwen_image21 import asked, peer_qwen_image21, picture_of
from test_models_unet import peer_unet
from test_models_vae import peer_vae
from test_models_vae_ltx2 import TIMED as LTX2_VAE
from test_models_vae_ltx2 import peer_vae as peer_vae_ltx2
from test_models_vae_minimax_h3 import SIZE as MINIMAX_H3_VAE
from test_models_vae_minimax_h3 import peer_vae as peer_vae_minimax_h3
from test_models_vae_wan22 import peer_vae as peer_vae_wan22
from test_models_zimage import answer as answer_of_zimage

from refsd.components import forward, load
from refsd.engines.torch.state import living_component
from refsd.models.clip.network import CLIPSize
from refsd.models.flux import pack
from refsd.models.flux3.network import Flux3Size, flux3_shapes
from refsd.models.ideogram4.original import _run as run_ideogram4
from refsd.models.krea2 import token_ids
from refsd.models.ltx2.original import ORIGINALS as LTX2_ORIGINALS
from refsd.models.minimax_h3.original import ORIGINALS
from refsd.models.unet.tensors import UNetSize
from refsd.models.vae.network import VAESize
from refsd.models.vae_ltx2.original import ORIGINALS as LTX2_VAE_ORIGINALS
from refsd.models.vae_minimax_h3.original import ORIGINALS as MINIMAX_H3_VAE_ORIGINALS
from refsd.models.vae_wan.original import ORIGINALS as WAN_ORIGINALS
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated:FutureWarning")]

UNET = UNetSize(48, (48, 96, 144), attention=(1, 2), res_blocks=2, context_dim=24)
VAE = VAESize(24, (24, 72), res_blocks=1)
CLIP = CLIPSize(hidden=60, layers=3, mlp=40, vocab=90, positions=11)


@pytest.fixture(scope="module")
def peers():
    with float64_throughout():
        made = {"unet": peer_unet(UNET, 6, 16), "vae": peer_vae(VAE, 8), "text_encoder": peer_clip(CLIP, 5, 89)}
        for seed, peer in enumerate(made.values()):
            redraw(peer, seed)
    return made


@pytest.fixture(scope="module")
def checkpoint(peers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    for name, peer in peers.items():
        peer.save_pretrained(folder / name)
    return open_checkpoint(folder)


def answer(checkpoint, component, inputs, **more):
    m, params = load(checkpoint, component, Arithmetic(FLOAT64))
    return forward(component, m, inputs, {**params, **more})


def test_unet(peers, checkpoint):
    inputs = {"x": draw((2, 4, 8, 12), 1), "timesteps": np.array([3.5, 800.0]), "context": draw((2, 9, 24), 2)}
    with float64_throughout():
        want = peers["unet"](*map(torch.from_numpy, inputs.values())).sample
    assert distance(answer(checkpoint, "unet", inputs)["out"], want) <= 1e-12


def test_vae(peers, checkpoint):
    x, z = draw((2, 3, 8, 6), 3), draw((2, 4, 3, 5), 4)
    with float64_throughout():
        mean = peers["vae"].encode(torch.from_numpy(x)).latent_dist.mean
        out = peers["vae"].decode(torch.from_numpy(z)).sample
    assert distance(answer(checkpoint, "vae-encoder", {"x": x})["mean"], mean) <= 1e-12
    assert distance(answer(checkpoint, "vae-decoder", {"z": z})["out"], out) <= 1e-12


def test_clip(peers, checkpoint):
    ids = prompts(CLIP, 11, 89)
    with float64_throughout():
        want = peers["text_encoder"](torch.from_numpy(ids))
    got = answer(checkpoint, "clip", {"input_ids": ids}, eos=89)
    assert distance(got["last_hidden_state"], want.last_hidden_state) <= 1e-12
    assert distance(got["pooled"], want.pooler_output) <= 1e-12


_TEXT = {
    "vocab_size": 60,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_TURNED = {"rope_type": "default", "rope_theta": 300.0}
# Component -> the class, and fields that other released models, or users' own, have otherwise.
OTHER_NUMBERS = {
    "qwen3": ("Qwen3", {"head_dim": 12, "rope_parameters": _TURNED, "rms_norm_eps": 1e-3}),
    "mistral": (
        "Mistral",
        {"head_dim": 12, "rope_parameters": _TURNED, "rms_norm_eps": 1e-3, "sliding_window": None},
    ),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 20,
            "rms_norm_eps": 1e-3,
            "rope_parameters": _TURNED,
            "query_pre_attn_scalar": 12,
            "sliding_window": 20,
            "attn_logit_softcapping": 2.0,
            "attn_implementation": "eager",
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLText",
        {
            "hidden_size": 512,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {**_TURNED, "mrope_section": [8, 28, 28]},
        },
    ),
    "qwen3_vl": (
        "Qwen3VLText",
        {
            "head_dim": 128,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {**_TURNED, "mrope_section": [22, 21, 21], "mrope_interleaved": True},
        },
    ),
}


@pytest.mark.parametrize("component", OTHER_NUMBERS)
def test_numbers_of_a_text_encoder_are_those_of_its_config(component, tmp_path):
    kind, fields = OTHER_NUMBERS[component]
    config = getattr(transformers, f"{kind}Config", None) or _config_of(kind)
    with float64_throughout():
        peer = _class_of(kind)(config(**{**_TEXT, **fields})).eval()
        redraw(peer, 3)
    peer.save_pretrained(tmp_path / "text_encoder")
    ids = np.random.default_rng(1).integers(0, 60, (2, 20))
    with float64_throughout():
        want = peer(torch.from_numpy(ids)).last_hidden_state
    found = answer(open_checkpoint(tmp_path), component, {"input_ids": ids})
    assert distance(found["last_hidden_state"], want) <= 1e-12


def _config_of(kind):
    return _class_of(kind).config_class


def _class_of(kind):
    inner = {
        "Qwen2_5_VLText": transformers.models.qwen2_5_vl.modeling_qwen2_5_vl,
        "Qwen3VLText": transformers.models.qwen3_vl.modeling_qwen3_vl,
    }
    return getattr(inner.get(kind, transformers), f"{kind}Model")


def test_heads_of_qwen_image_are_those_of_its_config(tmp_path):
    fields = {"attention_head_dim": 24, "axes_dims_rope": [8, 10, 6], "num_attention_heads": 3, "num_layers": 2}
    with float64_throughout():
        peer = diffusers.QwenImageTransformer2DModel(
            **fields, in_channels=16, out_channels=4, joint_attention_dim=40
        )
        redraw(peer.eval(), 4)
    peer.save_pretrained(tmp_path / "transformer")
    z, context, t = draw((2, 4, 6, 10), 1), draw((2, 7, 40), 2), np.array([0.25, 0.8])
    tokens = z.reshape(2, 4, 3, 2, 5, 2).transpose(0, 2, 4, 1, 3, 5).reshape(2, 15, 16)
    with float64_throughout():
        want = peer(
            hidden_states=torch.from_numpy(tokens),
            encoder_hidden_states=torch.from_numpy(context),
            encoder_hidden_states_mask=torch.ones(2, 7, dtype=torch.bool),
            timestep=torch.from_numpy(t),
            img_shapes=[[(1, 3, 5)]] * 2,
        ).sample
    want = want.reshape(2, 3, 5, 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(z.shape)
    found = answer(open_checkpoint(tmp_path), "qwen-image", {"x": z, "timesteps": t, "context": context})
    assert distance(found["out"], want) <= 1e-12


@pytest.mark.parametrize("head_dim", [12, 20, 64])
@pytest.mark.parametrize("norms", [{}, {"eps": 0.02, "cross_attn_norm": False}])
def test_heads_and_norms_of_wan_are_those_of_its_config(head_dim, norms, tmp_path):
    with float64_throughout():
        sizes = {"num_attention_heads": 2, "attention_head_dim": head_dim, "num_layers": 2, "rope_max_seq_len": 32}
        channels = {"in_channels": 4, "out_channels": 4, "text_dim": 40, "ffn_dim": 56}
        peer = diffusers.WanTransformer3DModel(**sizes, **channels, **norms)
        redraw(peer.eval(), 4)
    peer.save_pretrained(tmp_path / "transformer")
    inputs = {"x": draw((2, 4, 3, 6, 10), 1), "timesteps": np.array([31.25, 987.5]), "context": draw((2, 7, 40), 2)}
    with float64_throughout():
        want = peer(*map(torch.from_numpy, inputs.values())).sample
    assert distance(answer(open_checkpoint(tmp_path), "wan", inputs)["out"], want) <= 1e-12


def test_axes_and_eps_of_lumina2_are_those_of_its_config(tmp_path):
    with float64_throughout():
        peer = peer_lumina2(4, 2, (4, 6, 6), 2, 1, norm_eps=0.02)
        redraw(peer.eval(), 4)
    peer.save_pretrained(tmp_path / "transformer")
    width = peer.config.cap_feat_dim
    inputs = {"x": draw((2, 16, 6, 10), 1), "timesteps": np.array([0.25, 0.8]), "context": draw((2, 7, width), 2)}
    with float64_throughout():
        want = peer(*map(torch.from_numpy, inputs.values()), torch.ones(2, 7, dtype=torch.long)).sample
    assert distance(answer(open_checkpoint(tmp_path), "lumina2", inputs)["out"], want) <= 1e-12


def test_axes_theta_and_eps_of_zimage_are_those_of_its_config(tmp_path):
    sizes = {"in_channels": 16, "dim": 48, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 3, "n_kv_heads": 3}
    turning = {"axes_dims": [4, 6, 6], "axes_lens": [256, 64, 64], "rope_theta": 40.0, "norm_eps": 0.02}
    with float64_throughout():
        peer = diffusers.ZImageTransformer2DModel(**sizes, cap_feat_dim=40, **turning)
        redraw(peer.eval(), 4)
    peer.save_pretrained(tmp_path / "transformer")
    inputs = {"x": draw((2, 16, 6, 10), 1), "timesteps": np.array([0.25, 0.8]), "context": draw((2, 7, 40), 2)}
    with float64_throughout():
        want = answer_of_zimage(peer, *inputs.values())
    assert distance(answer(open_checkpoint(tmp_path), "zimage", inputs)["out"], want) <= 1e-12


def _flux(peer, x, timesteps, context, **more):
    """Chroma is called as FLUX.1, without pooled text and guidance."""
    given = {"hidden_states": packed(x), "encoder_hidden_states": torch.from_numpy(context)}
    given |= {"timestep": torch.from_numpy(timesteps), "img_ids": image_ids(*x.shape[2:])}
    given |= {name: torch.from_numpy(array) for name, array in more.items()}
    return peer(**given, txt_ids=torch.zeros(context.shape[1], 3)).sample


def _flux2(peer, **given):
    return torch.from_numpy(pack(answer_of_flux2(peer, **given).detach().numpy()))


def _flux3(peer, **given):
    return torch.from_numpy(
        pack(np.asarray(answer_of_flux3(peer, **given)).swapaxes(1, 2).reshape(given["x"].shape))
    )


def _krea2(peer, x, timesteps, context):
    ids = token_ids(context.shape[1], *x.shape[2:])
    return peer(packed(x), *map(torch.from_numpy, (context, timesteps, ids))).sample


def _qwen_image21(peer, x, timesteps, context):
    tokens = peer(**asked(x, timesteps, context)).sample
    return torch.from_numpy(pack(picture_of(tokens, x.shape).detach().numpy()))


def _ernie_image(peer, x, timesteps, context):
    told = map(torch.from_numpy, (x, 1000 * timesteps, context))
    y = peer(*told, torch.full((len(x),), context.shape[1])).sample
    return torch.from_numpy(pack(y.numpy()))


def _ideogram4(peer, **given):
    y = run_ideogram4(peer, {name: torch.from_numpy(array) for name, array in given.items()}, {})["out"]
    return torch.from_numpy(pack(y.numpy()))


_NOISY = {"x": draw((2, 4, 6, 10), 1), "timesteps": np.array([0.25, 0.8]), "context": draw((2, 7, 11), 2)}
_FLUX3 = Flux3Size(60, 1, 2, 20, 120, 4, 4, 11, 32)
_STATES = {**_NOISY, "x": draw((2, 16, 6, 10), 1), "context": draw((2, 7, STATES, 2 * TEXT_HEAD), 2)}
_GUIDANCE = {"guidance": np.array([3.5, 1.25])}
# Component -> the original, its call, its inputs
DENOISERS = {
    "flux": (lambda: peer_flux(3, (4, 6, 2), True), _flux, {**_NOISY, "y": draw((2, 13), 3), **_GUIDANCE}),
    "chroma": (lambda: peer_chroma(3, (4, 6, 2)), _flux, _NOISY),
    "flux2": (
        lambda: peer_flux2(3, (4, 6, 2, 8), True, 4, rope_theta=40, eps=0.02),
        _flux2,
        {**_NOISY, **_GUIDANCE},
    ),
    "flux3": (
        lambda: peer_flux3(_FLUX3, (4, 6, 2, 8), draw_weights(flux3_shapes(_FLUX3), 3), rope_theta=40, eps=0.02),
        _flux3,
        _NOISY,
    ),
    "krea2": (lambda: peer_krea2(2, 1, 2, (4, 6, 2), rope_theta=40.0, norm_eps=0.02), _krea2, _STATES),
    "qwen-image21": (lambda: peer_qwen_image21(3, (4, 6, 2), 4, 11, eps=0.02), _qwen_image21, _NOISY),
    "ernie-image": (lambda: peer_ernie_image(3, (4, 6, 2), 11, 4, rope_theta=40, eps=0.02), _ernie_image, _NOISY),
    "ideogram4": (
        lambda: peer_ideogram4(3, 12, 11, 4, rope_theta=40, mrope_section=(1, 2, 1), norm_eps=0.02),
        _ideogram4,
        _NOISY,
    ),
}


@pytest.mark.parametrize("component", DENOISERS)
def test_axes_theta_and_eps_of_a_denoiser_are_those_of_its_config(component, tmp_path):
    make, call, inputs = DENOISERS[component]
    with float64_throughout():
        peer = make().eval()
        redraw(peer, 4)
        want = call(peer, **{"pooled_projections" if name == "y" else name: a for name, a in inputs.items()})
    peer.save_pretrained(tmp_path / "transformer")
    checkpoint = open_checkpoint(tmp_path)
    assert distance(pack(answer(checkpoint, component, inputs)["out"]), want) <= 1e-12
    assert living_component(peer).config == checkpoint.components[component].config


def test_a_folder_of_minimax_h3(tmp_path):
    """Its rotary channels do not fill a head, each kind of norm has an eps of its own, and it has two outputs."""
    inputs = inputs_of((3, 4, 6), 7, 5, ())
    with float64_throughout():
        peer = peer_minimax_h3(2, 32, 5, rope_theta=40.0).eval()
        redraw(peer, 4)
        given = {name: torch.from_numpy(x) for name, x in inputs.items()}
        want = ORIGINALS["minimax-h3"].run(peer, given, {})
    peer.save_pretrained(tmp_path / "transformer")
    checkpoint = open_checkpoint(tmp_path)
    got = answer(checkpoint, "minimax-h3", inputs)
    assert all(distance(got[name], want[name]) <= 1e-12 for name in ("out", "audio_out"))
    assert living_component(peer).config == checkpoint.components["minimax-h3"].config


@pytest.mark.parametrize("new", [False, True], ids=["ltx2", "ltx23"])
def test_a_folder_of_ltx2(tmp_path, new):
    """Heads, theta, eps, extents and the gates' factor are read from config.json; it has two outputs."""
    params = {"extent": [8, 640, 320], "audio_extent": 10, "theta": 40.0, "eps": 0.02, "gate_scale": 0.25}
    inputs = inputs_of_ltx2("", *((48, 24) if new else (14, 14)), (3, 2, 4), 5, 7)
    with float64_throughout():
        peer = peer_ltx2(3, 16, 3, 8, new, params).eval()
        redraw(peer, 4)
        given = {name: torch.from_numpy(x) for name, x in inputs.items()}
        want = LTX2_ORIGINALS["ltx2"].run(peer, given, {})
    peer.save_pretrained(tmp_path / "transformer")
    checkpoint = open_checkpoint(tmp_path)
    got = answer(checkpoint, "ltx2", inputs)
    assert all(distance(got[name], want[name]) <= 1e-12 for name in ("out", "audio_out"))
    assert living_component(peer).config == checkpoint.components["ltx2"].config


def test_a_folder_of_ltx2_s_autoencoder(tmp_path):
    """Statistics are tensors; what convolutions see beyond a video, and shortcuts, are read from config.json."""
    x, z = draw((2, 3, 9, 64, 96), 1), draw((2, 6, 2, 2, 3), 2)
    given, times = {"encoder_causal": False, "encoder_mirrors": True}, np.array([0.05, 0.4])
    seen = {"decoder_causal": True, "decoder_mirrors": False, "shortcuts": True}
    with float64_throughout():
        peer = peer_vae_ltx2(
            LTX2_VAE,
            encoder_causal=False,
            encoder_spatial_padding_mode="reflect",
            decoder_causal=True,
            decoder_spatial_padding_mode="zeros",
            upsample_residual=[True] * 4,
        )
        want = LTX2_VAE_ORIGINALS["ltx2-vae-encoder"].run(peer, {"x": torch.from_numpy(x)}, given)
        tensors = {"z": torch.from_numpy(z), "timesteps": torch.from_numpy(times)}
        want |= LTX2_VAE_ORIGINALS["ltx2-vae-decoder"].run(peer, tensors, seen)
    peer.save_pretrained(tmp_path / "vae")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.components["ltx2-vae"].config == given | seen
    got = answer(checkpoint, "ltx2-vae-encoder", {"x": x})
    got |= answer(checkpoint, "ltx2-vae-decoder", {"z": z, "timesteps": times})
    assert all(distance(got[name], want[name]) <= 1e-12 for name in ("mean", "logvar", "out"))
    found = living_component(peer)
    assert (found.name, found.config) == ("ltx2-vae", checkpoint.components["ltx2-vae"].config)


def test_a_folder_of_minimax_h3_s_autoencoder(tmp_path):
    """Its statistics, eps and theta are read from config.json; q, k and v are joined head by head."""
    x, z = draw((2, 3, 1, 32, 48), 1), draw((2, 5, 3, 2, 3), 2)
    with float64_throughout():
        peer = peer_vae_minimax_h3(MINIMAX_H3_VAE, decoder_norm_eps=0.003, norm_eps=0.02, decoder_rope_theta=31.0)
        want = MINIMAX_H3_VAE_ORIGINALS["minimax-h3-vae-encoder"].run(peer, {"x": torch.from_numpy(x)}, {})
        want |= MINIMAX_H3_VAE_ORIGINALS["minimax-h3-vae-decoder"].run(peer, {"z": torch.from_numpy(z)}, {})
    peer.save_pretrained(tmp_path / "vae")
    checkpoint = open_checkpoint(tmp_path)
    got = answer(checkpoint, "minimax-h3-vae-encoder", {"x": x})
    got |= answer(checkpoint, "minimax-h3-vae-decoder", {"z": z})
    assert all(distance(got[name], want[name]) <= 1e-12 for name in ("mean", "logvar", "out"))
    found = living_component(peer)
    assert (found.name, found.config) == ("minimax-h3-vae", checkpoint.components["minimax-h3-vae"].config)


def test_a_folder_of_wan_22_s_autoencoder(tmp_path):
    """Its statistics are read from config.json, and diffusers' class is Wan 2.1's too."""
    x = draw((2, 3, 5, 16, 32), 1)
    with float64_throughout():
        peer = peer_vae_wan22(tiny_vae_wan22.SIZE)
        redraw(peer, 4)
        want = WAN_ORIGINALS["wan22-vae-encoder"].run(peer, {"x": torch.from_numpy(x)}, {})
    peer.save_pretrained(tmp_path / "vae")
    checkpoint = open_checkpoint(tmp_path)
    got = answer(checkpoint, "wan22-vae-encoder", {"x": x})
    assert all(distance(got[name], want[name]) <= 1e-12 for name in ("mean", "logvar"))
    found = living_component(peer)
    assert (found.name, found.config) == ("wan22-vae", checkpoint.components["wan22-vae"].config)
    assert found.config["latents_std"] == [2.0] * 3
