"""The key maps and the folder reader against diffusers' and transformers' own names, shapes and converter."""

import diffusers
import numpy as np
import pytest
import torch
import transformers
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint

from refsd.models.flux.network import flux_keymap
from refsd.models.unet.network import unet_keymap
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.models.vae.network import VAESize, vae_keymap, vae_shapes
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

WIDTHS = (32, 64, 128, 128)


@pytest.fixture(scope="module")
def unet():
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(block_out_channels=WIDTHS, cross_attention_dim=16, sample_size=8)


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    return diffusers.AutoencoderKL(
        block_out_channels=WIDTHS,
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        layers_per_block=2,
    )


def random_weights(shapes):
    rng = np.random.default_rng(1)
    return {name: stored(rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name].values(), np.asarray(tensor))


def test_unet_as_diffusers_converts_it(unet):
    weights = random_weights(unet_shapes(UNetSize(32, (32, 64, 128, 128), context_dim=16)))
    original = {f"model.diffusion_model.{n}": torch.from_numpy(t.data.copy()) for n, t in weights.items()}
    theirs = convert_ldm_unet_checkpoint(original, dict(unet.config))
    assert_same(unet_keymap().write(weights), theirs)
    unet.load_state_dict(theirs, strict=True)


def test_vae_as_diffusers_converts_it(vae):
    weights = random_weights(vae_shapes(VAESize(32, (32, 64, 128, 128))))
    original = {f"first_stage_model.{n}": torch.from_numpy(t.data.copy()) for n, t in weights.items()}
    theirs = convert_ldm_vae_checkpoint(original, dict(vae.config))
    assert_same(vae_keymap().write(weights), theirs)
    vae.load_state_dict(theirs, strict=True)


def test_flux_names_are_diffusers():
    model = diffusers.FluxTransformer2DModel(
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=8,
        in_channels=4,
        axes_dims_rope=(4, 6, 6),
        guidance_embeds=True,
    )
    names = set(model.state_dict())
    sources, rest = flux_keymap(2, 2).sources(names)
    assert rest == []
    assert {part for source in sources.values() for part in source.names} == names


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_a_pipeline_folder(unet, vae, tmp_path, variant):
    config = transformers.CLIPTextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
    )
    clip = transformers.CLIPTextModel(config)
    unet.save_pretrained(tmp_path / "unet", variant=variant)
    vae.save_pretrained(tmp_path / "vae", variant=variant)
    clip.save_pretrained(tmp_path / "text_encoder")
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.family and checkpoint.family.name, checkpoint.layout) == ("sd15", "diffusers")
    assert checkpoint.components["clip"].config == {"num_heads": 2, "hidden_act": "quick_gelu", "eps": 1e-5}
    for name, model in (("unet", unet), ("vae", vae)):
        weights = checkpoint.components[name].weights
        back = {"unet": unet_keymap, "vae": vae_keymap}[name]().write({ours: weights[ours] for ours in weights})
        assert_same(back, model.state_dict())


def test_shards(unet, tmp_path):
    unet.save_pretrained(tmp_path, max_shard_size="8MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    weights = open_checkpoint(tmp_path).components["unet"].weights
    np.testing.assert_array_equal(weights["out.2.weight"].values(), unet.conv_out.weight.detach().numpy())
