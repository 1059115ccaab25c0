"""FLUX.3's transformer against diffusers, in float64: the output, and what every layer gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import Flux3Transformer2DModel
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_flux3_lora_to_diffusers
from diffusers.loaders.single_file_utils import convert_flux3_transformer_checkpoint_to_diffusers
from diffusers.modular_pipelines.flux3.before_denoise import Flux3TextRoPEInputsStep, _prepare_image_ids
from float64_peers import distance, draw, draw_weights, float64_throughout

from refsd.engines.torch.taps import listening
from refsd.models.flux2 import pack
from refsd.models.flux3 import flux3
from refsd.models.flux3.network import FLUX3, FLUX3_DISTILLED, FLUX3_KLEIN, Flux3Size, flux3_keymap, flux3_shapes
from refsd.models.flux3.original import ORIGINALS
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# heads; rotary channels; H, W; words; sizes of references; the distilled model
CONFIGS = {
    "real-head": (2, (32, 32, 32, 32), (3, 5), 7, (), False),
    "narrow": (3, (4, 6, 2, 8), (4, 1), 1, (), False),
    "distilled": (3, (4, 2, 6, 4), (2, 3), 5, (), True),
    "reference": (2, (2, 4, 6, 4), (3, 4), 5, ((5, 2),), False),
    "three-references": (2, (6, 4, 2, 4), (2, 3), 3, ((1, 3), (4, 1), (2, 3)), True),
}


def size_of(heads, axes, distilled) -> Flux3Size:
    """Every dimension is another number."""
    hidden = heads * sum(axes)
    return Flux3Size(hidden, 2, 3, sum(axes), 2 * hidden, 10, 6, 22, 32, distilled)


def peer_flux3(size: Flux3Size, axes, weights, **more) -> Flux3Transformer2DModel:
    """The weights are under Black Forest Labs' names: diffusers converts them."""
    peer = Flux3Transformer2DModel(
        in_channels=size.channels,
        cond_in_channels=size.cond_channels,
        num_layers=size.mode_blocks,
        num_single_layers=size.single_blocks,
        attention_head_dim=size.head_dim,
        num_attention_heads=size.hidden // size.head_dim,
        joint_attention_dim=size.context_dim,
        timestep_channels=size.frequencies,
        mlp_ratio=size.mlp / size.hidden,
        axes_dims_rope=axes,
        flow_map=size.target_time,
        **more,
    ).double()
    native = {name: torch.from_numpy(array) for name, array in weights.items()}
    peer.load_state_dict(convert_flux3_transformer_checkpoint_to_diffusers(native))
    return peer.eval()


def answer(peer, x, timesteps, context, target=None, references=()):
    """As the pipeline's blocks call it."""
    x, timesteps, context, target, *references = (
        None if a is None else torch.from_numpy(a) for a in (x, timesteps, context, target, *references)
    )
    more = {}
    if references:
        more["image_cond_hidden_states"] = torch.cat([one.flatten(2).transpose(1, 2) for one in references], dim=1)
        ids = [_prepare_image_ids(*one.shape[2:], 0.5, l_coord=-k) for k, one in enumerate(references, 1)]
        more["image_cond_ids"] = torch.cat(ids)
    if target is not None:
        more["target_timestep"] = target
    return peer(
        hidden_states=x.flatten(2).transpose(1, 2),
        encoder_hidden_states=context,
        timestep=timesteps,
        img_ids=_prepare_image_ids(*x.shape[2:], 0.5),
        txt_ids=Flux3TextRoPEInputsStep._prepare_text_ids(context),
        **more,
    ).sample


@pytest.mark.parametrize("case", CONFIGS)
def test_every_layer(case):
    heads, axes, hw, words, sizes, distilled = CONFIGS[case]
    size = size_of(heads, axes, distilled)
    x, context = draw((2, size.channels, *hw), 1), draw((2, words, size.context_dim), 2)
    t, target = np.array([0.98125, 0.3172]), np.array([0.75, 0.0]) if distilled else None
    references = [draw((2, size.cond_channels, *one), 10 + k) for k, one in enumerate(sizes)]
    weights = draw_weights(flux3_shapes(size), 3)
    with float64_throughout():
        peer = peer_flux3(size, axes, weights)
        sources, unread = flux3_keymap(2, 2, 2, 3).sources(peer.state_dict())
        assert not unread
        with listening(peer, sources) as outputs:
            want = answer(peer, x, t, context, target, references)
        outputs = ORIGINALS["flux3"].laid_out(outputs, {"x": torch.from_numpy(x)})
    m = Module({name: stored(array) for name, array in weights.items()}, taps=Taps(ops=True))
    got = flux3(m, x, t, context, target, references or None, axes)
    assert distance(pack(got), want) <= 1e-12
    assert "time_in.in_layer.1" in outputs and "single_blocks.2.mlp_out" in outputs
    for name, y in outputs.items():
        assert distance(m.taps[name], y) <= 1e-12, name


@pytest.mark.parametrize("distilled", [False, True])
def test_names_of_diffusers(distilled):
    """What refsd writes under diffusers' names is what diffusers converts to."""
    size = size_of(2, (4, 2, 6, 4), distilled)
    weights = draw_weights(flux3_shapes(size), 3)
    peer = peer_flux3(size, (4, 2, 6, 4), weights)
    ours = flux3_keymap(2, 2, 2, 3).write({name: stored(array) for name, array in weights.items()})
    assert ours.keys() == peer.state_dict().keys()
    for name, tensor in peer.state_dict().items():
        np.testing.assert_array_equal(ours[name].values(), tensor, name)


def test_names_of_loras():
    """diffusers renames those of the blocks alone."""
    shapes, keymap = flux3_shapes(size_of(2, (4, 2, 6, 4), False)), flux3_keymap(2, 2, 2, 3)
    layers = [name.removesuffix(".weight") for name in shapes if "blocks." in name and name.endswith(".weight")]
    assert len(layers) == 9 * 6
    for name in layers:
        source = keymap.theirs(name)
        (found,) = _convert_non_diffusers_flux3_lora_to_diffusers({f"diffusion_model.{name}.lora_A.weight": 0})
        assert source is not None and found == f"transformer.{source.names[0]}.lora_A.weight"


@pytest.mark.parametrize("size", [FLUX3_KLEIN, FLUX3_DISTILLED])
def test_every_tensor_of_the_released_sizes(size):
    with torch.device("meta"):
        peer = Flux3Transformer2DModel(**{k: v for k, v in FLUX3.folder.config(size).items() if k[0] != "_"})
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    ours = flux3_shapes(size)
    sources, unread = flux3_keymap().sources(there)
    assert not unread and ours == {name: source.shape(there) for name, source in sources.items()}
