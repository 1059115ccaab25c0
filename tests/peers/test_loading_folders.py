"""Folders that diffusers and transformers save: every family opens, from any kind of file, and answers the same."""

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, draw_weights, float64_throughout, redraw
from test_models_chroma import peer_chroma
from test_models_clip import peer_clip, prompts
from test_models_controlnet import CONFIGS as CONTROLNETS
from test_models_controlnet import peer_controlnet
from test_models_controlnet_sdxl import CONFIGS as SDXL_CONTROLNETS
from test_models_controlnet_sdxl import peer_controlnet as peer_sdxl_controlnet
from test_models_flux2 import answers_vae, peer_flux2, redraw_statistics
from test_models_flux2 import peer_vae as peer_flux2_vae
from test_models_flux3 import answer as flux3_answer
from test_models_flux3 import peer_flux3
from test_models_flux_whole import FluxPipeline, image_ids, packed, peer_flux
from test_models_mistral import peer_mistral
from test_models_mmdit import MMDiTSize as PeerSize
from test_models_mmdit import peer_mmdit
from test_models_qwen3 import peer_config
from test_models_qwen_image import answer as qwen_image_answer
from test_models_qwen_image import peer_qwen_image
from test_models_qwen_image21 import asked, peer_qwen_image21, picture_of
from test_models_sdxl import CONFIGS, peer_unet
from test_models_sdxl import peer_clip as peer_openclip
from test_models_t5 import peer_t5
from test_models_taesd import peer_taesd
from test_models_vae import CONFIGS as VAES
from test_models_vae import peer_vae
from test_models_zimage import answer as zimage_answer
from test_models_zimage import peer_zimage
from transformers import CLIPTextModelWithProjection, Qwen3Model

from refsd.components import forward, load
from refsd.models.clip.network import CLIPSize
from refsd.models.flux3 import AXES_DIM
from refsd.models.flux3.network import Flux3Size, flux3_shapes
from refsd.models.mistral.network import MistralSize
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.t5.network import T5Size
from refsd.models.unet import size_condition
from refsd.models.vae_flux2.network import Flux2VAESize
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")]

T = np.array([0.98125, 0.0317])
X = draw((2, 4, 6, 10), 1)
IDS = np.random.default_rng(3).integers(0, 50, (2, 9))
LLM = {"hidden": 40, "layers": 3, "heads": 2, "kv_heads": 1, "head_dim": 128, "mlp": 56, "vocab": 50}
SAVED = {
    "plain": {},
    "shards": {"max_shard_size": "40KB"},
    "fp16": {"variant": "fp16"},
    "fp16 shards": {"variant": "fp16", "max_shard_size": "40KB"},
}


def of(array):
    return torch.from_numpy(array)


def _flux():
    peer = peer_flux(1, (16, 56, 56), True)
    context, y, g = draw((2, 5, 11), 2), draw((2, 13), 3), np.array([3.5, 1.25])

    def run():
        out = peer(
            hidden_states=packed(X),
            encoder_hidden_states=of(context),
            pooled_projections=of(y),
            timestep=of(T),
            img_ids=image_ids(6, 10),
            txt_ids=torch.zeros(5, 3),
            guidance=of(g),
        ).sample
        return FluxPipeline._unpack_latents(out, 48, 80, 8)

    return peer, run, "flux", {"x": X, "timesteps": T, "context": context, "y": y, "guidance": g}


def _chroma():
    peer, context = peer_chroma(1, (16, 56, 56)), draw((2, 5, 11), 2)

    def run():
        out = peer(packed(X), of(context), of(T), image_ids(6, 10), torch.zeros(5, 3)).sample
        return FluxPipeline._unpack_latents(out, 48, 80, 8)

    return peer, run, "chroma", {"x": X, "timesteps": T, "context": context}


def _zimage():
    peer = peer_zimage(1, (32, 48, 48), 2, 1, 40)
    x, context = draw((2, 16, 6, 10), 1), draw((2, 7, 40), 2)
    inputs = {"x": x, "timesteps": T, "context": context}
    return peer, lambda: zimage_answer(peer, x, T, list(context)), "zimage", inputs


def _qwen_image(zero_cond_t):
    """Edit 2511 is told from Edit 2509 by config.json alone."""
    peer = peer_qwen_image(1, (16, 56, 56), zero_cond_t=zero_cond_t)
    x, context, reference = draw((2, 16, 6, 10), 1), draw((2, 7, 40), 2), draw((2, 16, 4, 2), 3)
    inputs = {"x": x, "timesteps": T, "context": context, "reference": reference}
    return peer, lambda: qwen_image_answer(peer, x, T, context, None, [reference]), "qwen-image", inputs


