"""From words to a picture, all of it: a folder as diffusers saves it, tokenizer and encoder too, in float64."""

import json

import numpy as np
import pytest
import torch
from diffusers import (
    ChromaPipeline,
    ErnieImagePipeline,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    FluxPipeline,
    Krea2Pipeline,
    Lumina2Pipeline,
    QwenImage21Pipeline,
    QwenImagePipeline,
    ZImagePipeline,
)
from float64_peers import distance, draw, float64_throughout, redraw
from test_conditioning import qwen2, qwen3_peer, t5_peer  # noqa: F401
from test_models_chroma import peer_chroma
from test_models_ernie_image import peer_ernie_image
from test_models_flux2 import peer_flux2, redraw_statistics
from test_models_flux2 import peer_vae as peer_flux2_vae
from test_models_gemma2 import peer_gemma2
from test_models_krea2 import peer_krea2
from test_models_lumina2 import peer_lumina2
from test_models_mistral import YARN, peer_mistral3
from test_models_qwen_image import peer_qwen_image
from test_models_qwen_image21 import peer_qwen_image21, picture_of
from test_models_qwen_vl import peer_config
from test_models_vae_qwen_image21 import peer_vae as peer_qwen_image21_vae
from test_models_vae_wan import peer_vae as peer_wan_vae
from test_models_zimage import peer_zimage
from test_pictures import FLUX_VAE, NO_QUANT, _lifted, agree, answer, of, unpacked, vae_of  # noqa: F401
from tiny_tokenizers import bytes_trained
from tokenizers.processors import TemplateProcessing
from transformers import (
    GemmaTokenizer,
    PreTrainedTokenizerFast,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
    Qwen3VLModel,
)

from refsd.models.gemma2.network import Gemma2Size
from refsd.models.mistral.network import MistralSize
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen_vl import CONTEXT_LAYERS, QWEN2_5_SECTIONS, QWEN3_SECTIONS, qwen2_5_vl, qwen3_vl
from refsd.models.qwen_vl.network import Qwen25Size
from refsd.models.vae_flux2.network import Flux2VAESize
from refsd.models.vae_qwen_image21.network import QwenImage21VAESize
from refsd.models.vae_wan.network import WanVAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.initial_latent import InitialLatent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.samplers.noise import TorchCpu
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

WORDS, UGLY = "a lovely cat, caf\u00e9 \U0001f431", "the hat"


def drawn(
    tmp_path,
    scheduler,
    network,
    vae,
    encoder,
    tokenizer,
    cfg,
    size=(24, 16),
    ugly=UGLY,
    steps=3,
    words=WORDS,
    seed=1,
):
    """refsd's pipeline of the folder that these make; its start, its latents and its picture."""
    redraw(network, 4)
    redraw(vae, 5)
    names = {"transformer": network, "vae": vae, "scheduler": scheduler, "text_encoder": encoder}
    for name, part in {**names, "tokenizer": tokenizer}.items():
        part.save_pretrained(tmp_path / name)
    ours = open_pipeline(open_checkpoint(tmp_path), Tokenizers(model=tmp_path), Arithmetic(FLOAT64), 1 << 30)
    plan = resolve(ours, Settings(words, ugly, *size, steps, cfg, like="diffusers"))
    begin = InitialLatent(draw(plan.latent_shape, seed), TorchCpu(0))
    latent = txt2img.sample(ours, plan, txt2img.encode(ours, plan), 0, start=begin)
    return begin, (latent, txt2img.decode(ours, latent))


def asked(begin, guidance):
    return {
        "latents": of(begin.noise),
        "num_inference_steps": 3,
        "guidance_scale": guidance,
        "width": 24,
        "height": 16,
    }


