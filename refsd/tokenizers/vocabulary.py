"""Find CLIP's vocabulary: a given file, the model's folder, an installed package, the Hub."""

import gzip
import hashlib
import importlib.util
import io
import json
import zlib
from pathlib import Path
from typing import Protocol

from refsd.golden.input_file import read_input
from refsd.numerics.errors import BadInput
from refsd.tokenizers.clip_bpe import ClipBpe
from refsd.tokenizers.instant_clip import InstantClip

Merges = list[tuple[str, str]]

MERGES = 48894
# SHA-256 of the merges, written as "a b\n" each, so that it is the same for every file format.
MERGES_SHA256 = "d308b7377a8ceaa9707a21614fe8c831b9196e197b7aeb69833359362907af02"
FILES = ("tokenizer.json", "merges.txt", "bpe_simple_vocab_16e6.txt.gz", "bpe_simple_vocab_16e6.txt")
REPO = "openai/clip-vit-large-patch14"
LIMIT = 64 << 20  # bytes of a file; the largest of FILES has 4 MB

WAYS = (
    "give it (--vocab: tokenizer.json, merges.txt or bpe_simple_vocab_16e6.txt.gz), or put one of these into the "
    "model folder's tokenizer/, or pip install instant-clip-tokenizer (Python 3.11) or open_clip_torch, or "
    f"pip install huggingface_hub and be online ({REPO})"
)


class Tokenizer(Protocol):
    """A CLIP tokenizer. source: origin of the vocabulary, for messages"""

    source: str

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone: without BOS, EOS, padding or a limit."""
        ...


class Vocabulary(Tokenizer, Protocol):
    """A CLIP tokenizer that spells its ids, too."""

    def decode(self, ids: list[int]) -> str:
        """Return the text that the ids spell, with a blank behind each word."""
        ...


def find_tokenizer(vocab: Path | None = None, model: Path | None = None) -> Vocabulary:
    """Return CLIP's tokenizer from the first of the four places that has it.

    vocab: a file, or a folder with one of FILES; if given, no other place is searched
    model: the model's file or folder; a diffusers folder is searched for tokenizer/
    Raises BadInput if `vocab` is not CLIP's vocabulary, or no place has one.
    """
    if vocab is not None:
        return _from_file(vocab)
    if model is not None and any((model / "tokenizer" / name).is_file() for name in FILES):
        return _from_file(model / "tokenizer")
    if importlib.util.find_spec("instant_clip_tokenizer") is not None:
        return InstantClip()
    file = open_clip_file()
    return _from_hub() if file is None else _from_file(file)


def open_clip_file() -> Path | None:
    """Return the vocabulary file of the package open_clip; None if it is not installed."""
    package = importlib.util.find_spec("open_clip")
    if package is None or not package.origin:
        return None
    file = Path(package.origin).parent / "bpe_simple_vocab_16e6.txt.gz"
    return file if file.is_file() else None


def read_merges(path: Path) -> Merges:
    """Read CLIP's merges from one of FILES, or from merges.txt beside a vocab.json.

    Raises BadInput if the file is missing, of another format, or lacks OpenAI's 48894 merges (by SHA-256).
    """
    if path.name == "vocab.json":
        path = path.with_name("merges.txt")  # the ids follow from the merges
    data = read_input(path, LIMIT, "CLIP's vocabulary, of some megabytes,")
    try:
        merges = _from_json(data) if path.suffix == ".json" else _from_text(data, path.suffix == ".gz")
    except (
        OSError,
        EOFError,
        zlib.error,
        UnicodeDecodeError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ) as error:
        raise BadInput(f"{path}: expected CLIP's vocabulary, cannot be read as such: {_reason(error)}") from error
    digest = hashlib.sha256("".join(f"{a} {b}\n" for a, b in merges).encode("utf-8", "surrogatepass")).hexdigest()
    if digest != MERGES_SHA256:
        raise BadInput(
            f"{path}: expected CLIP's {MERGES} merges (SHA-256 {MERGES_SHA256[:16]}...), "
            f"found {len(merges)} ({digest[:16]}...); this is another model's vocabulary"
        )
    return merges


def _from_file(path: Path) -> Vocabulary:
    if path.is_dir():
        file = next((path / name for name in FILES if (path / name).is_file()), None)
        if file is None:
            raise BadInput(f"{path}: no vocabulary in this folder: expected one of {', '.join(FILES)}")
        path = file
    return ClipBpe(read_merges(path), str(path))


def _from_text(data: bytes, packed: bool) -> Merges:
    """Read one merge per line after a heading, up to CLIP's number; bpe_simple_vocab_16e6.txt has many more."""
    text = gzip.GzipFile(fileobj=io.BytesIO(data)).read(LIMIT) if packed else data
    lines = text.decode().split("\n")[1 : MERGES + 1]
    return [_pair(line) for line in lines if line]


def _from_json(data: bytes) -> Merges:
    """Read the merges of a tokenizer.json: "a b", or since tokenizers 0.20 ["a", "b"]."""
    model = json.loads(data)["model"]
    return [_pair(merge) if isinstance(merge, str) else _pair(" ".join(merge)) for merge in model["merges"]]


def _pair(merge: str) -> tuple[str, str]:
    first, _, second = merge.partition(" ")
    if not (first and second) or " " in second:
        raise ValueError(f"{merge[:40]!r} is no pair of tokens")
    return first, second


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (
        f"it has no {error}"
        if isinstance(error, KeyError)
        else (str(error) or type(error).__name__).splitlines()[0]
    )


def _from_hub() -> Vocabulary:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise BadInput(f"CLIP's vocabulary was not found: {WAYS}")
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(REPO, "merges.txt")
    except Exception as error:  # offline, a proxy, a full disk: huggingface_hub has a class for each, and httpx too
        raise BadInput(f"CLIP's vocabulary was not found ({type(error).__name__} at {REPO}): {WAYS}") from error
    return ClipBpe(read_merges(Path(path)), f"{REPO} on the Hugging Face Hub")
