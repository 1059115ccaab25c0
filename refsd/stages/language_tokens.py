"""Tokenize a prompt for T5 or a language model: template, ids, weights, padding, attention mask.

Their vocabularies are not installed: a case carries a small one, which an engine loads instead of its own.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions import PROMPT_CARDS
from refsd.families import VARIANTS
from refsd.numerics.errors import BadInput
from refsd.stages.language_cases import CASES
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, magnitude, param, part
from refsd.tokenizers.byte_level import CUTS, GPT2, QWEN2, Cut, byte_level
from refsd.tokenizers.chunking import Parts
from refsd.tokenizers.clip_bpe import spelled
from refsd.tokenizers.prompt import parse_attention
from refsd.tokenizers.sentence_pieces import (
    BYTE,
    CONTROL,
    LONGEST_PIECE,
    NORMAL,
    UNKNOWN,
    Pieces,
    merged_by_score,
    unigram,
)
from refsd.tokenizers.text_rules import (
    MAX_LENGTH,
    TextRule,
    as_long_as_it_is,
    cut_off,
    first_taken,
    in_chunks,
    token_rows,
)
from refsd.tokenizers.text_tokenizer import Ends, TextTokenizer

Encode = Callable[[str], list[int]]
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def _text(variant: str, encoder: str, engine: str) -> TextRule:
    if variant not in VARIANTS or encoder not in VARIANTS[variant].encoders:
        raise BadInput(f"stage/language_tokens: {variant!r} has no encoder {encoder!r}")
    rules = VARIANTS[variant].encoders[encoder].rules
    if engine not in rules:
        raise BadInput(f"stage/language_tokens: engine {engine!r}: expected one of {', '.join(rules)}")
    return rules[engine]


def _whole(parts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Join neighbours of equal weight into one text, and drop empty texts."""
    joined: list[tuple[str, float]] = []
    for text, weight in parts:
        if joined and joined[-1][1] == weight:
            joined[-1] = (joined[-1][0] + text, weight)
        elif text:
            joined.append((text, weight))
    return joined


class LanguageRule(NamedTuple):
    """The parts of the rule. In the right rule cut, pieces, ends, clean and weigh return theirs.

    cut:     how a vocabulary of bytes cuts a text into words -> the same
    pieces:  a vocabulary of pieces -> the same
    ends:    ids of BOS, EOS and padding, and its side -> the same
    text:    variant, encoder, engine -> text rule
    clean:   prompt -> prompt, before anything else
    parse:   engine -> (prompt -> parts with weights; None for a BREAK)
    whole:   the parts and the template's words -> texts that are encoded separately
    encode:  tokenizer, one text -> ids
    weigh:   weights of a row's tokens -> weights
    later:   weights of a row behind the first -> weights
    mask:    1 for tokens and 0 for padding, text rule -> the encoder's attention mask
    """

    cut: Callable[[Cut], Cut] = lambda cut: cut
    pieces: Callable[[Pieces], Pieces] = lambda pieces: pieces
    ends: Callable[[Ends], Ends] = lambda ends: ends
    text: Callable[[str, str, str], TextRule] = _text
    clean: Callable[[str], str] = lambda prompt: prompt
    parse: Callable[[str], Callable[[str], Parts]] = lambda engine: PROMPT_CARDS[engine].parse
    whole: Callable[[list[tuple[str, float]]], list[tuple[str, float]]] = _whole
    encode: Callable[[TextTokenizer, str], list[int]] = lambda tokenizer, text: tokenizer.encode(text)
    weigh: Callable[[np.ndarray], np.ndarray] = lambda weights: weights
    later: Callable[[np.ndarray], np.ndarray] = lambda weights: weights
    mask: Callable[[np.ndarray, TextRule], np.ndarray] = lambda seen, rule: (
        seen if rule.mask else np.ones_like(seen)
    )


RULE = LanguageRule()


