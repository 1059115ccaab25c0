"""From a prompt to `context` and `y` against diffusers' encode_prompt, on tiny random encoders in float64.

Here refsd's own tokenizers, encoders and joints run, from the folders that the peers' tokenizers write.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import (
    ChromaPipeline,
    Flux2KleinPipeline,
    Flux2Pipeline,
    FluxPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    StableDiffusion3Pipeline,
    StableDiffusionXLPipeline,
    WanPipeline,
    ZImagePipeline,
)
from float64_peers import distance, float64_throughout, redraw
from record_tokenizers import qwen2, t5
from test_models_mistral import peer_config as mistral_config
from test_models_mistral import weights_of as mistral_weights
from test_models_qwen3 import peer_config as qwen3_config
from test_models_qwen3 import weights_of as qwen3_weights
from test_models_qwen_vl import CONFIGS
from test_models_qwen_vl import peer_config as qwen_vl_config
from test_models_qwen_vl import weights_of as qwen_vl_weights
from test_models_sdxl import peer_clip
from test_models_t5 import peer_t5
from test_models_t5 import weights_of as t5_weights
from tiny_tokenizers import bytes_trained, unigram_trained
from transformers import (
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3ForCausalLM,
)

from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.families import FAMILIES, VARIANTS
from refsd.families.family import Encoded, EncodedPrompt
from refsd.families.text_encoders import QWEN_IMAGE, QWEN_IMAGE_EDIT
from refsd.models.clip import clip_text, clip_text_with_projection
from refsd.models.clip.network import CLIPSize
from refsd.models.flux2 import MISTRAL_LAYERS, QWEN3_LAYERS, stacked
from refsd.models.mistral import mistral
from refsd.models.mistral.network import MistralSize
from refsd.models.qwen3 import qwen3
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen_vl import qwen2_5_vl
from refsd.models.t5 import t5_encoder
from refsd.models.t5.network import T5Size
from refsd.module import Module
from refsd.numerics.tensor import stored
from refsd.tokenizers.clip_bpe import byte_characters
from refsd.tokenizers.text_rules import first_taken, token_rows
from refsd.tokenizers.text_tokenizer import Ends
from refsd.tokenizers.tokenizer_files import open_tokenizer

pytestmark = pytest.mark.peer

PROMPTS = ["a lovely cat, caf\u00e9 \U0001f431", "", "the hat on the mat " * 9]
# Qwen3's and Mistral's, of a conversation of this kind: what their templates make of it.
QWEN3_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
MISTRAL_TEMPLATE = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content[0].text }}[/SYSTEM_PROMPT]"
    "{% else %}[INST]{{ m.content[0].text }}[/INST]{% endif %}{% endfor %}"
)


def rows(folder, component, family, length=None):
    """refsd's ids and mask of PROMPTS."""
    tokenizer = open_tokenizer(folder, component)
    rule = FAMILIES[family].encoders[component].rules["diffusers"]
    rule = rule if length is None else rule._replace(length=length)
    return token_rows(tokenizer.encode, tokenizer.ends, PROMPTS, rule, tokenizer.source)


def joined(variant, size=(1, 1), **encoders):
    """A variant's condition. encoders: component -> hidden, pooled and mask, None where it has none"""
    encoded = {name: Encoded(*parts) for name, parts in encoders.items()}
    return VARIANTS[variant].join(EncodedPrompt(encoded, Module({}), size, DIFFUSERS))


def agree(ours, theirs):
    assert ours.shape == tuple(theirs.shape)
    assert distance(ours, theirs) <= 1e-12


def clip_pair(eos_pads):
    """A vocabulary of bytes, and its tokenizer; pads with EOS, or with 0 as bigG's."""
    single = byte_characters()
    tokens = [*single, *(c + "</w>" for c in single), "<|startoftext|>", "<|endoftext|>"]
    vocab = {token: i for i, token in enumerate(tokens)}
    pad = "<|endoftext|>" if eos_pads else "!"
    return CLIPTokenizer(vocab=vocab, merges=[], pad_token=pad, model_max_length=77), vocab["<|endoftext|>"]


