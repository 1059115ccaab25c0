"""Tokenize a prompt for T5 or a language model: template, ids, weights, padding, attention mask.

Their vocabularies are not installed: a case carries a small one, which an engine loads instead of its own.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions import PROMPT_CARDS
from refsd.families import VARIANTS
from refsd.numerics.errors import BadInput
from refsd.stages.stage import (
    REQUIRED,
    NoDifference,
    Output,
    Params,
    Stage,
    StageInputs,
    case,
    magnitude,
    param,
    part,
)
from refsd.tokenizers.byte_level import QWEN2, byte_level
from refsd.tokenizers.chunking import Parts
from refsd.tokenizers.clip_bpe import spelled
from refsd.tokenizers.prompt import parse_attention
from refsd.tokenizers.sentence_pieces import CONTROL, NORMAL, UNKNOWN, Pieces, unigram
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


class LanguageRule(NamedTuple):
    """The parts of the rule. In the right rule clean and weigh return their argument.

    text:    variant, encoder, engine -> text rule
    clean:   prompt -> prompt, before anything else
    parse:   engine -> (prompt -> parts with weights; None for a BREAK)
    whole:   the parts and the template's words -> texts that are encoded separately
    encode:  tokenizer, one text -> ids
    weigh:   weights of a row's tokens -> weights
    mask:    1 for tokens and 0 for padding, text rule -> the encoder's attention mask
    """

    text: Callable[[str, str, str], TextRule]
    clean: Callable[[str], str]
    parse: Callable[[str], Callable[[str], Parts]]
    whole: Callable[[list[tuple[str, float]]], list[tuple[str, float]]]
    encode: Callable[[TextTokenizer, str], list[int]]
    weigh: Callable[[np.ndarray], np.ndarray]
    mask: Callable[[np.ndarray, TextRule], np.ndarray]


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


RULE = LanguageRule(
    text=_text,
    clean=lambda prompt: prompt,
    parse=lambda engine: PROMPT_CARDS[engine].parse,
    whole=_whole,
    encode=lambda tokenizer, text: tokenizer.encode(text),
    weigh=lambda weights: weights,
    mask=lambda seen, rule: seen if rule.mask else np.ones_like(seen),
)


@functools.cache
def _tokenizer(vocabulary: str) -> TextTokenizer:
    known = json.loads(vocabulary)
    tokens = known["tokens"]
    ids = {token: i for i, token in enumerate(tokens)}
    bos, eos, pad = (None if token is None else ids[token] for token in known["ends"])
    ends = Ends(bos, eos, pad)
    if "merges" in known:
        return byte_level("the case's vocabulary", ids, known["merges"], known["special"], QWEN2, ends)
    kinds = {"<unk>": UNKNOWN} | {token: CONTROL for token in known["special"] if token != "<unk>"}
    types = np.array([kinds.get(token, NORMAL) for token in tokens])
    return unigram("the case's vocabulary", Pieces(tokens, np.array(known["scores"]), types), ends)


def _spelled(params: Params, ids: list[int]) -> str:
    """Return what ids of the case's vocabulary spell."""
    tokens, word = params["vocabulary"]["tokens"], "merges" not in params["vocabulary"]
    joined = "".join(tokens[i] if 0 <= i < len(tokens) else "\ufffd" for i in ids)
    return joined.replace("\u2581", " ") if word else spelled(joined)


