"""A whole CLIP, both towers: its text encoder is read, its picture encoder is not."""

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.models.clip.network import CLIPSize, clip_shapes
from refsd.models.clip.openclip_names import OpenCLIP
from refsd.models.vision.network import vision_shapes
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.weights import detect, open_checkpoint
from refsd.weights.checkpoint import survey

LARGE = CLIPSize(64, 2, 96, vocab=50, positions=9, projection=24)
# The picture's half as transformers has it, and as OpenCLIP; a few of its tensors.
TRANSFORMERS = {
    "vision_model.embeddings.class_embedding": (48,),
    "vision_model.embeddings.patch_embedding.weight": (48, 3, 14, 14),
    "vision_model.encoder.layers.0.self_attn.k_proj.weight": (48, 48),
    "vision_model.encoder.layers.31.self_attn.k_proj.weight": (48, 48),
    "vision_model.pre_layrnorm.weight": (48,),
    "visual_projection.weight": (24, 48),
    "logit_scale": (),
}
OPENCLIP = {
    "visual.class_embedding": (48,),
    "visual.positional_embedding": (257, 48),
    "visual.conv1.weight": (48, 3, 14, 14),
    "visual.transformer.resblocks.31.attn.in_proj_weight": (144, 48),
    "visual.ln_post.weight": (48,),
    "visual.proj": (48, 24),
    "logit_scale": (),
}


@pytest.fixture(autouse=True)
def _narrow_bigg(monkeypatch):
    monkeypatch.setattr(detect, "_BIGG", small.BIGG)


def drawn(shapes):
    return {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}


def opened(tmp_path, tensors):
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, tmp_path / "a.safetensors")
    return open_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize(("hidden", "component"), [(64, "clip"), (small.BIGG, "clip_g")])
@pytest.mark.parametrize("layout", ["transformers", "open_clip"])
def test_the_text_tower_is_the_component(tmp_path, layout, hidden, component):
    text = drawn(clip_shapes(LARGE._replace(hidden=hidden)))
    pictures = TRANSFORMERS if layout == "transformers" else OPENCLIP
    kept = text
    if layout == "open_clip":
        written = OpenCLIP(2).write({name: stored(array) for name, array in text.items()})
        kept = {name: tensor.values() for name, tensor in written.items()}
    checkpoint = opened(tmp_path, kept | drawn(pictures))
    assert list(checkpoint.components) == [component] and not checkpoint.unknown
    found = checkpoint.components[component]
    assert text.keys() - {"text_projection.weight"} <= set(found.weights)
    assert {name for name in pictures if name.startswith(detect.PICTURE_TOWERS)} <= set(found.extras)


def test_the_picture_tower_alone_is_run_under_transformers_names(tmp_path):
    tower = drawn(vision_shapes(small.FAMILIES["clip-vision-h"]["clip-vision"])) | drawn({"logit_scale": ()})
    checkpoint = opened(tmp_path, tower)
    assert list(checkpoint.components) == ["clip-vision"] and not checkpoint.unknown
    with pytest.raises(BadInput, match="refsd does not run CLIP's picture encoder under OpenCLIP's names"):
        opened(tmp_path, drawn(OPENCLIP))


@pytest.mark.parametrize(
    ("channels", "family", "title"),
    [
        (5, "sd2-depth", "Stable Diffusion 2.x by depth"),
        (7, "sd2-upscale", "Stable Diffusion 2.x for enlarging a picture"),
        (9, "sd2-inpaint", "Stable Diffusion 2.x for inpainting"),
    ],
)
def test_what_a_unet_sees_besides_its_latent_is_in_its_name(tmp_path, channels, family, title):
    size = small.FAMILIES["sd2"]["unet"]._replace(in_channels=channels)
    tensors = {f"model.diffusion_model.{name}": array for name, array in small.weights("unet", size).items()}
    tensors |= drawn({"depth_model.model.scratch.layer1_rn.weight": (2, 2, 3, 3)})
    checkpoint = opened(tmp_path, tensors)
    assert (checkpoint.family.name, checkpoint.family.title) == (family, title)
    assert checkpoint.extras == ["depth_model.model.scratch.layer1_rn.weight"]
    assert survey(tmp_path / "a.safetensors").adapter is None