def _qwen_image21():
    peer = peer_qwen_image21(1, (16, 56, 56))
    x, context = draw((2, 5, 6, 10), 1), draw((2, 7, 20), 2)
    inputs = {"x": x, "timesteps": T, "context": context}
    return peer, lambda: picture_of(peer(**asked(x, T, context)).sample, x.shape), "qwen-image21", inputs


def _flux2():
    peer = peer_flux2(1, (32, 32, 32, 32), True)
    x, context, g = draw((2, 12, 3, 5), 1), draw((2, 7, 11), 2), np.array([4.0, 1.5])
    row, column = np.indices((3, 5)).reshape(2, -1)
    ids = torch.tensor(np.stack([0 * row, row, column, 0 * row], 1), dtype=torch.float64)
    words = torch.zeros(7, 4, dtype=torch.float64)
    words[:, 3] = torch.arange(7)

    def run():
        tokens = of(x).reshape(2, 12, -1).swapaxes(1, 2)
        out = peer(tokens, of(context), of(T), ids, words, of(g)).sample
        return out.swapaxes(1, 2).reshape(2, 12, 3, 5)

    return peer, run, "flux2", {"x": x, "timesteps": T, "context": context, "guidance": g}


def _flux3():
    """The distilled model with a reference."""
    size = Flux3Size(128, 1, 2, 128, 256, 12, 12, 11, 32, True)
    peer = peer_flux3(size, AXES_DIM, draw_weights(flux3_shapes(size), 3))
    x, context, reference = draw((2, 12, 3, 5), 1), draw((2, 7, 11), 2), draw((2, 12, 4, 2), 3)
    target = np.array([0.25, 0.125])
    run = lambda: flux3_answer(peer, x, T, context, target, [reference]).swapaxes(1, 2).reshape(x.shape)
    inputs = {"x": x, "timesteps": T, "context": context, "target_timesteps": target, "reference": reference}
    return peer, run, "flux3", inputs


def _sd3():
    size = PeerSize(2, 24, 2, 4, 12, qk_norm=True, dual=(0,))
    peer = peer_mmdit(size)
    context, y, t = draw((2, 5, size.context_dim), 2), draw((2, size.pooled), 3), 1000 * T
    run = lambda: peer(of(X), of(context), of(y), of(t)).sample
    return peer, run, "mmdit", {"x": X, "timesteps": t, "context": context, "y": y}


def _unet(name):
    config = CONFIGS[name]
    peer, context = peer_unet(config), draw((2, 5, config.size.context_dim), 2)
    x = draw((2, config.size.in_channels, 8, 16), 1)
    y, added = _label(config)
    inputs = {"x": x, "timesteps": 1000 * T, "context": context, **y}
    return peer, lambda: peer(of(x), of(1000 * T), of(context), added_cond_kwargs=added).sample, "unet", inputs


def _label(config):
    """What SDXL is told besides, for us and for diffusers."""
    if not config.pooled:
        return {}, None
    pooled, sizes = draw((2, config.pooled), 4), np.abs(draw((2, config.sizes), 5)) * 1000
    y = size_condition(Module({}, Arithmetic(FLOAT64)), pooled, sizes)
    return {"y": y}, {"text_embeds": of(pooled), "time_ids": of(sizes)}


def _controlnet():
    size, num_heads, num_groups, widths, *_ = CONTROLNETS["odd-levels"]
    return _controlled(peer_controlnet(size, num_heads, num_groups, widths), size, {}, None)


def _sdxl_controlnet(name):
    case = SDXL_CONTROLNETS[name]
    return _controlled(peer_sdxl_controlnet(case), case.config.size, *_label(case.config))


def _controlled(peer, size, y, added):
    x, context, hint = (
        draw((2, size.in_channels, 4, 8), 1),
        draw((2, 5, size.context_dim), 2),
        draw((2, 3, 32, 64), 3),
    )
    inputs = {"x": x, "timesteps": 1000 * T, "context": context, "hint": hint, **y}
    given = [of(array) for array in (x, 1000 * T, context, hint)]
    run = lambda: peer(*given, added_cond_kwargs=added).down_block_res_samples[0]
    return peer, run, "controlnet", inputs


def _vae(name):
    size, num_groups, *_, without, _ = VAES[name]
    peer, z = peer_vae(size, num_groups, without), draw((2, size.latent_channels, 3, 2), 1)
    return peer, lambda: peer.decode(of(z)).sample, "vae-decoder", {"z": z}


def _flux2_vae():
    size = Flux2VAESize(24, (24, 48), (16, 32), 1, 4)
    peer, z = peer_flux2_vae(size, 8), draw((2, 16, 3, 2), 1)
    redraw_statistics(peer, 2)
    return peer, lambda: answers_vae(peer, draw((1, 3, 8, 8), 2), z)[1], "flux2-vae-decoder", {"z": z}


