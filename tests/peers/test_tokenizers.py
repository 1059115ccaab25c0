"""Token ids against open_clip's and transformers' tokenizers running, and the two of refsd against each other."""

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CLIPTokenizer

from refsd.tokenizers.clip_bpe import ClipBpe, vocabulary
from refsd.tokenizers.instant_clip import InstantClip
from refsd.tokenizers.vocabulary import find_tokenizer, read_merges

pytestmark = pytest.mark.peer

PROMPTS = [
    case["text"]
    for case in json.loads((Path(__file__).parents[1] / "fixtures" / "clip_ids.json").read_text())["cases"]
]
# What open_clip cleans and transformers leaves: HTML entities, mojibake, typographic quotes, ligatures, control
# characters (ftfy). It knows the special tokens by other names, and lower-cases whole words: a final sigma.
CLEANED = ("&amp;", "<|", "“", "ﬁ", "ΣΑΣ", "\x00", "\x1c")

OPEN_CLIP = importlib.util.find_spec("open_clip")
assert OPEN_CLIP is not None and OPEN_CLIP.origin, "pip install --no-deps open_clip_torch; pip install ftfy regex"
MERGES = read_merges(Path(OPEN_CLIP.origin).parent / "bpe_simple_vocab_16e6.txt.gz")
OURS = ClipBpe(MERGES, "open_clip")


@pytest.fixture(scope="module")
def open_clip():
    """open_clip/tokenizer.py by itself: the package imports torchvision."""
    path = Path(OPEN_CLIP.origin).with_name("tokenizer.py")
    spec = importlib.util.spec_from_file_location("open_clip_tokenizer_alone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SimpleTokenizer()


@pytest.fixture(scope="module")
def transformers():
    ids = {token: i for i, token in enumerate(vocabulary(MERGES))}
    return CLIPTokenizer(vocab=ids, merges=list(MERGES))


@pytest.mark.parametrize("text", PROMPTS, ids=lambda text: ascii(text[:30]))
def test_against_transformers(transformers, text):
    assert OURS.encode(text) == transformers(text, add_special_tokens=False).input_ids
    padded = transformers(text, padding="max_length", max_length=77, truncation=True).input_ids
    assert [49406, *OURS.encode(text)[:75], 49407] == padded[: min(len(OURS.encode(text)), 75) + 2]


@pytest.mark.parametrize(
    "text",
    [text for text in PROMPTS if not any(mark in text for mark in CLEANED)],
    ids=lambda text: ascii(text[:30]),
)
def test_against_open_clip(open_clip, text):
    assert OURS.encode(text) == open_clip.encode(text)


def test_what_open_clip_cleans(open_clip):
    assert open_clip.encode("salt &amp; pepper") == OURS.encode("salt & pepper") != OURS.encode("salt &amp; pepper")


@settings(max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cn", "Cs"]), max_size=60))
def test_any_text(text):
    """Of assigned characters: which newer ones are letters depends on each library's version of Unicode."""
    assert InstantClip().encode(text) == OURS.encode(text)


def test_open_clip_is_found_where_the_other_package_is_not(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "instant_clip_tokenizer" else found(name)
    )
    assert find_tokenizer().encode("a lovely cat") == [320, 2165, 2368]