def test_zimage(tmp_path, qwen3_peer):  # noqa: F811
    tokenizer, model, _ = qwen3_peer
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        network, vae = peer_zimage(1, (32, 48, 48), 2, 1, 16), vae_of(16, NO_QUANT, **FLUX_VAE)
        begin, mine = drawn(tmp_path, scheduler, network, vae, model.model, tokenizer, 3.5)
        pipe = ZImagePipeline(scheduler, vae, model.model, tokenizer, network)
        theirs = answer(pipe, prompt=WORDS, negative_prompt=UGLY, **asked(begin, 2.5))
    agree(mine, theirs)


def gemma_tokenizer():
    """A vocabulary of bytes and some letters, so that most of the template and the prompts are byte tokens."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += ["\u2581", *"aeiotcpms", "at", "\u2581a"]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = GemmaTokenizer(vocab=vocab, merges=[("a", "t"), ("\u2581", "a")])
    begun = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])]
    )  # as the released file
    tokenizer._tokenizer.post_processor = begun
    return tokenizer


def test_lumina2(tmp_path):
    """The template is the prompt's alone; their pipeline has the tokenizer pad on the right."""
    tokenizer = gemma_tokenizer()
    size = Gemma2Size(hidden=48, layers=2, heads=2, kv_heads=1, mlp=20, vocab=len(tokenizer))
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=6.0)
        network, vae = peer_lumina2(2, 1, (32, 32, 32), 2, 1, 48), vae_of(16, NO_QUANT, **FLUX_VAE)
        encoder = peer_gemma2(size)
        redraw(encoder, 7)
        begin, mine = drawn(tmp_path, scheduler, network, vae, encoder, tokenizer, 3.5, (32, 16))
        pipe = Lumina2Pipeline(network, scheduler, vae, encoder, tokenizer)
        theirs = answer(pipe, prompt=WORDS, negative_prompt=UGLY, **{**asked(begin, 3.5), "width": 32})
    agree(mine, theirs)


def test_qwen_image(tmp_path, qwen3_peer):  # noqa: F811
    """Without the template's first 34 tokens; the negative prompt is shorter. Its own sides are multiples of 16."""
    tokenizer, _, _ = qwen3_peer
    size = Qwen25Size(256, 2, 2, 1, 128, 20, len(tokenizer))
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        )
        network, vae = (
            peer_qwen_image(1, (16, 56, 56), context=256),
            peer_wan_vae(WanVAESize(8, (8, 16, 32, 32), 1)),
        )
        encoder = Qwen2_5_VLForConditionalGeneration(peer_config(qwen2_5_vl, size, QWEN2_5_SECTIONS, 1e6)).eval()
        redraw(encoder, 7)
        begin, mine = drawn(tmp_path, scheduler, network, vae, encoder, tokenizer, 3.5, (32, 16))
        pipe = QwenImagePipeline(scheduler, vae, encoder, tokenizer, network)
        given = {**asked(begin, None), "width": 32, "latents": pipe._pack_latents(of(begin.noise), 1, 16, 2, 4)}
        theirs = answer(pipe, prompt=WORDS, negative_prompt=UGLY, true_cfg_scale=3.5, **given)
        latents = pipe._unpack_latents(theirs[0], 16, 32, 8)[:, :, 0]
    agree((mine[0], np.clip(mine[1], -1, 1)), (latents, theirs[1]))


def test_krea2(tmp_path, qwen3_peer):  # noqa: F811
    """Padding before the template's end; their scale of guidance is less by 1."""
    tokenizer, _, _ = qwen3_peer
    size = Qwen3Size(16, 1 + CONTEXT_LAYERS[-1], 1, 1, 128, 20, len(tokenizer))
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, max_image_seq_len=6400)
        network = peer_krea2(2, 1, 1, (32, 48, 48), states=len(CONTEXT_LAYERS))
        vae = peer_wan_vae(WanVAESize(8, (8, 16, 32, 32), 1))
        encoder = Qwen3VLModel(peer_config(qwen3_vl, size, QWEN3_SECTIONS, 5e6)).eval()
        redraw(encoder, 7)
        begin, mine = drawn(tmp_path, scheduler, network, vae, encoder, tokenizer, 4.5, (32, 16))
        pipe = Krea2Pipeline(scheduler, vae, encoder, tokenizer, network)
        given = {**asked(begin, 3.5), "width": 32, "latents": pipe._pack_latents(of(begin.noise), 1, 16, 2, 4)}
        theirs = answer(pipe, prompt=WORDS, negative_prompt=UGLY, **given)
        latents = pipe._unpack_latents(theirs[0], 16, 32)[:, :, 0]
    agree((mine[0], np.clip(mine[1], -1, 1)), (latents, theirs[1]))