def clip_ids(peer, family, component):
    bos, eos = peer.bos_token_id, peer.eos_token_id
    rule = FAMILIES[family].encoders[component].rules["diffusers"]
    ids, _ = token_rows(
        lambda text: peer(text, add_special_tokens=False).input_ids, Ends(bos, eos, eos), PROMPTS, rule, "peer"
    )
    return ids


def clip_weights(peer):
    state = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    return {name if name.startswith("text_") else f"text_model.{name}": tensor for name, tensor in state.items()}


@pytest.fixture(scope="module")
def clips():
    (tokenizer_l, eos), (tokenizer_g, _) = clip_pair(True), clip_pair(False)
    with float64_throughout():
        peers = []
        for kind, hidden, projection in (
            (CLIPTextModel, 64, 64),
            (CLIPTextModelWithProjection, 64, 64),
            (CLIPTextModelWithProjection, 128, 48),
        ):
            peer = peer_clip(
                kind, CLIPSize(hidden=hidden, layers=3, mlp=96, vocab=eos + 1, positions=77), eos, projection
            )
            redraw(peer, hidden + projection + len(peers))
            peers.append(peer.eval())
    return SimpleNamespace(
        tokenizer_l=tokenizer_l, tokenizer_g=tokenizer_g, eos=eos, plain=peers[0], l=peers[1], g=peers[2]
    )


@pytest.fixture(scope="module")
def t5_peer(tmp_path_factory):
    vocab = unigram_trained()
    tokenizer = t5(vocab)
    folder = tmp_path_factory.mktemp("t5")
    tokenizer.save_pretrained(folder)
    with float64_throughout():
        model = peer_t5(T5Size(hidden=200, layers=2, heads=2, head_dim=8, mlp=33, vocab=len(vocab)))
        redraw(model, 5)
    return tokenizer, model, folder


@pytest.fixture(scope="module")
def qwen3_peer(tmp_path_factory):
    of_bytes = bytes_trained()
    tokenizer = qwen2(*of_bytes)
    tokenizer.chat_template = QWEN3_TEMPLATE
    folder = tmp_path_factory.mktemp("qwen3")
    tokenizer.save_pretrained(folder)
    size = Qwen3Size(hidden=16, layers=28, heads=2, kv_heads=1, head_dim=8, mlp=20, vocab=len(tokenizer))
    with float64_throughout():
        model = Qwen3ForCausalLM(qwen3_config(size)).eval()
        redraw(model, 7)
    return tokenizer, model, folder


def test_sdxl(clips):
    pipe = StableDiffusionXLPipeline(
        None, clips.plain, clips.g, clips.tokenizer_l, clips.tokenizer_g, None, None, add_watermarker=False
    )
    with float64_throughout():
        context, _, pooled, _ = pipe.encode_prompt(PROMPTS, device="cpu", do_classifier_free_guidance=False)
    _, l, _ = clip_text(
        Module(clip_weights(clips.plain)), clip_ids(clips.tokenizer_l, "sdxl", "clip"), 1, "gelu", eos=clips.eos
    )
    _, g, pooled_g = clip_text_with_projection(
        Module(clip_weights(clips.g)), clip_ids(clips.tokenizer_g, "sdxl", "clip_g"), 2, eos=clips.eos
    )
    made = joined("sdxl", clip=(l, None, None), clip_g=(g, pooled_g, None))
    agree(made.context, context)
    agree(made.y[:, :48], pooled)


