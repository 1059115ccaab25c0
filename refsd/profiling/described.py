"""Write findings as Numerics: the fields in which an engine differs from a profile."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from refsd.kernels.linear_quantized import DOTS
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.profiles import DTYPES, Float16Sums, Numerics
from refsd.numerics.quantization import Int8Scores, Quantization
from refsd.profiling import attention_codes
from refsd.profiling.few_bits import rule_named
from refsd.profiling.functions import ABSOLUTE
from refsd.profiling.profile import Answers, Key
from refsd.profiling.stored_weights import BLOCKS, OF_128, TOWARD_ZERO
from refsd.profiling.sums import float16_sums
from refsd.profiling.types import FLOAT16, FLOAT32, FLOAT64, SHORT

Found = Mapping[Key, str]

_COMPUTED = ("linear", "sum"), ("conv2d", "sum"), ("attention", "sum of scores"), ("attention", "probabilities")
# Where the storage type shows, the first that was asked; a product's may be that of a narrower sum.
_STORAGE = (("silu", "result"), ("layer_norm", "result"), ("linear", "result"), ("conv2d", "result"))


def described(answers: Answers, like: Numerics) -> tuple[Numerics, dict[str, Any]]:
    """Change a profile until it says what was found. -> Numerics, the fields that differ, as JSON has them

    Fields that were not tested, or that Numerics cannot express, keep the profile's values.
    """
    found = {key: finding.value for key, finding in answers.declared().items()}
    said: dict[str, Any] = {}
    for field, read in _FIELDS.items():
        value = read(found, like)
        if value is not None and value[0] != getattr(like, field):
            said[field] = value[0]
    try:
        numerics = replace(like, name=f"{like.name}, changed" if said else like.name, **said)
    except ValueError:  # sums in float16 of factors that are not: no field says that
        said = {field: value for field, value in said.items() if field != "sums"} | (
            {"sums": {}} if like.sums else {}
        )
        numerics = replace(like, name=f"{like.name}, changed" if said else like.name, **said)
    return numerics, {"like": like.name, **{field: _plain(value) for field, value in said.items()}}


def _plain(value):
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Float16Sums):
        return {"step": value.step, "run": value.run}
    if isinstance(value, (Quantization, Int8Scores)):
        return {
            field.name: told for field in fields(value) if (told := getattr(value, field.name)) != field.default
        }
    return list(value) if isinstance(value, tuple) else value


def _sum_hides_factors(found: Found, op: str) -> bool:
    """Return True if a sum in float16 rounds away what tells its factors' type, which have a wider range.

    Numerics have sums in float16 of factors in float16 alone: these stand for the others.
    """
    told = found.get((op, "activations"), FLOAT16)
    return float16_sums(found.get((op, "sum"), "")) is not None and told not in (FLOAT16, FLOAT32)


def _storage_of(found: Found) -> str | None:
    shown = (key for key in _STORAGE if not _sum_hides_factors(found, key[0]))
    return next((found[key] for key in shown if found.get(key) in DTYPES), None)


def _compute(found: Found, like: Numerics):
    kinds = {kind for key, kind in found.items() if key in _COMPUTED}
    return (FLOAT64 if kinds == {FLOAT64} else FLOAT32,) if kinds else None


def _storage(found: Found, like: Numerics):
    kind = _storage_of(found)
    return (kind,) if kind else None


def _rounded(key: Key) -> Callable[[Found, Numerics], tuple | None]:
    """A field that rounds an input to a type narrower than that in which everything is stored."""

    def read(found: Found, like: Numerics):
        if _sum_hides_factors(found, key[0]):
            return (SHORT[FLOAT16],)
        if key not in found or found[key] not in (*SHORT, FLOAT32):
            return None
        return (None if found[key] == _storage_of(found) else SHORT.get(found[key]),)

    return read


def _activations(found: Found, like: Numerics):
    plain = found.get(("linear", "activations"))
    asked = {
        aspect.removeprefix("activations, ").removesuffix(" weights"): value
        for (op, aspect), value in found.items()
        if op == "linear" and aspect.startswith("activations, ")
    }
    if plain is None or not asked or _sum_hides_factors(found, "linear"):
        return None
    kept = {weight: kind for weight, kind in like.activations.items() if weight not in asked}
    blocks = {name: length for length, name in BLOCKS.items()}
    rules = {weight: rule_named(words) for weight, words in {"f32": plain, **asked}.items()}
    kept |= {weight: rule for weight, rule in rules.items() if rule}
    for weight, value in asked.items():
        kind = value.removesuffix(OF_128).removesuffix(TOWARD_ZERO)
        if rules[weight]:
            continue
        if kind in blocks:
            own = DOTS[weight].activation if weight in DOTS else ""
            fits = own in BLOCK_TYPES and BLOCK_TYPES[own].block == blocks[kind]
            kept[weight] = own if fits else {32: "q8_0", 256: "q8_k"}.get(blocks[kind], "q8_0")
        elif kind != plain and kind in SHORT:
            kept[weight] = SHORT[kind]
    return (kept,)


def _flash(found: Found, like: Numerics):
    if ("attention", "mask") not in found or _storage_of(found) != FLOAT32:
        return None
    return ("f16" if found["attention", "mask"] == FLOAT16 else None,)


def _flash_sum(found: Found, like: Numerics):
    if not (_flash(found, like) or (None,))[0] or ("attention", "sum of values") not in found:
        return None
    return ("f16" if found["attention", "sum of values"] == FLOAT16 else None,)


def _convolution(found: Found, like: Numerics):
    """Winograd in float32 needs no word: bounds leave room for it."""
    if ("conv2d", "algorithm") not in found:
        return None
    if found["conv2d", "algorithm"] == "Winograd F(2x2) in 16 bits":
        return ("winograd-f16",)
    return ("im2col",) if like.convolution == "winograd-f16" else None


def _logistic(found: Found, like: Numerics):
    if ("silu", "tail") not in found:
        return None
    return ("rational" if found["silu", "tail"] == ABSOLUTE else None,)


def _one_pass(found: Found, like: Numerics):
    norms = [op for op in ("group_norm", "layer_norm") if (op, "variance") in found]
    kept = [op for op in like.one_pass if op not in norms]
    return ((*kept, *(op for op in norms if found[op, "variance"].startswith("E["))),) if norms else None


def _scores(found: Found, like: Numerics):
    rule = found.get(("attention", "codes of scores"))
    return (attention_codes.RULES.get(rule),) if rule else None


def _sums(found: Found, like: Numerics):
    narrow = "sum of values" if (_scores(found, like) or (None,))[0] else "sum of scores"
    own = {"linear": ("linear", "sum"), "conv": ("conv2d", "sum"), "attention": ("attention", narrow)}
    own = {op: found[key] for op, key in own.items() if key in found}
    if "linear" in own and float16_sums(own["linear"]) is None:
        own["linear"] = found.get(("linear", "sum, f16 weights"), own["linear"])
    kept = {op: sums for op, sums in like.sums.items() if op not in own}
    if ("attention", "mask") in found and (_flash(found, like) or (None,))[0]:
        own.pop("attention")  # fused attention has its own field
    return ({**kept, **{op: sums for op, value in own.items() if (sums := float16_sums(value))}},) if own else None


# Field of Numerics -> its value as a tuple of one, or None if the findings do not tell.
_FIELDS: dict[str, Callable[[Found, Numerics], tuple | None]] = {
    "compute": _compute,
    "storage": _storage,
    "activations": _activations,
    "products": _rounded(("linear", "activations")),
    "conv": _rounded(("conv2d", "activations")),
    "gelu": _rounded(("gelu_tanh", "input")),
    "flash": _flash,
    "flash_sum": _flash_sum,
    "convolution": _convolution,
    "logistic": _logistic,
    "one_pass": _one_pass,
    "scores": _scores,
    "sums": _sums,
}
