"""Mistral's tekken against mistral-common's code, with its own vocabulary, on any text."""

import json
from pathlib import Path

import mistral_common
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tiny_tokenizers import PROMPTS
from transformers.convert_slow_tokenizer import bytes_to_unicode

from refsd.tokenizers.byte_level import TEKKEN, byte_level
from refsd.tokenizers.text_tokenizer import Ends

pytestmark = pytest.mark.peer

FILE = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
SPECIAL = 1000  # ids before the first of the vocabulary's


@pytest.fixture(scope="module")
def peer():
    return Tekkenizer.from_file(FILE)


@pytest.fixture(scope="module")
def ours(peer):
    """Of the same words; a merge is any two of them that make a third, in the order of their ids."""
    characters = bytes_to_unicode()
    words = [peer.id_to_byte_piece(i) for i in range(SPECIAL, peer.n_words)]
    ids = {"".join(characters[b] for b in word): SPECIAL + n for n, word in enumerate(words)}
    merges = []
    for token, i in ids.items():
        halves = [(token[:n], token[n:]) for n in range(1, len(token)) if {token[:n], token[n:]} <= ids.keys()]
        merges += [(i, ids[a], ids[b], f"{a} {b}") for a, b in halves]
    return byte_level(str(FILE), ids, [merge for *_, merge in sorted(merges)], [], TEKKEN, Ends())


def test_the_cut_is_the_file_s():
    assert json.loads(FILE.read_text())["config"]["pattern"] == TEKKEN.words


@given(text=st.text(st.characters(exclude_categories=["Cn", "Cs"]), max_size=60))
@example(text="".join(PROMPTS))
@example(text="HelloWorld camelCase\n// a/b\r\n  \n x")
def test_any_text(peer, ours, text):
    """Of assigned characters: which newer ones are letters depends on each library's version of Unicode."""
    assert ours.encode(text) == peer.encode(text, bos=False, eos=False)