def test_sd3(clips, t5_peer):
    t5_tokenizer, t5_model, folder = t5_peer
    pipe = StableDiffusion3Pipeline(
        None, None, None, clips.l, clips.tokenizer_l, clips.g, clips.tokenizer_g, t5_model, t5_tokenizer
    )
    with float64_throughout():
        context, _, pooled, _ = pipe.encode_prompt(
            PROMPTS, None, None, device="cpu", do_classifier_free_guidance=False
        )
    _, l, pooled_l = clip_text_with_projection(
        Module(clip_weights(clips.l)), clip_ids(clips.tokenizer_l, "sd3", "clip"), 1, eos=clips.eos
    )
    _, g, pooled_g = clip_text_with_projection(
        Module(clip_weights(clips.g)), clip_ids(clips.tokenizer_g, "sd3", "clip_g"), 2, eos=clips.eos
    )
    ids, _ = rows(folder, "t5", "sd3")
    t5_hidden = t5_encoder(Module(t5_weights(t5_model)), ids)
    made = joined("sd3", clip=(l, pooled_l, None), clip_g=(g, pooled_g, None), t5=(t5_hidden, None, None))
    agree(made.context, context)
    agree(made.y, pooled)


def test_flux(clips, t5_peer):
    t5_tokenizer, t5_model, folder = t5_peer
    pipe = FluxPipeline(None, None, clips.plain, clips.tokenizer_l, t5_model, t5_tokenizer, None)
    with float64_throughout():
        context, pooled, _ = pipe.encode_prompt(PROMPTS, None, device="cpu", max_sequence_length=77)
    ids, _ = rows(folder, "t5", "flux", 77)
    _, _, pooled_l = clip_text(
        Module(clip_weights(clips.plain)), clip_ids(clips.tokenizer_l, "flux", "clip"), 1, "gelu", eos=clips.eos
    )
    hidden = t5_encoder(Module(t5_weights(t5_model)), ids)
    made = joined("flux-dev", clip=(None, pooled_l, None), t5=(hidden, None, None))
    agree(made.context, context)
    agree(made.y, pooled)


def test_chroma(t5_peer):
    t5_tokenizer, t5_model, folder = t5_peer
    pipe = ChromaPipeline(None, None, t5_model, t5_tokenizer, None)
    with float64_throughout():
        context, _, mask, *_ = pipe.encode_prompt(
            PROMPTS, device="cpu", do_classifier_free_guidance=False, max_sequence_length=60
        )
    ids, seen = rows(folder, "t5", "chroma", 60)
    made = joined("chroma", t5=(t5_encoder(Module(t5_weights(t5_model)), ids, seen), None, seen))
    agree(made.context, context)
    np.testing.assert_array_equal(made.mask, mask.numpy())


def test_zimage(qwen3_peer):
    tokenizer, model, folder = qwen3_peer
    pipe = ZImagePipeline(None, None, model.model, tokenizer, None)
    with float64_throughout():
        peers, _ = pipe.encode_prompt(list(PROMPTS), "cpu", False, max_sequence_length=70)
    ids, seen = rows(folder, "qwen3", "zimage", 70)
    made = joined("zimage", qwen3=(qwen3(Module(qwen3_weights(model.model)), ids, seen)[-2], None, seen))
    for context, mask, peer in zip(made.context, made.mask, peers, strict=True):
        agree(context[mask != 0], peer)


def test_flux2_klein(qwen3_peer):
    tokenizer, model, folder = qwen3_peer
    pipe = Flux2KleinPipeline(None, None, model, tokenizer, None)
    with float64_throughout():
        context, _ = pipe.encode_prompt(PROMPTS, "cpu", max_sequence_length=70)
    ids, seen = rows(folder, "qwen3", "flux2-klein", 70)
    hidden = stacked(qwen3(Module(qwen3_weights(model.model)), ids, seen), QWEN3_LAYERS)
    made = joined("flux2-klein", qwen3=(hidden, None, seen))
    agree(made.context[:, :70], context)