class WordsAlone:
    """A Qwen3VLProcessor that is shown no pictures; its chat template gives the system's 14 tokens."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, text, **given):
        return self.tokenizer(text, **given)

    def apply_chat_template(self, messages, **given):
        return [[0] * 14]


def small_qwen_image21(tokenizer):
    """The network, the autoencoder, and the encoder, whose last layer's output is taken before the norm."""
    size = Qwen3Size(16, 2, 2, 1, 128, 20, len(tokenizer))
    levels = (4, 8, 16, 32, 32), (6, 12, 24, 48, 48)
    vae = peer_qwen_image21_vae(QwenImage21VAESize(4, *levels, 1, (False, True, True, True), 5))
    vae.register_to_config(latents_mean=[-0.75, 0.125, 1.5, 0.5, 2.0], latents_std=[2.75, 1.25, 0.5, 3.0, 1.5])
    encoder = Qwen3VLForConditionalGeneration(peer_config(qwen3_vl, size, QWEN3_SECTIONS, 5e6)).eval()
    redraw(encoder, 7)
    return peer_qwen_image21(1, (16, 56, 56), 5, 16), vae, encoder


@pytest.mark.parametrize(("ugly", "cfg"), [(UGLY, 3.5), ("", 2.0), (UGLY, 1.0)])
def test_qwen_image21(tmp_path, qwen3_peer, ugly, cfg):  # noqa: F811
    """With guidance, with an empty negative prompt, which they make a space, and without guidance."""
    tokenizer, _, _ = qwen3_peer
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        )
        network, vae, encoder = small_qwen_image21(tokenizer)
        begin, mine = drawn(tmp_path, scheduler, network, vae, encoder, tokenizer, cfg, (96, 64), ugly, 3)
        pipe = QwenImage21Pipeline(scheduler, vae, encoder, WordsAlone(tokenizer), network)
        latents = pipe._pack_latents(of(begin.noise), 1, 5, 4, 6)
        given = {"width": 96, "height": 64, "num_inference_steps": 3, "true_cfg_scale": cfg, "latents": latents}
        theirs = answer(pipe, prompt=WORDS, negative_prompt=ugly, **given)
    assert mine[1].shape == (1, 4, 64, 96)
    agree((mine[0], np.clip(mine[1], -1, 1)), (picture_of(theirs[0], begin.noise.shape), theirs[1]))


@pytest.mark.parametrize("shift", [1.0, 2.5])
def test_qwen_image21_turbo(tmp_path, qwen3_peer, shift):  # noqa: F811
    """Its folder names the noise levels of its steps; the scheduler shifts them, by 1 in the released one."""
    tokenizer, _, _ = qwen3_peer
    sigmas = [1.0, 0.9, 0.4]
    (tmp_path / "model_index.json").write_text(json.dumps({"sample_sigmas": sigmas}))
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        network, vae, encoder = small_qwen_image21(tokenizer)
        begin, mine = drawn(tmp_path, scheduler, network, vae, encoder, tokenizer, None, (96, 64), "", None)
        pipe = QwenImage21Pipeline(scheduler, vae, encoder, WordsAlone(tokenizer), network, sigmas)
        latents = pipe._pack_latents(of(begin.noise), 1, 5, 4, 6)
        theirs = answer(pipe, prompt=WORDS, width=96, height=64, latents=latents)
    agree((mine[0], np.clip(mine[1], -1, 1)), (picture_of(theirs[0], begin.noise.shape), theirs[1]))


