"""IP-Adapters against diffusers, in float64: from a file beside a UNet's folder to what the UNet predicts."""

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of, redraw
from safetensors.numpy import save_file
from test_models_sdxl import CONFIGS as SDXL
from test_models_sdxl import peer_unet as peer_sdxl
from test_models_unet import CONFIGS as SD1
from test_models_unet import peer_unet
from test_odd_widths import answered

from refsd.models.ip_adapter.network import IPAdapterSize, ip_adapter_shapes, ip_adapter_size
from refsd.models.unet import size_condition
from refsd.module import Module
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

# The kinds as diffusers knows them: four tokens of an embedding; four layers and an MLP of four times the width.
KINDS = {
    "plain": IPAdapterSize(24),
    "plus": IPAdapterSize(40, tokens=5, width=192, layers=4, keys=128, mlp=768),
    "full-face": IPAdapterSize(36, tokens=0),
}
UNETS = {name: lambda name=name: peer_unet(*SD1[name][:3]) for name in ("sd15", "odd-levels", "odd-sizes")}
UNETS |= {name: lambda name=name: peer_sdxl(SDXL[name]) for name in ("sd2", "sdxl", "middle-without-attention")}
TIMESTEPS = np.array([981.125, 17.25])


def as_in_a_checkpoint(weights):
    """The nested dicts that the authors' .bin files hold."""
    parts = {"image_proj": {}, "ip_adapter": {}}
    for name, w in weights.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = torch.from_numpy(w)
    return parts


def size_for(peer, kind):
    """Widths of the cross-attentions in the order in which diffusers lists their processors."""
    modules = dict(peer.named_modules())
    listed = [modules[name.removesuffix(".processor")] for name in peer.attn_processors]
    crossing = tuple(m.to_k.out_features for m in listed if m.is_cross_attention)
    return KINDS[kind]._replace(context_dim=peer.config.cross_attention_dim, crossing=crossing)


def seen_by(size):
    """What the vision tower would give; the second item of the batch differs."""
    return draw((2, size.seen) if size.tokens == 4 else (2, 7, size.seen), 5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unet", UNETS)
def test_a_unet_with_an_adapter(tmp_path, unet, kind):
    with float64_throughout():
        peer = UNETS[unet]()
        redraw(peer, 1)
        peer.save_pretrained(tmp_path / "unet")
        size = size_for(peer, kind)
        weights = draw_weights(ip_adapter_shapes(size), seed=2)
        assert ip_adapter_size({name: w.shape for name, w in weights.items()}) == size
        file = tmp_path / ("adapter.safetensors" if kind == "plain" else "adapter.bin")
        save_file(weights, file) if kind == "plain" else torch.save(as_in_a_checkpoint(weights), file)
        peer._load_ip_adapter_weights(as_in_a_checkpoint(weights), low_cpu_mem_usage=False)
        peer.double()
        for processor in peer.attn_processors.values():
            if hasattr(processor, "scale"):
                processor.scale = [0.6]
        x, context, seen = draw((2, 4, 12, 20), 3), draw((2, 7, size.context_dim), 4), seen_by(size)
        inputs = {"x": x, "timesteps": TIMESTEPS, "context": context}
        added = {"image_embeds": [torch.from_numpy(seen)[:, None]]}
        if peer.config.addition_embed_type == "text_time":
            pooled, sizes = draw((2, SDXL[unet].pooled), 6), 900 * np.abs(draw((2, 6), 7))
            inputs["y"] = size_condition(Module({}), pooled, sizes)
            added |= {"text_embeds": torch.from_numpy(pooled), "time_ids": torch.from_numpy(sizes)}
        with outputs_of(peer) as theirs:
            want = peer(*map(torch.from_numpy, (x, TIMESTEPS, context)), added_cond_kwargs=added).sample
    checkpoint = open_checkpoint(tmp_path / "unet", {"--ip-adapter": file})
    argument = "embeds" if kind == "plain" else "penultimate"
    tokens = answered(checkpoint, "ip-adapter", {argument: seen})["ip_tokens"]
    assert distance(tokens, theirs["encoder_hid_proj.image_projection_layers.0"]) <= 1e-12
    got = answered(checkpoint, "unet", inputs | {"ip_tokens": tokens}, ip_scale=0.6)["out"]
    assert distance(got, want) <= 1e-12
    assert distance(answered(checkpoint, "unet", inputs)["out"], want) > 1e-3
