import gzip
import json
import sys
from types import ModuleType

import pytest

from refsd.numerics.errors import BadInput
from refsd.tokenizers import find_tokenizer, vocabulary
from refsd.tokenizers.clip_bpe import ClipBpe
from refsd.tokenizers.instant_clip import InstantClip

PAIRS = [("c", "a"), ("ca", "t</w>")]
TEXT = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in PAIRS)


@pytest.fixture
def two_merges(monkeypatch):
    """As if CLIP's vocabulary had two merges."""
    monkeypatch.setattr(vocabulary, "MERGES", 2)
    monkeypatch.setattr(
        vocabulary, "MERGES_SHA256", "48cb9ea1354dc1d590be6a74c958c48f16151ab087c2c8960fa6c38f3f4cbbe8"
    )


def write(folder, name):
    path = folder / name
    if name == "tokenizer.json":
        path.write_text(json.dumps({"model": {"vocab": {}, "merges": [f"{a} {b}" for a, b in PAIRS]}}))
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress((TEXT + "more than\nclip took\n").encode()))
    else:
        path.write_text(TEXT)
    return path


@pytest.mark.parametrize("name", vocabulary.FILES)
def test_every_format(two_merges, tmp_path, name):
    path = write(tmp_path, name)
    assert vocabulary.read_merges(path) == PAIRS
    assert find_tokenizer(path).encode("cat") == [513]
    assert find_tokenizer(tmp_path).source == str(path)


def test_merges_as_lists_and_beside_vocab_json(two_merges, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"merges": [list(pair) for pair in PAIRS]}}))
    assert vocabulary.read_merges(path) == PAIRS
    (tmp_path / "vocab.json").write_text("{}")
    write(tmp_path, "merges.txt")
    assert vocabulary.read_merges(tmp_path / "vocab.json") == PAIRS


def test_the_models_folder_goes_before_a_package(two_merges, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    write(tmp_path / "tokenizer", "merges.txt")
    assert isinstance(find_tokenizer(model=tmp_path), ClipBpe)
    assert isinstance(find_tokenizer(model=tmp_path / "elsewhere"), InstantClip)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("merges.txt", b"#version: 0.2\nc a\n", "another model's vocabulary"),
        ("merges.txt", b"#version: 0.2\nc a b\n", "is no pair of tokens"),
        ("merges.txt", b"\xff\xfe\n\xff", "decode"),
        ("tokenizer.json", b"[" * 100_000, "cannot be read as such"),
        ("tokenizer.json", b'{"model": {"merges": [1, 2]}}', "cannot be read as such"),
        ("tokenizer.json", b'{"model": {}}', "it has no 'merges'"),
        ("tokenizer.json", b"null", "cannot be read as such"),
        ("bpe_simple_vocab_16e6.txt.gz", b"not gzip", "cannot be read as such"),
        ("bpe_simple_vocab_16e6.txt.gz", gzip.compress(b"abc\nd e\n", mtime=0)[:-9], "cannot be read as such"),
    ],
)
def test_bad_vocabularies(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInput, match=said) as error:
        find_tokenizer(path)
    assert "\n" not in str(error.value) and name in str(error.value)


def test_a_missing_file_and_an_empty_folder(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        find_tokenizer(tmp_path / "merges.txt")
    with pytest.raises(BadInput, match="no vocabulary in this folder"):
        find_tokenizer(tmp_path)


def test_a_gzip_bomb_is_read_up_to_the_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(vocabulary, "LIMIT", 1 << 20)
    path = tmp_path / "bpe.txt.gz"
    path.write_bytes(gzip.compress(b"a b\n" * (1 << 22)))
    with pytest.raises(BadInput):
        find_tokenizer(path)


def without_packages(monkeypatch):
    found = vocabulary.importlib.util.find_spec
    gone = ("instant_clip_tokenizer", "open_clip")
    monkeypatch.setattr(vocabulary.importlib.util, "find_spec", lambda name: None if name in gone else found(name))


def test_the_hub_comes_last(monkeypatch, two_merges, tmp_path):
    without_packages(monkeypatch)
    hub = ModuleType("huggingface_hub")
    hub.__spec__ = vocabulary.importlib.util.find_spec("json")
    asked = []
    hub.hf_hub_download = lambda repo, name: asked.append((repo, name)) or str(write(tmp_path, name))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert "Hub" in find_tokenizer().source
    assert asked == [("openai/clip-vit-large-patch14", "merges.txt")]


def test_when_no_place_has_it_one_line_says_how(monkeypatch):
    without_packages(monkeypatch)
    hub = ModuleType("huggingface_hub")
    hub.__spec__ = vocabulary.importlib.util.find_spec("json")

    def offline(repo, name):
        raise ConnectionError("no\nroute")

    hub.hf_hub_download = offline
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(BadInput) as error:
        find_tokenizer()
    message = str(error.value)
    assert "\n" not in message
    for way in ("--vocab", "tokenizer/", "instant-clip-tokenizer", "open_clip_torch", "huggingface_hub"):
        assert way in message
