"""Ideogram 4 from words to a picture against diffusers' pipelines, whole and in blocks, in float64."""

import json

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Ideogram4Pipeline
from diffusers.modular_pipelines.ideogram4 import Ideogram4AutoBlocks
from float64_peers import distance, draw, float64_throughout, redraw
from test_conditioning import qwen2
from test_models_flux2 import peer_vae, redraw_statistics
from test_models_ideogram4 import peer_ideogram4
from test_models_qwen_vl import peer_config
from test_pictures import _lifted, agree, answer, of  # noqa: F401
from tiny_tokenizers import bytes_trained
from transformers import Qwen3VLModel

from refsd.models.ideogram4 import CONTEXT_LAYERS
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen_vl import QWEN3_SECTIONS, qwen3_vl
from refsd.models.vae_flux2.network import Flux2VAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.guidance_rule import GuidanceRule
from refsd.pipelines.initial_latent import InitialLatent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.samplers.noise import TorchCpu
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

WORDS = ["a lovely cat, caf\u00e9 \U0001f431", "on"]
HIDDEN = 6  # of the text encoder
LENGTH = 60  # to which their pipeline pads
# As Qwen3-VL's, of words alone
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content[0].text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
W, H = 96, 64  # of 16 pixels a token, as the released autoencoder has: their levels follow the pixels


@pytest.fixture(scope="module")
def parts():
    """Small ones of everything; the two transformers have weights of their own."""
    tokenizer = qwen2(*bytes_trained())
    tokenizer.chat_template = TEMPLATE
    size = Qwen3Size(HIDDEN, CONTEXT_LAYERS[-1], 1, 1, 128, 20, len(tokenizer))
    with float64_throughout():
        encoder = Qwen3VLModel(peer_config(qwen3_vl, size, QWEN3_SECTIONS, 5e6)).eval()
        redraw(encoder, 7)
        networks = [peer_ideogram4(1, 256, HIDDEN * len(CONTEXT_LAYERS), 20, 2).eval() for _ in range(2)]
        for seed, network in enumerate(networks):
            redraw(network, 4 + 10 * seed)
        vae = peer_vae(Flux2VAESize(8, (8, 16, 24, 8), (16, 8, 24, 8), 1, 5), 8).eval()
        redraw(vae, 5)
        redraw_statistics(vae, 6)
        scheduler = FlowMatchEulerDiscreteScheduler()
    return {
        "transformer": networks[0],
        "unconditional_transformer": networks[1],
        "vae": vae,
        "scheduler": scheduler,
        "text_encoder": encoder,
        "tokenizer": tokenizer,
    }


