"""Changes that any format can take: to bytes, to numbers in them, to JSON."""

import json
import struct
from random import Random
from typing import Any

NUMBERS = (0, 1, 2, 3, 31, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53)
NUMBERS += (2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63))
TEXTS = (
    "",
    "a" * 5000,
    "\x1b[2J\x1b]0;owned\x07",
    "<script>alert(1)</script>",
    "two\nlines",
    "\0",
    "../../../etc/passwd",
    "/dev/zero",
    "\u202egnp.exe",
    "\ud800",
    "\U0001f431" * 9,
    "%s%n{0}",
    "NaN",
    "null",
)
STRANGE = (None, True, False, 0.5, -0.0, float("nan"), float("inf"), 1e300, 10**40, [], {}, [[]], [None], {"": 0})


def number(rng: Random) -> int:
    return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.getrandbits(64)


def near(rng: Random, value: int) -> int:
    """Another number: one more, twice as much, or one that has nothing to do with it."""
    other = rng.choice([value + 1, value - 1, value * 2, value // 2, value ^ 1 << rng.randrange(63), number(rng)])
    return other if other != value else value + 1


def bytes_changed(rng: Random, content: bytes, head: int | None = None) -> tuple[bytes, str]:
    """One damage, most often in the first `head` bytes. -> the damaged content, what was done"""
    end = min(head or len(content), len(content)) if rng.random() < 0.9 else len(content)
    at = rng.randrange(end) if end else 0
    kind = rng.choice(["flip", "byte", "cut", "splice", "repeat", "number", "insert", "swap"])
    n = rng.randint(1, 64)
    if kind == "flip" and content:
        changed = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    elif kind == "byte" and content:
        changed = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    elif kind == "cut":
        changed = content[:at]
    elif kind == "splice":
        changed = content[:at] + content[at + n :]
    elif kind == "repeat":
        changed = content[:at] + content[at : at + n] * rng.choice([2, 3, 50]) + content[at + n :]
    elif kind == "number":
        code = rng.choice(["<H", "<I", "<Q"])
        raw = struct.pack(code, number(rng) % 2 ** (8 * struct.calcsize(code)))
        changed = content[:at] + raw + content[at + len(raw) :]
    elif kind == "swap":
        other = rng.randrange(end) if end else 0
        first, second = sorted((at, other))
        n = min(n, second - first)
        changed = content[:first] + content[second : second + n] + content[first + n : second]
        changed += content[first : first + n] + content[second + n :]
    else:
        changed = content[:at] + rng.randbytes(rng.randint(1, 16)) + content[at:]
    return changed, f"{kind} at byte {at}"


def value(rng: Random, before: Any = None) -> Any:
    """Another JSON value, often of the same type as the one before."""
    if rng.random() < 0.5:
        if type(before) is int:
            return near(rng, before)
        if type(before) is str:
            return rng.choice([*TEXTS, before + "x", before[:-1], before.upper(), before + " "])
        if type(before) is float:
            return rng.choice([-before, before * 2, before + 1e-9, 0, 1e308, float("nan")])
        if type(before) is bool:
            return not before
        if type(before) is list and before:
            return rng.choice([before[::-1], before[:-1], before * 2, [before], [*before, before[0]]])
    return rng.choice([number(rng), rng.choice(TEXTS), rng.choice(STRANGE)])


def places(tree: Any, at: tuple = ()) -> list[tuple]:
    """The path of every value in a JSON value."""
    found = [at]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, below in items:
        found += places(below, (*at, key))
    return found


def tree_changed(rng: Random, tree: Any) -> tuple[Any, str]:
    """One value of a JSON value replaced, removed, renamed, added or swapped. -> a new tree, what was done"""
    tree = json.loads(json.dumps(tree))
    at = rng.choice(places(tree)[1:] or [()])
    if not at:
        return value(rng, tree), "the whole"
    parent = tree
    for key in at[:-1]:
        parent = parent[key]
    key, where = at[-1], "/".join(map(str, at))[:60]
    kind = rng.choice(["replace"] * 5 + ["remove", "rename", "add", "swap"])
    if kind == "remove":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[rng.choice([*TEXTS, f"{key}x", f"{key} "])] = parent.pop(key)
    elif kind == "add" and isinstance(parent, dict):
        parent[rng.choice(["another", "", "__metadata__", f"{key}2"])] = value(rng, parent[key])
    elif kind == "add":
        parent.insert(key, value(rng, parent[key]))
    elif kind == "swap" and len(parent) > 1:
        other = rng.choice([k for k in (parent if isinstance(parent, dict) else range(len(parent))) if k != key])
        parent[key], parent[other] = parent[other], parent[key]
    else:
        kind = "replace"
        parent[key] = value(rng, parent[key])
    return tree, f"{kind} {where}"


def json_changed(rng: Random, content: bytes) -> tuple[bytes, str, bool]:
    """A JSON text with one change. -> content, what was done, whether the value is another"""
    before = json.loads(content)
    if rng.random() < 0.75:
        tree, what = tree_changed(rng, before)
        # Python writes what JSON has not: NaN, and half of a surrogate pair as an escape.
        return json.dumps(tree).encode(), what, not same(tree, before)
    text = content.decode()
    kind = rng.choice(["deep", "twice", "comma", "BOM", "UTF-16", "bytes", "long number"])
    if kind == "deep":
        depth = rng.choice([100, 5000, 200_000])
        return (text[:-1] + ',"deep":' + "[" * depth + "]" * depth + "}").encode(), f"{kind} {depth}", False
    if kind == "twice" and isinstance(before, dict) and before:
        key = rng.choice(sorted(before))
        more = f"{{{json.dumps(key)}: {json.dumps(value(rng, before[key]))}, "
        return (more + text.lstrip()[1:]).encode(), f"{kind} {key}"[:60], False
    if kind == "comma":
        return text.replace("}", ",}", 1).encode(), kind, False
    if kind == "BOM":
        return b"\xef\xbb\xbf" + content, kind, False
    if kind == "UTF-16":
        return text.encode("utf-16"), kind, False
    if kind == "long number":
        return (text[:-1] + ',"n":' + "9" * rng.choice([400, 5000, 100_000]) + "}").encode(), kind, False
    changed, what = bytes_changed(rng, content)
    return changed, what, False


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are one: NaN equals NaN, 1 does not equal True."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
