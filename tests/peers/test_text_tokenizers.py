"""T5's, Qwen3's and Llama's ids against transformers' tokenizers, on any text; spiece.model by sentencepiece."""

import base64
import io
import json

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.base import TokenizerVersion
from mistral_common.tokens.tokenizers.tekken import SpecialTokens, Tekkenizer
from record_tokenizers import ids_of, llama, qwen2, t5
from tiny_tokenizers import (
    PROMPTS,
    TEXT,
    bytes_gguf,
    bytes_trained,
    llama_gguf,
    llama_pieces,
    unigram_gguf,
    unigram_trained,
)
from transformers import GemmaTokenizer, T5Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode, generate_merges

from refsd.families import FAMILIES
from refsd.stages import STAGES, language_tokens
from refsd.tokenizers.byte_level import TEKKEN
from refsd.tokenizers.text_rules import token_rows
from refsd.tokenizers.tokenizer_files import open_tokenizer

pytestmark = pytest.mark.peer

MARKS = st.sampled_from(
    ["<|im_start|>", "<|endoftext|>", "</s>", "<unk>", "<extra_id_1>", " ", "\n", "\u2581", "cat"]
)
ANY = st.lists(st.text(max_size=12) | MARKS, max_size=8).map("".join)
KINDS = "qwen2", "t5", "llama"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """kind -> a peer, ours from a GGUF, ours from the folder that the peer writes"""
    tmp = tmp_path_factory.mktemp("tokenizers")
    of_bytes, of_words, of_llama = bytes_trained(), unigram_trained(), llama_pieces()
    peers = {"qwen2": qwen2(*of_bytes), "t5": t5(of_words), "llama": llama(*of_llama[:2])}
    ggufs = {
        "qwen2": bytes_gguf(tmp / "b.gguf", *of_bytes),
        "t5": unigram_gguf(tmp / "u.gguf", of_words),
        "llama": llama_gguf(tmp / "l.gguf", *of_llama),
    }
    component = {"qwen2": "qwen3", "t5": "t5", "llama": "mistral"}
    made = {}
    for kind, peer in peers.items():
        peer.save_pretrained(tmp / kind)
        made[kind] = peer, *(open_tokenizer(path, component[kind]) for path in (ggufs[kind], tmp / kind))
    return made


@pytest.mark.parametrize("kind", KINDS)
@given(text=ANY)
@example(text=PROMPTS[3])
@example(text=PROMPTS[8])
def test_any_text(pairs, kind, text):
    peer, from_gguf, from_folder = pairs[kind]
    assert from_gguf.encode(text) == ids_of(peer, text)
    assert from_folder.encode(text) == ids_of(peer, text)


@given(texts=st.lists(ANY, min_size=1, max_size=3), length=st.integers(3, 40))
def test_t5s_padding_and_truncation(pairs, texts, length):
    peer, ours, _ = pairs["t5"]
    rule = FAMILIES["chroma"].encoders["t5"].rules["diffusers"]._replace(length=length)
    ids, mask = token_rows(ours.encode, ours.ends, texts, rule, "")
    padded = peer(texts, padding="max_length", max_length=length, truncation=True)
    assert ids.tolist() == padded.input_ids
    assert mask.tolist() == padded.attention_mask


@given(texts=st.lists(ANY, min_size=1, max_size=3), length=st.integers(12, 60))
def test_qwen3s_padding_and_truncation(pairs, texts, length):
    peer, ours, _ = pairs["qwen2"]
    rule = FAMILIES["zimage"].encoders["qwen3"].rules["diffusers"]._replace(length=length)
    ids, mask = token_rows(ours.encode, ours.ends, texts, rule, "")
    around = [rule.around[0] + text + rule.around[1] for text in texts]
    padded = peer(around, padding="max_length", max_length=length, truncation=True)
    assert ids.tolist() == padded.input_ids
    assert mask.tolist() == padded.attention_mask


def test_a_spiece_model_that_sentencepiece_trained(tmp_path):
    """Its normalisation is in it; transformers reads it with the same library."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 9),
        model_writer=made,
        vocab_size=140,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (tmp_path / "spiece.model").write_bytes(made.getvalue())
    ours, peer = open_tokenizer(tmp_path, "t5"), T5Tokenizer.from_pretrained(tmp_path)
    assert ours.ends[:3] == (None, 1, 0)
    alone = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    for text in PROMPTS:
        assert ours.encode(text) == ids_of(peer, text), text
        if "<" not in text:
            assert ours.encode(text) == alone.encode(text), text


def _tekken(known) -> Tekkenizer:
    """Of the case's words, in the order of their merges; what no two make comes last."""
    back = {character: b for b, character in bytes_to_unicode().items()}
    merged = [merge.replace(" ", "") for merge in known["merges"]]
    letters = [bytes_to_unicode()[b] for b in range(256)]
    words = [token for token in known["tokens"] if token not in {*merged, *letters, *known["special"]}]
    words = [*letters, *merged, *(word for word in words if not word.startswith("<"))]
    vocabulary = [
        {"rank": i, "token_bytes": base64.b64encode(bytes(back[c] for c in word)).decode(), "token_str": None}
        for i, word in enumerate(words)
    ]
    special = [{"rank": i, "token_str": token.value, "is_control": True} for i, token in enumerate(SpecialTokens)]
    count = len(special)
    return Tekkenizer(vocabulary, special, TEKKEN.words, len(words) + count, count, version=TokenizerVersion.v11)


def _peer(known):
    """-> text -> the case's tokens, as strings"""
    if known.get("cut") == "tekken":
        tekken, characters = _tekken(known), bytes_to_unicode()
        ids = lambda text: tekken.encode(text, bos=False, eos=False)
        return lambda text: ["".join(characters[b] for b in tekken.id_to_byte_piece(i)) for i in ids(text)]
    if "merges" in known:
        peer = qwen2(known["tokens"], known["merges"], known["special"])
    elif "<0x00>" in known["tokens"]:
        scored = {token: i for i, token in enumerate(known["tokens"])}
        pieces = list(zip(known["tokens"], known["scores"], strict=True))
        peer = GemmaTokenizer(scored, generate_merges(scored, pieces, skip_tokens=known["tokens"][:261]))
    else:
        peer = t5([*zip(known["tokens"][:-10], known["scores"][:-10], strict=True)])
    return lambda text: [known["tokens"][i] for i in ids_of(peer, text)]


@pytest.mark.parametrize("case", STAGES["stage/language_tokens"].cases, ids=lambda case: case.name)
def test_the_cases_prompts_in_the_cases_vocabularies(case):
    known = case.params["vocabulary"]
    text = case.params["prompt"].replace("[IMG]", "")
    ours = language_tokens._tokenizer(json.dumps(known)).encode(text)
    assert [known["tokens"][i] for i in ours] == _peer(known)(text)
