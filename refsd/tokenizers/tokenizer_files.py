"""Open a tokenizer's files: tokenizer.json, spiece.model, vocab.json with merges.txt, or a folder of these."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HuggingFace

from refsd.files.formats import open_weights
from refsd.files.json_files import read_json
from refsd.golden.input_file import read_input
from refsd.numerics.errors import BadInput
from refsd.tokenizers.byte_level import QWEN2, TEKKEN, byte_level
from refsd.tokenizers.gguf_metadata import from_gguf
from refsd.tokenizers.sentence_pieces import LONGEST_PIECE
from refsd.tokenizers.spiece import read_spiece
from refsd.tokenizers.text_tokenizer import Ends, TextTokenizer, in_one_line

LIMIT = 2**26  # bytes of a file
MAX_ID = 2**20
QWENS = "qwen3", "qwen2_5_vl", "qwen3_vl"
T5S = "t5", "anima-conditioner"  # their tokenizers are of pieces with scores, not of pairs
FOLDERS = {
    "t5": ("tokenizer_3", "tokenizer_2", "tokenizer"),
    "anima-conditioner": ("t5_tokenizer",),
    **dict.fromkeys(QWENS, ("tokenizer", "processor")),
    "mistral": ("tokenizer",),
    "gemma2": ("tokenizer",),
}
CUTS = {**dict.fromkeys(QWENS, QWEN2), "mistral": TEKKEN}  # for vocab.json with merges.txt, which do not define it
# Component -> its BOS, EOS and padding tokens, if no file names them.
NAMES = {
    **dict.fromkeys(T5S, (None, "</s>", "<pad>")),
    **dict.fromkeys(QWENS, (None, "<|im_end|>", "<|endoftext|>")),
    "mistral": ("<s>", "</s>", "<pad>"),
    "gemma2": ("<bos>", "<eos>", "<pad>"),
}


def open_tokenizer(path: Path, component: str) -> TextTokenizer:
    """Open the tokenizer of a text encoder.

    path:      a GGUF, tokenizer.json, spiece.model, vocab.json (merges.txt beside it), or a folder that holds one
               of these, itself or in tokenizer_3/, tokenizer_2/ or tokenizer/, as diffusers writes it
    component: a key of NAMES

    Raises BadInput if no such file exists, it is damaged, or it belongs to another component.
    """
    if path.is_dir():
        path = _in_folder(path, component)
    if path.suffix == ".gguf":
        return from_gguf(open_weights(path))
    if path.suffix == ".model":
        tokenizer = read_spiece(path, _read(path))
    elif path.name in ("vocab.json", "merges.txt"):
        tokenizer = _vocabulary(path.parent, component)
    elif path.suffix == ".json":
        tokenizer = _whole(path)
    else:
        raise BadInput(
            f"{path}: no tokenizer in it; expected a .gguf, a folder, or (--tokenizer) a tokenizer.json, "
            "spiece.model or vocab.json with merges.txt"
        )
    tokenizer.ends = _ends(path.parent, tokenizer, component)
    return tokenizer


def _in_folder(folder: Path, component: str) -> Path:
    names = ("tokenizer.json", "spiece.model", "tokenizer.model", "vocab.json")
    places = [folder / sub for sub in FOLDERS[component]] + [folder]
    there = [place / name for place in places for name in names if (place / name).is_file()]
    fit = [path for path in there if (component in T5S) == _is_unigram(path)]
    if not fit:
        raise BadInput(
            f"{folder}: no tokenizer of {component} in {', '.join(FOLDERS[component])} or in the folder itself: "
            f"expected {', '.join(names)}"
        )
    return fit[0]


def _is_unigram(path: Path) -> bool:
    if path.suffix == ".model":
        return True
    model = _json(path).get("model") if path.name == "tokenizer.json" else None
    return isinstance(model, dict) and (model.get("type") == "Unigram" or isinstance(model.get("vocab"), list))


def _whole(path: Path) -> TextTokenizer:
    text = _text(path)
    with in_one_line(str(path), "no tokenizer.json"):
        tokenizer = HuggingFace.from_str(text)
    _checked_ids(path, tokenizer.get_vocab())
    return TextTokenizer(str(path), tokenizer, Ends())


def _vocabulary(folder: Path, component: str) -> TextTokenizer:
    if component not in CUTS:
        raise BadInput(f"{folder / 'vocab.json'}: a byte-pair encoding, where {component} has spiece.model")
    ids = _checked_ids(folder / "vocab.json", _json(folder / "vocab.json"))
    special = {}
    for number, added in _object(_config(folder), "added_tokens_decoder").items():
        content = added.get("content") if isinstance(added, dict) else None
        if isinstance(content, str) and number.isascii() and number.isdigit() and len(number) < 8:
            special[content] = int(number)
    special |= _json(folder / "added_tokens.json") if (folder / "added_tokens.json").is_file() else {}
    ids |= _checked_ids(folder / "tokenizer_config.json", special)
    if len(set(ids.values())) != len(ids):
        raise BadInput(f"{folder / 'vocab.json'}: two tokens have one id")
    lines = [line for line in _text(folder / "merges.txt").split("\n") if line and not line.startswith("#version")]
    merges = [line.rstrip("\r") for line in lines]
    return byte_level(str(folder / "vocab.json"), ids, merges, sorted(special), CUTS[component], Ends())


def _checked_ids(path: Path, ids: dict[str, Any]) -> dict[str, int]:
    for token, i in ids.items():
        if type(i) is not int or not 0 <= i < MAX_ID or len(token) > LONGEST_PIECE:
            raise BadInput(
                f"{path}: token {ascii(token)[:40]} has the id {ascii(i)[:40]}, expected 0 to {MAX_ID - 1}"
            )
    return ids


def _ends(folder: Path, tokenizer: TextTokenizer, component: str) -> Ends:
    """Return the BOS, EOS and padding that tokenizer_config.json names, else those of NAMES."""
    config = _config(folder)
    ids = []
    for key, name in zip(("bos_token", "eos_token", "pad_token"), NAMES[component], strict=True):
        entry = config.get(key)
        entry = entry.get("content") if isinstance(entry, dict) else entry
        token = entry if isinstance(entry, str) else name or ""
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise BadInput(f"{folder / 'tokenizer_config.json'}: {key} is {ascii(token)[:40]}, which is no Unicode")
        ids.append(tokenizer.id_of(token))
    return Ends(*ids, left=config.get("padding_side") == "left")


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return _json(path) if path.is_file() else {}


def _object(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key, {})
    return value if isinstance(value, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    return read_json(path, LIMIT)


def _text(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 (byte {error.start})") from None


def _read(path: Path) -> bytes:
    return read_input(path, LIMIT, "a tokenizer")
