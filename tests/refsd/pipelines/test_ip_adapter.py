"""A picture as a prompt: an IP-Adapter's tokens beside the text's, and what is refused in one line."""

import numpy as np
import pytest
import small_families
from PIL import Image
from safetensors.numpy import save_file
from small_pictures import call, files, pipeline

from refsd.models.ip_adapter import image_prompt
from refsd.models.vision import clip_vision
from refsd.models.vision.network import VisionSize
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.image_prompt import seen_by_clip
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings
from refsd.weights import open_checkpoint

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]

# The plain kind reads the embedding, of 12 channels, the others hidden states, of 32.
TOWER = VisionSize(32, 2, 40, patch=2, tokens=9, projection=12)
ADAPTERS = {name: small_families.FAMILIES[name]["ip-adapter"] for name in ("ip-adapter", "ip-adapter-plus")}
ADAPTERS["ip-adapter-full-face"] = small_families.FAMILIES["ip-adapter-full-face"]["ip-adapter"]
SETTINGS = Settings("a cat", "ugly", 16, 16, steps=1, cfg_scale=2.0)
PIXELS = [np.random.default_rng(i).integers(0, 256, (9, 13, 3), np.uint8) for i in (3, 4)]
PICTURES = tuple(pixels.transpose(2, 0, 1)[None] / 255 for pixels in PIXELS)
KINDS = list(ADAPTERS)


