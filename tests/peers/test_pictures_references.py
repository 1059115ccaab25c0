"""Pictures to edit of Kontext and FLUX.2, with sides of any length, against diffusers' pipelines in float64."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinKVPipeline,
    Flux2KleinPipeline,
    Flux2Pipeline,
    FluxKontextPipeline,
    image_processor,
)
from float64_peers import distance, draw, float64_throughout
from PIL import Image
from test_models_flux2 import peer_flux2, redraw_statistics
from test_models_flux2 import peer_vae as peer_flux2_vae
from test_pictures import _lifted, answer, of, opened  # noqa: F401
from test_pictures_given import H, W, flux_case, flux_settings
from test_pictures_given import _lifted as _draws_in_float64  # noqa: F401

from refsd.families.editing import LATENT_AREA, cut_to_tokens
from refsd.families.family import Condition
from refsd.models.vae_flux2.network import Flux2VAESize
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages, read_image
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _pictures_in_float64(monkeypatch):
    monkeypatch.setattr(image_processor, "np", SimpleNamespace(**{**vars(np), "float32": np.float64}))


def pictures(folder, sizes):
    """-> the files, refsd's pictures; height and width of each"""
    files = [folder / f"{i}.png" for i in range(len(sizes))]
    for i, (file, (high, wide)) in enumerate(zip(files, sizes, strict=True)):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (high, wide, 3), np.uint8)).save(file)
    return [Image.open(file) for file in files], [read_image("--ref-image", file) for file in files]


@pytest.mark.parametrize("size", [(H, W), (37, 59)])
def test_kontext(tmp_path, size):
    theirs, (mine,) = pictures(tmp_path, [size])
    asked = {"image": theirs[0], "max_area": H * W, "_auto_resize": False}
    flux_case(tmp_path, FluxKontextPipeline, 64, flux_settings(2), ConditioningImages(reference=mine), **asked)


@pytest.mark.parametrize("sizes", [[(64, 72)], [(71, 90)], [(66, 65), (70, 101)]])
@pytest.mark.parametrize("kind", ["klein", "klein-kv", "dev"])
def test_flux2(tmp_path, kind, sizes):
    """A token of this autoencoder has 4 pixels a side. klein-KV has no call without the prompt."""
    dev, kv = kind == "dev", kind == "klein-kv"
    theirs, (first, *others) = pictures(tmp_path, sizes)
    images = ConditioningImages(reference=first, more_references=tuple(others))
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    with float64_throughout():
        network = peer_flux2(1, (32, 32, 32, 32), dev, channels=20)
        vae = peer_flux2_vae(Flux2VAESize(24, (24, 48), (16, 32), 1, 5), 8)
        redraw_statistics(vae, 6)
        program = Flux2Pipeline if dev else Flux2KleinKVPipeline if kv else Flux2KleinPipeline
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": program.__name__}))
        ours = opened(tmp_path, network, vae, scheduler, "mistral" if dev else "qwen3")
        assert ours.denoiser.params["cached_references"] == kv
        cfg = {"guidance": 3.25} if dev else {"cfg_scale": 1.0 if kv else 2.5}
        plan = resolve(ours, Settings("", "", 24, 16, steps=3, like="diffusers", **cfg), images)
        begin = initial_latent(ours, plan, 0)._replace(noise=draw(plan.latent_shape, 1))
        texts = draw((2, 7, 11), 2)
        more = {} if kv else {"guidance_scale": 3.25 if dev else 2.5}
        more |= {"negative_prompt_embeds": of(texts[1:])} if program is Flux2KleinPipeline else {}
        pipe = program(scheduler, vae, None, None, network)
        peer = answer(
            pipe, image=theirs, prompt_embeds=of(texts[:1]), latents=of(begin.noise), num_inference_steps=3,
            width=24, height=16, **more,
        )  # fmt: skip
        cond, uncond = (Condition(texts[i : i + 1]) for i in range(2))
        latent = txt2img.sample(ours, plan, Conditioning(cond, uncond if plan.guided else None), 0, start=begin)
        assert distance(txt2img.decode(ours, latent), peer[1]) <= 1e-12


def test_a_large_picture_is_shrunk():
    """As their processor does before it cuts."""
    from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor

    bytes_ = np.random.default_rng(0).integers(0, 256, (1100, 1203, 3), np.uint8)
    theirs = Flux2ImageProcessor._resize_to_target_area(Image.fromarray(bytes_), LATENT_AREA)
    wide, high = (side // 16 * 16 for side in theirs.size)
    theirs = Flux2ImageProcessor().preprocess(theirs, height=high, width=wide, resize_mode="crop")
    (mine,) = cut_to_tokens((bytes_.transpose(2, 0, 1)[None] / 255,), (1024, 1024), 16)
    np.testing.assert_allclose(2 * mine - 1, theirs.numpy(), atol=1e-6)
