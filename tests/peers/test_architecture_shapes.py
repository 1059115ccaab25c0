"""Full-size tables against what diffusers and transformers make of the published configurations, on no memory."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import diffusers
import pytest
import torch

from refsd.weights import architecture_chroma as chroma
from refsd.weights import architecture_flux as flux
from refsd.weights import architecture_zimage as zimage
from refsd.weights import keymaps, keymaps_chroma, keymaps_zimage
from refsd.weights.keymaps import Keymap

pytestmark = [
    pytest.mark.peer,
    # diffusers imports its own FluxPosEmbed from where it deprecates it.
    pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated:FutureWarning"),
]


class Full(NamedTuple):
    """A published size, the peer it is of, and how the two name their tensors."""

    size: Any
    shapes: Callable[..., dict[str, tuple[int, ...]]]
    read: Callable[..., Any]
    keymap: Keymap
    peer: Callable[[], torch.nn.Module]


def flux_of(size: flux.FluxSize, **more) -> Full:
    def peer():
        return diffusers.FluxTransformer2DModel(
            num_layers=19,
            num_single_layers=38,
            attention_head_dim=128,
            num_attention_heads=24,
            joint_attention_dim=4096,
            pooled_projection_dim=768,
            **{"in_channels": 64, "out_channels": 64, "guidance_embeds": True} | more,
        )

    return Full(size, flux.flux_shapes, flux.flux_size, keymaps.flux(), peer)


FULL = {
    "flux-dev": flux_of(flux.FLUX_DEV),
    "flux-schnell": flux_of(flux.FLUX_SCHNELL, guidance_embeds=False),
    "flux-fill": flux_of(flux.FLUX_FILL, in_channels=384),
    "flux-control": flux_of(flux.FLUX_CONTROL, in_channels=128),
    "chroma": Full(
        chroma.CHROMA,
        chroma.chroma_shapes,
        chroma.chroma_size,
        keymaps_chroma.chroma(),
        lambda: diffusers.ChromaTransformer2DModel(
            num_layers=19,
            num_single_layers=38,
            attention_head_dim=128,
            num_attention_heads=24,
            joint_attention_dim=4096,
            approximator_num_channels=64,
            approximator_hidden_dim=5120,
            approximator_layers=5,
        ),
    ),
    "zimage": Full(
        zimage.ZIMAGE,
        zimage.zimage_shapes,
        zimage.zimage_size,
        keymaps_zimage.zimage(),
        lambda: diffusers.ZImageTransformer2DModel(
            in_channels=16,
            dim=3840,
            n_layers=30,
            n_refiner_layers=2,
            n_heads=30,
            n_kv_heads=30,
            cap_feat_dim=2560,
        ),
    ),
}


def state_of(peer: Callable[[], torch.nn.Module]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in peer().state_dict().items()}


@pytest.mark.parametrize("name", FULL)
def test_full_size_both_ways(name):
    full = FULL[name]
    theirs = state_of(full.peer)
    ours = full.shapes(full.size)
    found, rest = full.keymap.sources(theirs)
    assert rest == []
    assert {name: source.shape(theirs) for name, source in found.items()} == ours
    assert {part for name in ours for part in full.keymap.theirs(name).names} == theirs.keys()
    assert sum(map(math.prod, ours.values())) == sum(map(math.prod, theirs.values()))
    assert full.read({name: source.shape(theirs) for name, source in found.items()}) == full.size


def test_zimage_is_in_the_originals_order():
    """But for the norms of queries and keys, which diffusers makes before the projections."""

    def modules(names):
        return list(dict.fromkeys(".".join(name.split(".")[:3]) for name in names))

    state = state_of(FULL["zimage"].peer)
    order = [FULL["zimage"].keymap.ours(name)[0] for name in state]
    assert modules(order) == modules(zimage.zimage_shapes(zimage.ZIMAGE))