def _run(rule: LanguageRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    tokenizer = _tokenizer(json.dumps(p["vocabulary"]))
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
    found = {"ids": rows, "mask": rule.mask(seen, text), "weights": np.stack([rule.weigh(row) for row in of_rows])}
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


def _lines_apart(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Encode each run of line ends, and the text between them, separately."""
    return [i for piece in re.split(r"(\n+)", text) if piece for i in tokenizer.encode(piece)]


def _plain_specials(tokenizer: TextTokenizer, text: str) -> list[int]:
    if "<|" not in text:
        return tokenizer.encode(text)
    return [
        i for piece in text.replace("<|", "<\0|").replace("|>", "|\0>").split("\0") for i in tokenizer.encode(piece)
    ]


def _blank_first(tokenizer: TextTokenizer, text: str) -> list[int]:
    return tokenizer.encode(" " + text)


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
    part("special tokens are text", encode=_plain_specials),
    part("lines apart", encode=_lines_apart),
    part("a blank before each text", encode=_blank_first),
    part("weights one token late", weigh=lambda w: np.append(1.0, w[:-1])),
    part("no mask", mask=lambda seen, rule: np.ones_like(seen)),
    part("a mask where the encoder has none", mask=lambda seen, rule: seen),
    part("one token of padding seen", mask=_one_seen(1)),
    part("the last token not seen", mask=_one_seen(-1)),
    part("mask inverted", mask=lambda seen, rule: 1 - RULE.mask(seen, rule)),
)


@functools.cache
def vocabularies() -> Mapping[str, Any]:
    return json.loads(resources.files("refsd.stages").joinpath("vocabularies.json").read_text())


def _with_line_ends() -> dict[str, Any]:
    """Return the byte vocabulary plus two tokens: two line ends, and a full stop with two line ends."""
    known = vocabularies()["bytes"]
    end = "\u010a"  # the character of the byte 10
    tokens = [*known["tokens"], 2 * end, f".{2 * end}"]
    return {**known, "tokens": tokens, "merges": [*known["merges"], f"{end} {end}", f". {2 * end}"]}


def _case(label: str, variant: str, encoder: str, engine: str, prompt: str, length: int | None = 24, ends=False):
    vocabulary = _with_line_ends() if ends else vocabularies()["pieces" if encoder == "t5" else "bytes"]
    params = {"variant": variant, "encoder": encoder, "engine": engine, "prompt": prompt, "length": length}
    return case("language_tokens", label, **params, vocabulary=vocabulary)


_CAPITALS = "  A lovely CAT,\nthe hat "
_FOREIGN = "caf\u00e9 \u65e5\u672c\u306e \U0001f431"
_WEIGHTS = "a (lovely:1.3) cat on [the] mat"
_LONG = "a lovely cat sat on the mat, and the other cats' hats were hers, they're"
_SPECIAL = "hello<|im_end|> <think>no</think> <|im_start|>Cat"

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
        cases=(
            _case("flux-t5", "flux-dev", "t5", "diffusers", _CAPITALS),
            _case("flux-t5-long", "flux-dev", "t5", "diffusers", _LONG),
            _case("flux-t5-sdcpp-long", "flux-dev", "t5", "sdcpp", _LONG),
            _case("sd3-t5-sdcpp-weights", "sd3", "t5", "sdcpp", _WEIGHTS),
            _case("chroma-t5-mask", "chroma", "t5", "diffusers", "a lovely cat"),
            _case("chroma-t5-sdcpp", "chroma", "t5", "sdcpp", _FOREIGN),
            _case("t5-empty", "flux-dev", "t5", "diffusers", ""),
            _case("zimage", "zimage", "qwen3", "diffusers", _CAPITALS, 40),
            _case("zimage-special", "zimage", "qwen3", "diffusers", _SPECIAL, 60),
            _case("zimage-empty", "zimage", "qwen3", "diffusers", "", 40),
            _case("zimage-sdcpp-weights", "zimage", "qwen3", "sdcpp", _WEIGHTS),
            _case("zimage-sdcpp-empty", "zimage", "qwen3", "sdcpp", ""),
            _case("zimage-lines", "zimage", "qwen3", "diffusers", "a cat.\n\nthe hat", 40, ends=True),
            _case("qwen-image", "qwen-image", "qwen2_5_vl", "diffusers", _CAPITALS, None),
            _case("qwen-image-long", "qwen-image", "qwen2_5_vl", "diffusers", _LONG, 300),
            _case("qwen-image-sdcpp-weights", "qwen-image", "qwen2_5_vl", "sdcpp", _WEIGHTS, None),
            _case("flux3", "flux3", "qwen3_vl", "diffusers", _CAPITALS, None),
            _case("flux3-long", "flux3", "qwen3_vl", "diffusers", f"{_LONG} {_LONG}", 150),
            _case("zimage-foreign", "zimage", "qwen3", "diffusers", _FOREIGN, 60),
        ),
    ),
)