def test_flux2_klein(tmp_path, qwen3_peer):  # noqa: F811
    """Their pipeline's negative prompt is always empty."""
    tokenizer, model, _ = qwen3_peer
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
        network = peer_flux2(1, (32, 32, 32, 32), False, channels=20, context=48)
        vae = peer_flux2_vae(Flux2VAESize(24, (24, 48), (16, 32), 1, 5), 8)
        redraw_statistics(vae, 6)
        begin, mine = drawn(tmp_path, scheduler, network, vae, model, tokenizer, 1.0)
        pipe = Flux2KleinPipeline(scheduler, vae, model, tokenizer, network)
        theirs = answer(pipe, prompt=WORDS, **asked(begin, 1.0))
    assert distance(mine[1], theirs[1]) <= 1e-12


def begun_with_bos(of_bytes):
    """A tokenizer as Ernie-Image's: it puts BOS before the words, and has no template."""
    backend = of_bytes.backend_tokenizer
    backend.add_special_tokens(["<s>"])
    bos = backend.token_to_id("<s>")
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<|im_end|>")


@pytest.mark.parametrize("config_eps", [1e-4, 1e-5])
@pytest.mark.parametrize(("ugly", "cfg"), [(UGLY, 4.0), ("", 2.5), (UGLY, 1.0)])
def test_ernie_image(tmp_path, ugly, cfg, config_eps):
    """Two prompts in one batch, of other lengths; the eps of their latents is 1e-5 whatever the config says."""
    tokenizer = begun_with_bos(qwen2(*bytes_trained()))
    size = MistralSize(40, 3, 4, 2, 24, 56, vocab=len(tokenizer))
    prompts = [WORDS, "on"]
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=4.0)
        network = peer_ernie_image(2, (32, 48, 48), 40, 20)
        vae = peer_flux2_vae(Flux2VAESize(24, (24, 48), (16, 32), 1, 5), 8)
        vae.register_to_config(batch_norm_eps=config_eps)
        redraw_statistics(vae, 6)
        vae.bn.running_var.mul_(1e-3)  # near the eps
        encoder = peer_mistral3(size, YARN)
        redraw(encoder, 7)
        made = [
            drawn(tmp_path, scheduler, network, vae, encoder, tokenizer, cfg, ugly=ugly, words=words, seed=seed)
            for seed, words in enumerate(prompts)
        ]
        pipe = ErnieImagePipeline(network, vae, encoder, tokenizer, scheduler)
        start = torch.cat([of(begin.noise) for begin, _ in made])
        theirs = answer(pipe, prompt=prompts, negative_prompt=ugly, **{**asked(made[0][0], cfg), "latents": start})
    for i, (_, mine) in enumerate(made):
        agree(mine, (theirs[0][i : i + 1], theirs[1][i : i + 1]))


def test_chroma(tmp_path, t5_peer, monkeypatch):  # noqa: F811
    """Its mask made of booleans, see test_pictures."""
    tokenizer, model, _ = t5_peer
    prepared = ChromaPipeline._prepare_attention_mask

    def seen(self, *, attention_mask, **given):
        return prepared(self, **given, attention_mask=attention_mask.to(torch.bool))

    monkeypatch.setattr(ChromaPipeline, "_prepare_attention_mask", seen)
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
        network = peer_chroma(1, (16, 56, 56), channels=4, context=200)
        vae = vae_of(4, NO_QUANT, **FLUX_VAE)
        begin, mine = drawn(tmp_path, scheduler, network, vae, model, tokenizer, 3.0)
        pipe = ChromaPipeline(scheduler, vae, model, tokenizer, network)
        given = asked(begin, 3.0) | {"latents": FluxPipeline._pack_latents(of(begin.noise), *np.shape(begin.noise))}
        theirs = answer(pipe, prompt=WORDS, negative_prompt=UGLY, **given)
    agree(mine, unpacked(pipe, theirs, begin))