def parts(kind):
    size = ADAPTERS[kind]
    return {"clip-vision": TOWER, "ip-adapter": size if kind == "ip-adapter" else size._replace(seen=32)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_stand_beside_the_prompts(kind, tmp_path):
    pipe = pipeline(tmp_path, "sd15", **parts(kind))
    plan = resolve(pipe, SETTINGS, ConditioningImages(ip=PICTURES))
    found = txt2img.encode(pipe, plan)
    tower, adapter = (pipe.image_encoders[name] for name in ("clip-vision", "ip-adapter"))

    def tokens(x, factor):
        _, penultimate, embeds = clip_vision(tower.module, x, **tower.params)
        return image_prompt(adapter.module, factor * embeds if kind == "ip-adapter" else penultimate)

    seen = [seen_by_clip(picture, 6) for picture in PICTURES]
    want = np.concatenate([tokens(x, 1) for x in seen], axis=1)
    none = np.concatenate([tokens(x if kind == "ip-adapter" else 0 * x, 0) for x in seen], axis=1)
    assert found.uncond is not None and found.cond.ip_tokens is not None and found.uncond.ip_tokens is not None
    np.testing.assert_allclose(found.cond.ip_tokens, want, rtol=1e-12)
    np.testing.assert_allclose(found.uncond.ip_tokens, none, rtol=1e-12)
    assert found.cond.context.shape == found.uncond.context.shape
    assert {"cond.ip_tokens", "uncond.ip_tokens"} <= found.tensors().keys()


def test_clip_sees_the_middle_in_its_colours():
    wide = np.tile(np.linspace(0, 1, 24), (8, 1))[None, None] * np.ones((1, 3, 1, 1))
    seen = seen_by_clip(wide, 8)
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    bytes_ = np.floor(wide[0, :, :, 8:16] * 255 + 0.5) / 255
    np.testing.assert_allclose(seen[0], (bytes_ - mean[:, None, None]) / std[:, None, None], rtol=1e-12)
    assert seen_by_clip(np.zeros((1, 3, 13, 9)), 6).shape == (1, 3, 6, 6)


def written(tmp_path, family="sd15", **more):
    pipeline(tmp_path, family, **more)
    there = files(tmp_path / family, family, **more)
    return [word for flag, path in there.items() for word in (flag, path)]


def seen(tmp_path):
    Image.fromarray(PIXELS[0]).save(tmp_path / "seen.png")
    return "--ip-image", tmp_path / "seen.png"


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_command_line(kind, tmp_path):
    given = (*written(tmp_path, **parts(kind)), "-p", "a cat", "-W", 16, "-H", 16, "--steps", 1, *seen(tmp_path))
    drawn = {}
    for scale in (0, 0.6, 1):
        out = tmp_path / f"{scale}.png"
        assert call(*given, "--ip-scale", scale, "-o", out).exit_code == 0
        with Image.open(out) as image:
            drawn[scale] = np.array(image)
    plain = [word for word in written(tmp_path) if "adapter" not in str(word)]
    call(*plain, "-p", "a cat", "-W", 16, "-H", 16, "--steps", 1, "-o", tmp_path / "plain.png")
    with Image.open(tmp_path / "plain.png") as image:
        np.testing.assert_array_equal(drawn[0], np.array(image))
    assert not np.array_equal(drawn[0.6], drawn[0]) and not np.array_equal(drawn[0.6], drawn[1])


@pytest.mark.parametrize(
    ("family", "adapter", "said"),
    [
        (
            "sd15",
            "ip-adapter-sdxl",
            r'ip-adapter\.safetensors: tensor "ip_adapter\.1\.to_k_ip\.weight" has shape \[128, 40\]; the UNet\'s '
            r'"input_blocks\.1\.1\.transformer_blocks\.0\.attn2" takes \[32, 24\]: this IP-Adapter was trained for '
            "another model",
        ),
        (
            "sdxl",
            "ip-adapter",
            r'tensor "ip_adapter\.1\.to_k_ip\.weight" has shape \[32, 24\]; .* takes \[128, 40\]',
        ),
        ("flux-dev", "ip-adapter", "an IP-Adapter of SD 1.5 or SDXL; the model is FLUX"),
    ],
)
def test_an_adapter_of_another_model_is_one_line(family, adapter, said, tmp_path):
    size = small_families.FAMILIES[adapter]["ip-adapter"]
    pipeline(tmp_path, family)
    there = files(tmp_path / family, family, **{"ip-adapter": size, "clip-vision": TOWER})
    words = [str(word) for pair in there.items() for word in pair]
    words += ["-p", "a cat", "-o", str(tmp_path / "cat.png"), *map(str, seen(tmp_path))]
    with pytest.raises(BadInput, match=said) as told:
        call(*words)
    assert "\n" not in str(told.value)


def test_what_is_missing(tmp_path):
    with pytest.raises(BadInput, match=r"--ip-adapter and --ip-image, .* are given together or not at all"):
        resolve(pipeline(tmp_path, "sd15"), SETTINGS, ConditioningImages(ip=PICTURES))
    with pytest.raises(BadInput, match=r"--ip-adapter and --ip-image, .* are given together or not at all"):
        resolve(pipeline(tmp_path, "sd15", **parts("ip-adapter")), SETTINGS)
    with pytest.raises(BadInput, match="--ip-image: 200x2 pixels: CLIP sees a square of it; cut it"):
        seen_by_clip(np.zeros((1, 3, 2, 200)), 6)
    with pytest.raises(BadInput, match=r"--ip-scale nan: expected -100 to 100"):
        resolve(pipeline(tmp_path, "sd15"), SETTINGS._replace(ip_scale=np.nan))


def test_an_adapter_needs_its_tower(tmp_path):
    (tmp_path / "alone").mkdir()
    with pytest.raises(BadInput, match="--ip-adapter: it reads a picture through CLIP's vision tower: give that"):
        pipeline(tmp_path / "alone", "sd15", **{"ip-adapter": ADAPTERS["ip-adapter"]})
    face = parts("ip-adapter-plus") | {"ip-adapter": ADAPTERS["ip-adapter-plus"]._replace(seen=512)}
    with pytest.raises(
        BadInput, match=r"reads 512 channels, and --clip_vision gives 32: .* InstantID's 512 numbers"
    ):
        pipeline(tmp_path, "sd15", **face)


def test_deeper_than_the_unet(tmp_path):
    size = ADAPTERS["ip-adapter"]
    deeper = size._replace(crossing=(*size.crossing, 64))
    with pytest.raises(BadInput, match=r"another model: it has more than the 4 cross-attentions of the UNet"):
        pipeline(tmp_path, "sd15", **{"clip-vision": TOWER, "ip-adapter": deeper})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ip_adapter.0.to_k_lora.down.weight", "refsd does not run IP-Adapter FaceID; "),
        ("image_proj.perceiver_resampler.proj_in.weight", "refsd does not run IP-Adapter FaceID plus; "),
    ],
)
def test_adapters_of_faces_are_named(tmp_path, name, said):
    arrays = small_families.weights("ip-adapter", ADAPTERS["ip-adapter"]) | {name: np.zeros((4, 4), np.float32)}
    save_file(arrays, tmp_path / "face.safetensors")
    with pytest.raises(BadInput, match=said):
        open_checkpoint(tmp_path / "face.safetensors")
