"""FLUX.3 from words (and pictures) to a picture against the blocks of diffusers' pipeline, in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, image_processor
from diffusers.modular_pipelines.flux3.image_processor import Flux3ImageProcessor
from diffusers.modular_pipelines.flux3.modular_blocks_flux3 import Flux3AutoBlocks
from diffusers.modular_pipelines.flux3.modular_blocks_flux3_distilled import Flux3DistilledAutoBlocks
from float64_peers import distance, draw, draw_weights, float64_throughout, redraw
from PIL import Image
from test_conditioning import QWEN3_TEMPLATE, qwen2
from test_models_flux2 import peer_vae, redraw_statistics
from test_models_flux3 import peer_flux3
from test_models_qwen_vl import peer_config
from test_pictures import _lifted, agree, of  # noqa: F401
from tiny_tokenizers import bytes_trained
from transformers import Qwen3VLForConditionalGeneration

from refsd.models.flux3 import AXES_DIM, CONTEXT_LAYERS
from refsd.models.flux3.network import Flux3Size, flux3_shapes
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen_vl import QWEN3_SECTIONS, qwen3_vl
from refsd.models.vae_flux2.network import Flux2VAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import read_image
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import NO_IMAGES, resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

WORDS, UGLY = "a lovely cat, caf\u00e9 \U0001f431", "the hat"
HIDDEN = 16  # of the text encoder


class Processor:
    """Qwen3-VL's, as far as words go: its tokenizer and its template."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def apply_chat_template(self, *messages, **named):
        return self.tokenizer.apply_chat_template(*messages, **named)


@pytest.fixture(scope="module")
def text():
    tokenizer = qwen2(*bytes_trained())
    tokenizer.chat_template = QWEN3_TEMPLATE
    size = Qwen3Size(HIDDEN, 1 + CONTEXT_LAYERS[-1], 1, 1, 128, 20, len(tokenizer))
    with float64_throughout():
        encoder = Qwen3VLForConditionalGeneration(peer_config(qwen3_vl, size, QWEN3_SECTIONS, 5e6)).eval()
        redraw(encoder, 7)
    return Processor(tokenizer), encoder


@pytest.fixture(autouse=True)
def _pictures_in_float64(monkeypatch):
    monkeypatch.setattr(image_processor, "np", SimpleNamespace(**{**vars(np), "float32": np.float64}))


def pipelines(folder, text, distilled):
    """diffusers' blocks, without their prompt upsampler, and refsd's pipeline of the folder."""
    processor, encoder = text
    size = Flux3Size(128, 1, 2, 128, 256, 20, 20, HIDDEN * len(CONTEXT_LAYERS), 32, distilled)
    parts = {
        "transformer": peer_flux3(size, AXES_DIM, draw_weights(flux3_shapes(size), 4)),
        "vae": peer_vae(Flux2VAESize(24, (24, 48), (16, 32), 1, 5), 8).eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=6.93),
        "text_encoder": encoder,
    }
    redraw(parts["vae"], 5)
    redraw_statistics(parts["vae"], 6)
    for name, part in {**parts, "tokenizer": processor.tokenizer}.items():
        part.save_pretrained(folder / name)
    blocks = (Flux3DistilledAutoBlocks if distilled else Flux3AutoBlocks)()
    blocks.sub_blocks.pop("prompt_upsampler")
    peer = blocks.init_pipeline()
    peer.update_components(**parts, tokenizer=processor)
    peer.set_progress_bar_config(disable=True)
    peer.update_components(image_processor=Flux3ImageProcessor(vae_scale_factor=4))  # pixels of a token
    peer.image_processor.postprocess = lambda image, **_: image
    return peer, open_pipeline(open_checkpoint(folder), Tokenizers(model=folder), Arithmetic(FLOAT64), 1 << 30)


def drawn(ours, peer, settings, prompts, images=NO_IMAGES, files=()):
    """refsd's and diffusers' latents and picture, and refsd's conditioning and diffusers' state."""
    plan = resolve(ours, settings, images)
    begin = initial_latent(ours, plan, 0)._replace(noise=draw(plan.latent_shape, 1))
    conditioning = txt2img.encode(ours, plan)
    latent = txt2img.sample(ours, plan, conditioning, 0, start=begin)
    given = {} if not files else {"image": [Image.open(file) for file in files]}
    state = peer(
        **prompts,
        **given,
        latents=of(begin.noise),
        num_inference_steps=len(plan.sigmas) - 1,
        width=plan.width,
        height=plan.height,
        output_type="pt",
    )
    agree((latent, txt2img.decode(ours, latent)), (state.get("latents"), state.get("images")))
    return conditioning, state


@pytest.mark.parametrize("words", [WORDS, "the hat on the mat " * 5, ""])
def test_base(tmp_path, text, words):
    """Guided; one window of 80 tokens is full, and the prompts' windows differ."""
    with float64_throughout():
        peer, ours = pipelines(tmp_path, text, False)
        assert peer.guider.guidance_scale == ours.variant.cfg_scale == 3.5
        settings = Settings(words, UGLY, 24, 16, 3, like="diffusers")
        conditioning, state = drawn(ours, peer, settings, {"prompt": words, "negative_prompt": UGLY})
    for mine, name in zip(conditioning, ("prompt_embeds", "negative_prompt_embeds"), strict=True):
        assert mine.context.shape[1] % 80 == 0 and mine.mask is None
        assert distance(mine.context, state.get(name)) <= 1e-12


@pytest.mark.parametrize("steps", [1, 4])
def test_distilled(tmp_path, text, steps):
    """Each call receives the time at which its step ends, the last one 0."""
    with float64_throughout():
        peer, ours = pipelines(tmp_path, text, True)
        drawn(ours, peer, Settings(WORDS, "", 16, 24, steps, like="diffusers"), {"prompt": WORDS})


# Model; height and width of each picture; size drawn, None: the first picture's
EDITS = {
    "one": (False, [(64, 80)], None),
    "one, distilled, another size": (True, [(80, 64)], (24, 16)),
    "three": (False, [(32, 48), (16, 32), (48, 16)], (32, 16)),
    "two, distilled": (True, [(32, 16), (16, 48)], None),
    "one of odd sides": (False, [(67, 93)], (24, 16)),
    "one that is small": (False, [(13, 22)], (16, 16)),
    "one below a token": (True, [(3, 70)], (16, 16)),
    "two of odd sides": (False, [(35, 50), (21, 30)], (32, 16)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edit(tmp_path, text, edit):
    """One picture is continued to whole tokens, several are cut to them."""
    distilled, sizes, drawn_size = EDITS[edit]
    files = [tmp_path / f"{i}.png" for i in range(len(sizes))]
    for i, (file, (high, wide)) in enumerate(zip(files, sizes, strict=True)):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (high, wide, 3), np.uint8)).save(file)
    first, *more = (read_image("--ref-image", file) for file in files)
    images = NO_IMAGES._replace(reference=first, more_references=tuple(more))
    with float64_throughout():
        peer, ours = pipelines(tmp_path, text, distilled)
        settings = Settings(WORDS, UGLY, *(drawn_size or (0, 0)), 2, like="diffusers")
        prompts = {"prompt": WORDS} | ({} if distilled else {"negative_prompt": UGLY})
        drawn(ours, peer, settings, prompts, images, files)