def _bigg():
    """As deep as bigG, which a folder is known by."""
    size = CLIPSize(hidden=64, layers=32, mlp=40, vocab=90, positions=11)
    peer, ids = peer_openclip(CLIPTextModelWithProjection, size, 89, 24), prompts(size, 9, 89)
    return peer, lambda: peer(of(ids)).text_embeds, "clip_g", {"input_ids": ids}


def _tae():
    peer, z = peer_taesd(8, 4, (1, 3, 3, 3)), draw((2, 4, 3, 5), 1)
    return peer, lambda: (peer.decode(of(z)).sample + 1) / 2, "tae-decoder", {"z": z}


def _t5(every_layer):
    peer = peer_t5(T5Size(40, 2, 3, 8, 72, vocab=50, table_in_every_layer=every_layer))
    return peer, lambda: peer(of(IDS)).last_hidden_state, "t5", {"input_ids": IDS}


def _qwen3():
    peer = Qwen3Model(peer_config(Qwen3Size(**LLM))).eval()
    return peer, lambda: peer(of(IDS)).last_hidden_state, "qwen3", {"input_ids": IDS}


def _mistral():
    peer = peer_mistral(MistralSize(**LLM)).eval()
    return peer, lambda: peer(of(IDS)).last_hidden_state, "mistral", {"input_ids": IDS}


def _clip():
    size = CLIPSize(hidden=60, layers=3, mlp=40, vocab=90, positions=11)
    peer, ids = peer_clip(size, 5, 89), prompts(size, 9, 89)
    return peer, lambda: peer(of(ids)).last_hidden_state, "clip", {"input_ids": ids}


FAMILIES = {
    "sd2": lambda: _unet("sd2"),
    "sdxs-09": lambda: _unet("cross-only"),
    "sdxl": lambda: _unet("sdxl"),
    "sdxl-refiner": lambda: _unet("refiner"),
    "controlnet": _controlnet,
    "controlnet-sd2": lambda: _sdxl_controlnet("sd2-inpaint"),
    "controlnet-sdxl": lambda: _sdxl_controlnet("sdxl"),
    "vae": lambda: _vae("two-levels"),
    "vae of 16 channels": lambda: _vae("sixteen-latents"),
    "vae of flux": lambda: _vae("flux, odd"),
    "vae of flux2": _flux2_vae,
    "bigg": _bigg,
    "sd3.5": _sd3,
    "flux": _flux,
    "chroma": _chroma,
    "zimage": _zimage,
    "qwen-image": lambda: _qwen_image(False),
    "qwen-image-edit-2511": lambda: _qwen_image(True),
    "qwen-image21": _qwen_image21,
    "flux2": _flux2,
    "flux3": _flux3,
    "tae": _tae,
    "t5": lambda: _t5(False),
    "umt5": lambda: _t5(True),
    "qwen3": _qwen3,
    "mistral": _mistral,
    "clip": _clip,
}
FOLDER = {
    "unet": "unet",
    "controlnet": "controlnet",
    "clip_g": "text_encoder_2",
    "tae-decoder": "vae",
    "t5": "text_encoder_2",
    "clip": "text_encoder",
}
FOLDER |= dict.fromkeys(("qwen3", "mistral"), "text_encoder")
FOLDER |= dict.fromkeys(("vae-decoder", "flux2-vae-decoder"), "vae")
# What is compared where it is not the first, and what the config does not tell.
OUTPUT, EOS = {"clip_g": "pooled"}, {"clip_g": {"eos": 89}}


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_answers_as_what_saved_it(tmp_path, family, saved):
    with float64_throughout():
        peer, run, component, inputs = FAMILIES[family]()
        redraw(peer, 4)
        want = run()
        folder = tmp_path / FOLDER.get(component, "transformer")
        peer.save_pretrained(folder, **SAVED[saved])
    assert list(folder.glob("*.index*json")) or "shards" not in saved
    m, params = load(open_checkpoint(tmp_path), component, Arithmetic(FLOAT64))
    got = forward(component, m, inputs, params | EOS.get(component, {}))
    assert distance(got[OUTPUT.get(component, next(iter(got)))], want) <= 1e-12


@pytest.mark.parametrize("family", ["flux", "sd3.5", "clip", "qwen3"])
def test_a_pickle_of_torch(tmp_path, family):
    with float64_throughout():
        peer, run, component, inputs = FAMILIES[family]()
        redraw(peer, 4)
        want = run()
        peer.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.unlink()
    stem = "pytorch_model" if file.stem == "model" else file.stem
    torch.save(peer.state_dict(), tmp_path / f"{stem}.bin")
    m, params = load(open_checkpoint(tmp_path), component, Arithmetic(FLOAT64))
    got = forward(component, m, inputs, params)
    assert distance(next(iter(got.values())), want) <= 1e-12
