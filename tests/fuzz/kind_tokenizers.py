"""Tokenizers: tokenizer.json, vocab.json with merges.txt, spiece.model, a GGUF's metadata.

The answer is the whole tokenizer, as the library writes it, its ends, and the ids of some prompts.
"""

import json
import struct
from pathlib import Path
from random import Random

import tiny_tokenizers as tiny
from kind import Files, Kind, Mutation
from kind_gguf import Entry, Parsed, _array, _text, _texts
from mutations import TEXTS, bytes_changed, json_changed, number
from tokenizers import Tokenizer, models, pre_tokenizers

from refsd.tokenizers.tokenizer_files import open_tokenizer

PROMPTS = tiny.PROMPTS[:9]


def _read(file: str, component: str):
    def read(folder: Path):
        tokenizer = open_tokenizer(folder / file, component)
        whole = json.loads(tokenizer._tokenizer.to_str())
        ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
        return {"whole": whole, "ends": tokenizer.ends._asdict(), "ids": ids}

    return read


def _commands(file: str, component: str):
    def commands(folder: Path) -> list[list[str]]:
        path = str(folder / file)
        return [["tokenize", "--tokenizer", path, "--component", component, "-p", "a lovely cat"]]

    return commands


# tokenizer.json


def _json_examples(folder: Path) -> dict[str, Files]:
    tokens, merges, special = tiny.bytes_trained()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    tokenizer.add_special_tokens(list(special))
    config = json.dumps({"bos_token": None, "eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}})
    return {"plain": {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": config.encode()}}


def _mutate_json(rng: Random, files: Files) -> Mutation:
    name = rng.choice(["tokenizer.json"] * 4 + ["tokenizer_config.json"])
    changed, what, _ = json_changed(rng, bytes(files[name]))  # type: ignore[arg-type]
    return Mutation({**files, name: changed}, f"{name}: {what}")


# vocab.json and merges.txt


def _vocabulary_examples(folder: Path) -> dict[str, Files]:
    tokens, merges, _ = tiny.bytes_trained()
    vocab = json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False).encode()
    added = json.dumps({"added_tokens_decoder": {"1": {"content": "<|im_start|>", "special": True}}}).encode()
    text = ("#version: 0.2\n" + "\n".join(merges) + "\n").encode()
    return {"plain": {"vocab.json": vocab, "merges.txt": text, "tokenizer_config.json": added}}


def _mutate_vocabulary(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(["id", "id", "json", "merge", "merge", "bytes", "config"])
    if kind == "id":
        vocab = json.loads(files["vocab.json"])  # type: ignore[arg-type]
        token = rng.choice(sorted(vocab))
        how = rng.choice(["number", "gone", "another", "strange"])
        if how == "number":
            vocab[token] = number(rng)
        elif how == "gone":
            del vocab[token]
        elif how == "another":
            vocab[rng.choice(TEXTS)] = vocab.pop(token)
        else:
            vocab[token] = rng.choice([None, True, 1.0, "1", [], {}, float("nan")])
        return Mutation({**files, "vocab.json": json.dumps(vocab).encode()}, f"id {how} {token!r}", True)
    if kind == "merge":
        lines = bytes(files["merges.txt"]).decode().splitlines()  # type: ignore[arg-type]
        i, j = (rng.randrange(1, len(lines)) for _ in range(2))
        how = rng.choice(["gone", "swap", "text", "move"])
        before = list(lines)
        if how == "gone":
            del lines[i]
        elif how == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif how == "move":
            lines.insert(j, lines.pop(i))
        else:
            lines[i] = rng.choice(["a", "a b c", " ", "\x1b[2J x", "x" * 3000, *TEXTS[:4]]).replace("\n", " ")
        text = ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
        changes = [line for line in lines if line] != before
        return Mutation({**files, "merges.txt": text}, f"merge {how} {i}", changes)
    name = {"json": "vocab.json", "bytes": "merges.txt", "config": "tokenizer_config.json"}[kind]
    content = bytes(files[name])  # type: ignore[arg-type]
    changed, what = bytes_changed(rng, content) if kind == "bytes" else json_changed(rng, content)[:2]
    return Mutation({**files, name: changed}, f"{name}: {what}")


# spiece.model

UNIGRAM = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2)]
UNIGRAM += [
    (piece, -1.0 - i / 8, 1)
    for i, piece in enumerate(["\u2581", "\u2581a", "\u2581lovely", "\u2581cat", *"lovecat's,"])
]
# Nothing else tells whether a text is cut into these.
MORE = [("love", -2.0, 1), ("ly", -2.25, 1), ("unused", -2.5, 1)]


def _spiece(pieces, kind=1) -> bytes:
    return tiny.spiece([(token, score) for token, score, _ in pieces], [of for _, _, of in pieces], kind)


def _spiece_examples(folder: Path) -> dict[str, Files]:
    return {
        "unigram": {"spiece.model": _spiece(UNIGRAM + MORE)},
        "pairs": {"spiece.model": _spiece(UNIGRAM + MORE, 2)},
    }


def _mutate_spiece(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(["piece", "piece", "piece", "bytes", "bytes", "twice", "kind"])
    pieces = list(UNIGRAM + MORE)
    if kind == "bytes":
        changed, what = bytes_changed(rng, bytes(files["spiece.model"]))  # type: ignore[arg-type]
        return Mutation({"spiece.model": changed}, what)
    if kind == "kind":
        model = rng.choice([0, 3, 4, 2**31])
        return Mutation({"spiece.model": _spiece(pieces, model)}, f"model type {model}", True)
    i = rng.randrange(len(pieces))
    token, score, of = pieces[i]
    if kind == "twice":
        pieces.append(pieces[i])
        return Mutation({"spiece.model": _spiece(pieces)}, f"{token!r} twice", True)
    field = rng.choice(["token", "score", "type"])
    if field == "token":
        token = rng.choice([text for text in TEXTS if text.isprintable()] + [token + "x"])
    elif field == "score":
        score = rng.choice([float("nan"), float("inf"), -1e38, 5.0, score - 0.5])
    else:
        of = rng.choice([n for n in (0, 1, 2, 3, 4, 5, 6, 7, 2**31) if n != of])
    pieces[i] = (token, score, of)
    # A special token is found whole, whatever its score; unused pieces and bytes are pieces, as in transformers.
    changes = field == "token" or (i >= len(UNIGRAM) and of not in (5, 6))
    return Mutation({"spiece.model": _spiece(pieces)}, f"piece {i}: {field} {pieces[i]}"[:80], changes)


# GGUF


def _gguf(pieces, model: str) -> Parsed:
    tokens, scores, kinds = ([piece[i] for piece in pieces] for i in range(3))
    entries = (
        Entry(b"general.architecture", 8, _text("t5")),
        Entry(b"tokenizer.ggml.model", 8, _text(model)),
        Entry(b"tokenizer.ggml.tokens", 9, _texts(tokens)),
        Entry(b"tokenizer.ggml.scores", 9, _array(6, "<f", scores)),
        Entry(b"tokenizer.ggml.token_type", 9, _array(5, "<i", kinds)),
        Entry(b"tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 1)),
        Entry(b"tokenizer.ggml.padding_token_id", 4, struct.pack("<I", 0)),
        Entry(b"tokenizer.ggml.add_space_prefix", 7, b"\1"),
    )
    return Parsed(3, 0, len(entries), entries, (), b"")


def _gguf_examples(folder: Path) -> dict[str, Files]:
    return {model: {"a.gguf": _gguf(UNIGRAM + MORE, model).write()} for model in ("t5", "llama")}


def _mutate_gguf(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(["bytes", "entry", "entry", "gone", "kind"])
    content = bytes(files["a.gguf"])  # type: ignore[arg-type]
    if kind == "bytes":
        changed, what = bytes_changed(rng, content)
        return Mutation({"a.gguf": changed}, what)
    model = rng.choice(["t5", "llama", "gpt2", "bert"])
    whole = _gguf(UNIGRAM + MORE, model)
    entries = list(whole.metadata)
    i = rng.randrange(1, len(entries))
    key, of, value = entries[i]
    if kind == "gone":
        del entries[i]
        what = f"no {key!r}"
    elif kind == "kind":
        entries[i] = Entry(key, rng.choice([k for k in range(13) if k != of]), value)
        what = f"{key!r} of type {entries[i].kind}"
    else:
        more = [_array(5, "<i", [-1] * rng.choice([1, 18, 19, 5000])), _array(6, "<f", [float("nan")] * 19)]
        more += [
            _texts(["a"] * 18),
            _texts(["x" * 300] * 18),
            struct.pack("<IQ", rng.choice([5, 8]), number(rng) % 2**64),
        ]
        raw = rng.choice([*more, struct.pack("<I", number(rng) % 2**32), bytes_changed(rng, value)[0]])
        entries[i] = Entry(key, 9 if raw in more else of, raw)
        what = f"{key!r}: {raw[:20]!r}"
    parsed = whole._replace(entries=len(entries), metadata=tuple(entries))
    return Mutation({"a.gguf": parsed.write()}, f"{model}: {what}")


TOKENIZER_JSON = Kind(
    "tokenizer.json",
    _json_examples,
    _mutate_json,
    _read("tokenizer.json", "qwen3"),
    None,
    _commands("tokenizer.json", "qwen3"),
)
VOCABULARY = Kind(
    "vocab.json",
    _vocabulary_examples,
    _mutate_vocabulary,
    _read("vocab.json", "qwen3"),
    None,
    _commands("vocab.json", "qwen3"),
)
SPIECE = Kind(
    "spiece.model",
    _spiece_examples,
    _mutate_spiece,
    _read("spiece.model", "t5"),
    None,
    _commands("spiece.model", "t5"),
)
TOKENIZER_GGUF = Kind(
    "tokenizer.gguf", _gguf_examples, _mutate_gguf, _read("a.gguf", "t5"), None, _commands("a.gguf", "t5")
)