@functools.cache
def _tokenizer(vocabulary: str, rule: LanguageRule = RULE) -> TextTokenizer:
    """Build the case's tokenizer: of bytes if it has merges, else of pieces, merged by score if some are bytes."""
    known = json.loads(vocabulary)
    tokens = known["tokens"]
    ids = {token: i for i, token in enumerate(tokens)}
    bos, eos, pad = (None if token is None else ids[token] for token in known["ends"])
    ends = rule.ends(Ends(bos, eos, pad, known.get("left", False)))
    if "merges" in known:
        cut = rule.cut(CUTS[known.get("cut", "qwen2")])
        return byte_level("the case's vocabulary", ids, known["merges"], known["special"], cut, ends)
    kinds = dict.fromkeys(known["special"], CONTROL) | {"<unk>": UNKNOWN}
    types = np.array([BYTE if _BYTE.fullmatch(token) else kinds.get(token, NORMAL) for token in tokens])
    merged = bool((types == BYTE).any())
    pieces = rule.pieces(Pieces(tokens, np.array(known["scores"]), types, prefix=not merged))
    return (merged_by_score if merged else unigram)("the case's vocabulary", pieces, ends)


def _spelled(params: Params, ids: list[int]) -> str:
    """Return what ids of the case's vocabulary spell."""
    tokens, word = params["vocabulary"]["tokens"], "merges" not in params["vocabulary"]
    joined = "".join(tokens[i] if 0 <= i < len(tokens) else "\ufffd" for i in ids)
    return joined.replace("\u2581", " ") if word else spelled(joined)