@pytest.mark.parametrize("words", [50, 512])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("edit", [False, True])
def test_qwen_image(tmp_path, edit, side, words):
    """Prompts of different lengths in one batch; only Qwen-Image's own pipeline cuts them. Edit sees no picture."""
    tokenizer = qwen2(*bytes_trained())
    tokenizer.padding_side = side
    tokenizer.save_pretrained(tmp_path)
    run, size, sections, theta, _ = CONFIGS["2.5-grouped"]
    size = size._replace(vocab=len(tokenizer))
    with float64_throughout():
        config = qwen_vl_config(run, size, sections, theta)
        model = Qwen2_5_VLForConditionalGeneration(config).eval()
        redraw(model, 11)
        if edit:
            pipe = QwenImageEditPlusPipeline(
                None, None, model, tokenizer, lambda images, **given: tokenizer(**given), None
            )
            context, mask = pipe.encode_prompt(PROMPTS, None, "cpu", max_sequence_length=words)
        else:
            pipe = QwenImagePipeline(None, None, model, tokenizer, None)
            context, mask = pipe.encode_prompt(PROMPTS, "cpu", max_sequence_length=words)
    rule = QWEN_IMAGE_EDIT if edit else QWEN_IMAGE._replace(length=34 + words)
    opened = open_tokenizer(tmp_path, "qwen2_5_vl")
    ids, seen = token_rows(opened.encode, opened.ends, PROMPTS, rule, opened.source)
    states = qwen2_5_vl(Module(qwen_vl_weights(model)), ids, seen, sections=sections, theta=theta)[-1]
    taken = seen * (np.arange(ids.shape[1]) >= first_taken(seen, rule)[:, None])
    made = joined("qwen-image", qwen2_5_vl=(states, None, taken))
    own = np.ones(made.context.shape[:2]) if made.mask is None else made.mask
    there = torch.ones(context.shape[:2]) if mask is None else mask
    for n in range(len(PROMPTS)):
        agree(made.context[n][own[n] != 0], context[n][there[n] != 0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_flux2_dev(tmp_path, side):
    tokens, merges, special = bytes_trained()
    special = [
        *special,
        "<s>",
        "</s>",
        "<pad>",
        "[INST]",
        "[/INST]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[IMG]",
    ]
    backend = qwen2(tokens, merges, special).backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side=side
    )
    tokenizer.chat_template = MISTRAL_TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    size = MistralSize(hidden=16, layers=31, heads=2, kv_heads=1, head_dim=8, mlp=20, vocab=len(tokenizer))
    with float64_throughout():
        model = MistralForCausalLM(mistral_config(size)).eval()
        redraw(model, 9)
        prompts = [PROMPTS[0] + "[IMG]", *PROMPTS[1:]]
        peer = Flux2Pipeline._get_mistral_3_small_prompt_embeds(
            model, tokenizer, prompts, torch.float64, "cpu", max_sequence_length=300
        )
    ids, seen = rows(tmp_path, "mistral", "flux2-dev", 300)
    states = mistral(Module(mistral_weights(model.model)), ids, seen, 8)
    made = joined("flux2-dev", mistral=(stacked(states, MISTRAL_LAYERS), None, seen)).context[:, :300]
    where = seen != 0 if side == "left" else np.ones_like(seen, bool)
    assert distance(made[where], peer[torch.from_numpy(where)]) <= 1e-12


def test_wans_padding_is_zeros():
    """The tokenizer's mask and the encoder's states are given."""
    hidden = np.random.default_rng(0).standard_normal((2, 9, 5))
    mask = np.array([[1] * 4 + [0] * 5, [1] * 9])
    pipe = SimpleNamespace(
        _execution_device="cpu",
        tokenizer=lambda texts, **asked: SimpleNamespace(
            input_ids=torch.zeros((2, 9), dtype=torch.int64), attention_mask=torch.from_numpy(mask)
        ),
        text_encoder=_Given(torch.from_numpy(hidden)),
    )
    theirs = WanPipeline._get_t5_prompt_embeds(pipe, ["a", "b"], max_sequence_length=9, dtype=torch.float64)
    prompt = EncodedPrompt({"t5": Encoded(hidden, None, mask)}, Module({}), (64, 64), DIFFUSERS)
    np.testing.assert_array_equal(VARIANTS["wan"].join(prompt).context, theirs.numpy())


class _Given(torch.nn.Module):
    """Answers with given hidden states."""

    def __init__(self, hidden):
        super().__init__()
        self.hidden = torch.nn.Parameter(hidden, requires_grad=False)

    def forward(self, ids, mask):
        return SimpleNamespace(last_hidden_state=self.hidden)