@pytest.fixture(scope="module")
def folder(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ideogram4")
    with float64_throughout():
        for name, part in parts.items():
            part.save_pretrained(folder / name)
    return folder


def drawn(folder, words, seed, cfg, steps, scales=(), negative=""):
    """refsd's noise, packed as the pipelines have it, its latents and its picture."""
    ours = open_pipeline(open_checkpoint(folder), Tokenizers(model=folder), Arithmetic(FLOAT64), 1 << 30)
    rule = GuidanceRule(guidance_schedule=tuple(scales))
    settings = Settings(words, negative, W, H, steps, cfg, like="diffusers", guidance_rule=rule)
    plan = resolve(ours, settings)
    begin = InitialLatent(draw(plan.latent_shape, seed), TorchCpu(0))
    latent = txt2img.sample(ours, plan, txt2img.encode(ours, plan), 0, start=begin)
    return packed(of(begin.noise)), (latent, txt2img.decode(ours, latent))


def packed(x):
    return x.flatten(2).transpose(1, 2)


def unpacked(tokens):
    return tokens.transpose(1, 2).unflatten(2, (H // 16, W // 16))


# Scales of 3 steps, refsd's scale
GUIDED = {"one scale": (None, 7.0), "of each step": ([7.0, 4.5, 3.0], 2.0), "not guided": (None, 1.0)}


@pytest.mark.parametrize("case", GUIDED)
def test_the_pipeline(parts, folder, case):
    """Two prompts of other lengths in one batch, H != W."""
    scales, cfg = GUIDED[case]
    with float64_throughout():
        made = [drawn(folder, words, seed, cfg, 3, scales or ()) for seed, words in enumerate(WORDS)]
        pipe = Ideogram4Pipeline(**parts)
        given = {"guidance_schedule": scales, "guidance_scale": None if scales else cfg}
        start = torch.cat([noise for noise, _ in made])
        size = {"width": W, "height": H, "num_inference_steps": 3, "max_sequence_length": LENGTH}
        latents, pictures = answer(pipe, prompt=WORDS, latents=start, **given, **size)
    for i, (_, mine) in enumerate(made):
        agree(mine, (unpacked(latents[i : i + 1]), pictures[i : i + 1]))


def test_the_default_scales(parts, folder):
    """48 steps, of which the last 3 are guided less; --cfg-scale replaces them all."""
    with float64_throughout():
        noise, mine = drawn(folder, WORDS[0], 3, None, None)
        pipe = Ideogram4Pipeline(**parts)
        theirs = answer(pipe, prompt=WORDS[0], latents=noise, width=W, height=H, max_sequence_length=LENGTH)
        agree(mine, (unpacked(theirs[0]), theirs[1]))
        _, others = drawn(folder, WORDS[0], 3, 7.0, None)
    assert distance(others[0], unpacked(theirs[0])) > 1e-3


@pytest.mark.parametrize("steps", [1, 4])
def test_in_blocks(parts, folder, steps):
    scales = [6.0, 5.0, 4.0, 3.0][:steps]
    with float64_throughout():
        noise, mine = drawn(folder, WORDS[0], 1, None, steps, scales)
        blocks = Ideogram4AutoBlocks()
        for optional in [name for name in blocks.sub_blocks if "upsampl" in name]:
            blocks.sub_blocks.pop(optional)
        peer = blocks.init_pipeline()
        peer.update_components(**parts)
        peer.set_progress_bar_config(disable=True)
        peer.image_processor.postprocess = lambda image, **_: image
        size = {"width": W, "height": H, "num_inference_steps": steps, "max_sequence_length": LENGTH}
        state = peer(prompt=WORDS[0], latents=noise, guidance_schedule=scales, output_type="pt", **size)
    assert distance(mine[1], state.get("images")) <= 1e-12


def test_refused(parts, folder, tmp_path):
    """A negative prompt, which no network reads; guidance without the second network; a prompt that is too long."""
    with pytest.raises(BadInput, match="--negative-prompt: Ideogram 4 is guided by a network that sees no words"):
        drawn(folder, "a", 0, 7.0, 1, negative="the hat")
    for part in folder.iterdir():
        if part.name != "unconditional_transformer":
            (tmp_path / part.name).symlink_to(part)
    with pytest.raises(BadInput, match="a folder unconditional_transformer beside transformer"):
        drawn(tmp_path, "a", 0, 7.0, 1)
    drawn(tmp_path, "a", 0, 1.0, 1)
    long = "the hat " * 2048
    with pytest.raises(BadInput, match="Ideogram 4 takes at most 2048"):
        drawn(folder, long, 0, 1.0, 1)
    with pytest.raises(ValueError, match="exceeds max_sequence_length=2048"), float64_throughout():
        Ideogram4Pipeline(**parts)(long, H, W, 1, 1.0, None)


def test_a_folder_tells_its_second_network(parts, folder):
    checkpoint = open_checkpoint(folder)
    assert checkpoint.family is not None and checkpoint.family.name == "ideogram4"
    for component in ("ideogram4", "ideogram4-unconditional"):
        place = component.replace("ideogram4-", "").replace("ideogram4", "") + "_transformer"
        state = parts[place.removeprefix("_")].state_dict()
        held = checkpoint.components[component].weights["adaln_proj.weight"].values()
        np.testing.assert_array_equal(held, state["adaln_proj.weight"].numpy())
    assert json.loads((folder / "unconditional_transformer" / "config.json").read_text())["num_layers"] == 2