def _run(rule: LanguageRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    tokenizer = _tokenizer(json.dumps(p["vocabulary"]), rule)
    text = rule.text(p["variant"], p["encoder"], p["engine"])
    text = text if text.length is None or p["length"] is None else text._replace(length=p["length"])
    prompt = rule.clean(p["prompt"])
    parts = [
        part
        for part in rule.parse(p["engine"])(prompt.replace(text.without, "") if text.without else prompt)
        if part
    ]
    before, after = text.around
    ids: list[int] = []
    weights: list[float] = []
    for one, weight in rule.whole([(before, 1.0), *parts, (after, 1.0)]):
        new = rule.encode(tokenizer, one)
        ids, weights = ids + new, weights + [weight] * len(new)
    rows, seen = token_rows(lambda _: ids, tokenizer.ends, [""], text, tokenizer.source)
    of_rows = np.ones(rows.shape)
    room = (text.length or MAX_LENGTH) - text.bos - text.eos - text.kept
    words = weights[: len(weights) - text.kept]
    for i in range(len(rows)):
        own = words[i * room : (i + 1) * room]
        of_rows[i, np.flatnonzero(seen[i])[text.bos :][: len(own)]] = own
    found = {
        "ids": rows,
        "mask": rule.mask(seen, text),
        "weights": np.stack([rule.weigh(rule.later(row) if i else row) for i, row in enumerate(of_rows)]),
    }
    if _text(p["variant"], p["encoder"], p["engine"]).drop:
        found["taken"] = (np.arange(rows.shape[1]) >= first_taken(seen, text)[:, None]).astype(np.int64)
    if text.positions is not None:
        found["positions"] = text.positions(seen)[..., 0]
    return found


# --- what engines got wrong --------------------------------------------------------------------------------------


def _other(**changes: Any):
    """Change fields of the text rule; a callable value maps the right field to the wrong one, except `over`."""

    def text(variant: str, encoder: str, engine: str) -> TextRule:
        right = _text(variant, encoder, engine)
        return right._replace(
            **{k: v(getattr(right, k)) if callable(v) and k != "over" else v for k, v in changes.items()}
        )

    return text


def _counted_on(positions):
    """Give padding its place in the row."""
    return positions and (lambda mask: np.arange(mask.shape[1])[None, :, None].repeat(len(mask), axis=0))


def _padding_at_0(positions):
    return positions and (lambda mask: positions(mask) * (mask != 0)[..., None])


def _turned(engine: str) -> str:
    return {"sdcpp": "diffusers", "diffusers": "sdcpp"}[engine]


def _empty_too(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Encode an empty text to EOS instead of nothing."""
    eos = tokenizer.ends.eos
    return [*tokenizer.encode(text), *([eos] if not text and eos is not None else [])]


def _each_with_eos(tokenizer: TextTokenizer, text: str) -> list[int]:
    eos = tokenizer.ends.eos
    return [*tokenizer.encode(text), *([] if eos is None else [eos])]


def _bos_first(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Add a BOS to a template, which has one already."""
    bos = tokenizer.ends.bos
    if bos is None:
        raise NoDifference
    return [*([bos] if "[SYSTEM_PROMPT]" in text else []), *tokenizer.encode(text)]


def _lines_apart(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Encode each run of line ends, and the text between them, separately."""
    return [i for piece in re.split(r"(\n+)", text) if piece for i in tokenizer.encode(piece)]


def _plain_specials(tokenizer: TextTokenizer, text: str) -> list[int]:
    if "<|" not in text:
        return tokenizer.encode(text)
    return [
        i for piece in text.replace("<|", "<\0|").replace("|>", "|\0>").split("\0") for i in tokenizer.encode(piece)
    ]


def _longest_first(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Take the longest piece at each place, where the likeliest of all divisions is right."""
    if any(mark in text for mark in ("<|", "[", "<0x")) or tokenizer.id_of("</s>") is None:
        raise NoDifference
    found, left = [], "".join(f"\u2581{word}" for word in text.split())
    while left:
        longest = min(LONGEST_PIECE, len(left))
        n = next((n for n in range(longest, 0, -1) if tokenizer.id_of(left[:n]) is not None), 0)
        number = tokenizer.id_of(left[:n] if n else "<unk>")
        # Neighbouring characters without a piece are one unknown.
        if number is not None and (n or not found or found[-1] != number):
            found.append(number)
        left = left[n or 1 :]
    return found


def _no_bytes(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Encode a character that no piece has as unknown, not as its bytes."""
    of_bytes = {tokenizer.id_of(f"<0x{b:02X}>") for b in range(256)}
    unknown, found = tokenizer.id_of("<unk>"), []
    for i in tokenizer.encode(text):
        if i not in of_bytes:
            found.append(i)
        elif unknown is not None and found[-1:] != [unknown]:
            found.append(unknown)
    return found


def _words(**changes: Any):
    """Cut words otherwise. words: regular expression -> regular expression"""
    words = changes.pop("words", None)

    def cut(right: Cut) -> Cut:
        return right._replace(**changes, **({"words": words(right.words)} if words else {}))

    return cut


def _one_seen(count: int):
    def mask(seen: np.ndarray, rule: TextRule) -> np.ndarray:
        if not rule.mask:
            raise NoDifference
        more = np.arange(seen.shape[1]) < seen.sum(axis=1, keepdims=True) + count
        return more.astype(seen.dtype)

    return mask


def _unweighted(prompt: str) -> Parts:
    return [part and (part[0], 1.0) for part in parse_attention(prompt)]


_KNOWN = (
    part("Unicode not normalised: no NFC", cut=_words(nfc=False)),
    part("Unicode normalised to NFC", cut=_words(nfc=True)),
    part("Unicode normalised to NFKC", clean=lambda p: unicodedata.normalize("NFKC", p)),
    part("digits in runs", cut=_words(words=lambda words: words.replace(r"|\p{N}|", r"|\p{N}+|"))),
    part("digits in runs of three", cut=_words(words=lambda words: words.replace(r"|\p{N}|", r"|\p{N}{1,3}|"))),
    part(
        "runs of blanks not parted from the word behind", cut=_words(words=lambda w: w.replace(r"\s+(?!\S)|", ""))
    ),
    part("the text not cut into words", cut=_words(words=lambda w: r"[\s\S]+")),
    part("the text cut at blanks alone, not into words", cut=_words(words=lambda w: r"\s*\S+|\s+")),
    part("words cut as GPT-2's", cut=lambda cut: cut._replace(words=GPT2.words)),
    part("words cut as Qwen's", cut=lambda cut: cut._replace(words=QWEN2.words)),
    part("words that are tokens not looked up whole", cut=_words(whole=False)),
    part("the longest piece first", encode=_longest_first),
    part("characters without a piece unknown, not bytes", encode=_no_bytes),
    part("blanks as they are", pieces=lambda pieces: pieces._replace(squeeze=False)),
    part("no blank before the text", pieces=lambda pieces: pieces._replace(prefix=False)),
    part("a blank before the text", pieces=lambda pieces: pieces._replace(prefix=True)),
    part("padding on the other side of the text", ends=lambda ends: ends._replace(left=not ends.left)),
    part("a substring of the prompt replaced", clean=lambda p: p.replace("\u306e", "\u306f").replace("cat", "dog")),
    part("the prompt in lower case", clean=str.lower),
    part("blanks at the ends taken off", clean=str.strip),
    part("line ends as blanks", clean=lambda p: " ".join(p.splitlines()) if p else p),
    part("only ASCII is read", clean=lambda p: p.encode("ascii", "ignore").decode()),
    part(
        "text rule of the other engine",
        text=lambda variant, encoder, engine: _text(variant, encoder, _turned(engine)),
    ),
    part("no words around the prompt", text=_other(around=("", ""))),
    part("only the words before the prompt", text=_other(around=lambda around: (around[0], ""))),
    part("cut off", text=_other(over=cut_off)),
    part("in chunks", text=_other(over=in_chunks)),
    part("as long as it is", text=_other(over=as_long_as_it_is, length=None)),
    part("no EOS", text=_other(eos=False)),
    part("an EOS", text=_other(eos=True)),
    part("padding with EOS", text=_other(pad=1)),
    part("padding with 2", text=_other(pad=2)),
    part("padded to the length, or not", text=_other(fill=lambda fill: not fill)),
    part("padded to no whole windows", text=_other(multiple=1)),
    part("padding at its place in the row", text=_other(positions=_counted_on)),
    part("padding at position 0", text=_other(positions=_padding_at_0)),
    part("the template's beginning is taken too", text=_other(drop=0)),
    part("one token less is dropped", text=_other(drop=lambda drop: drop and drop - 1)),
    part("one token more is dropped", text=_other(drop=lambda drop: drop and drop + 1)),
    part("as many tokens are dropped as for Qwen-Image-Edit", text=_other(drop=lambda drop: drop and 64)),
    param("one token more", length=lambda length: length and length + 1),
    part("weights parsed as the other engine's", parse=lambda engine: PROMPT_CARDS[_turned(engine)].parse),
    part("weights parsed and dropped", parse=lambda engine: _unweighted),
    part("empty texts encoded", whole=lambda parts: parts, encode=_empty_too),
    part("EOS after each text", encode=_each_with_eos),
    part("BOS before the template's own", encode=_bos_first, text=_other(bos=True)),
    part("special tokens are text", encode=_plain_specials),
    part("lines apart", encode=_lines_apart),
    part("a blank before each text", encode=lambda tokenizer, text: tokenizer.encode(" " + text)),
    part("weights in the first chunk alone", later=np.ones_like),
    part("weights one token late", weigh=lambda w: np.append(1.0, w[:-1])),
    part("no mask", mask=lambda seen, rule: np.ones_like(seen)),
    part("a mask where the encoder has none", mask=lambda seen, rule: seen),
    part("one token of padding seen", mask=_one_seen(1)),
    part("the last token not seen", mask=_one_seen(-1)),
    part("mask inverted", mask=lambda seen, rule: 1 - RULE.mask(seen, rule)),
)


STAGES = (
    Stage(
        "language_tokens",
        "A prompt as T5 or a language model reads it, by a family's rule in an engine, under a given vocabulary.",
        inputs={},
        params={
            "variant": REQUIRED,
            "encoder": REQUIRED,
            "engine": REQUIRED,
            "prompt": REQUIRED,
            "vocabulary": REQUIRED,
            "length": None,
        },
        outputs={
            "ids": Output(("chunk", "token"), text=_spelled),
            "mask": Output(("chunk", "token")),
            "taken": Output(("chunk", "token")),
            "positions": Output(("chunk", "token")),
            "weights": Output(("chunk", "token"), magnitude, 8),
        },
        rule=RULE,
        run=_run,
        known=_KNOWN,
        cases=CASES,
    ),
)
