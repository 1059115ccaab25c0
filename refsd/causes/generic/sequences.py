"""Describe how one sequence of integers, such as a prompt's tokens, differs from another."""

import difflib
from collections.abc import Callable

import numpy as np

_LISTED = 4
# What a vocabulary puts behind the last character of a word.
_END = "</w>"
Spelled = Callable[[int], str | None]
Text = Callable[[list[int]], str | None]


def sequence_difference(
    actual: np.ndarray, truth: np.ndarray, unit: str, spelled: Spelled | None = None, text: Text | None = None
) -> str | None:
    """Describe the difference of two arrays of ids in a phrase; None if they are equal, or not two-dimensional.

    actual, truth: [rows, length]; unit: what one number is, "token"
    spelled:      id -> its characters, or None; text: ids -> the text that they spell; what they tell comes first
    """
    phrase = _difference(actual, truth, unit)
    words = spelled and phrase and _of_characters(actual, truth, spelled)
    words = words or (text and phrase and _of_text(actual, truth, text))
    return f"{words}: {phrase}" if words else phrase


def _of_text(actual: np.ndarray, truth: np.ndarray, text: Text) -> str | None:
    """Say which words of the text are others, or only cut into others."""
    a, b = (text(_content(y.ravel().astype(np.int64).tolist())) for y in (actual, truth))
    if a is None or b is None or a == b:
        return None if a is None or b is None else "the same text in other tokens"
    one, other = a.split(" "), b.split(" ")
    changes = difflib.SequenceMatcher(None, other, one, autojunk=False).get_opcodes()
    i, j, k, m = next(at for kind, *at in changes if kind != "equal")
    words = f"{' '.join(one[k:m][:_LISTED])!r} for {' '.join(other[i:j][:_LISTED])!r}"
    if a.lower() == b.lower():
        more = sum(map(str.isupper, a)) > sum(map(str.isupper, b))
        return f"{('small letters for capitals', 'capitals for small letters')[more]}, {words}"
    same = a.replace(" ", "") == b.replace(" ", "")
    return f"the text is cut into other words, {words}" if same else f"the text reads {words}"


def _of_characters(actual: np.ndarray, truth: np.ndarray, spelled: Spelled) -> str | None:
    """Name what ids that were put in, or stand for others, spell: white space, a word's end that is missing."""
    a, b = (_content(y.ravel().astype(np.int64).tolist()) for y in (actual, truth))
    changes = [op for op in difflib.SequenceMatcher(None, b, a, autojunk=False).get_opcodes() if op[0] != "equal"]
    put = [spelled(i) for _, _, _, k, m in changes for i in a[k:m]]
    gone = [spelled(i) for _, i, j, _, _ in changes for i in b[i:j]]
    blanks = sorted({_SPACES[one] for text in put if text for one in [text.removesuffix(_END)] if one in _SPACES})
    said = [f"{' and '.join(blanks)} as a token"] if blanks else []
    ends = [text for text in gone if text and text.endswith(_END) and text.removesuffix(_END) in put]
    if ends:
        word = "digit" if all(text.removesuffix(_END).isdigit() for text in ends) else "character"
        said.append(f"a {word} inside a word for one that ends it ({ends[0].removesuffix(_END)} for {ends[0]})")
    return ", and ".join(said) or None


_SPACES = {" ": "a blank", "\n": "a line end", "\r": "a line end", "\t": "a tab"}


def _difference(actual: np.ndarray, truth: np.ndarray, unit: str) -> str | None:
    if actual.ndim != 2 or truth.ndim != 2 or np.array_equal(actual, truth):
        return None
    if len(actual) != len(truth):
        same = min(len(actual), len(truth))
        rest = f"{len(actual)} rows of {unit}s for {len(truth)}"
        if actual.shape[1] == truth.shape[1] and np.array_equal(actual[:same], truth[:same]):
            how = "left out" if same < len(truth) else "too many"
            return f"{rest}: the last {abs(len(actual) - len(truth))} {how}"
        return f"{rest}: {_of_rows(actual.ravel(), truth.ravel(), unit, truth)}"
    row = int(np.argmax([not np.array_equal(a, b) for a, b in zip(actual, truth, strict=True)]))
    where = f" in row {row}" if len(truth) > 1 else ""
    return _of_rows(actual[row], truth[row], unit, truth) + where


def _of_rows(actual: np.ndarray, truth: np.ndarray, unit: str, rows: np.ndarray) -> str:
    a, b = actual.astype(np.int64).tolist(), truth.astype(np.int64).tolist()
    longer = f"{len(a)} {unit}s for {len(b)}: " if len(a) != len(b) else ""
    padding = b[-1] if len(b) > 1 and b[-1] == b[-2] else None
    own, right = _content(a), _content(b)
    if (own == right or (padding is not None and [*own, a[-1]] == right)) and len(a) == len(b):
        return f"padding is {a[-1]} for {b[-1]}"
    if len(own) < len(right) and own == right[: len(own)]:
        return f"{longer}cut off after {unit} {len(own) - 1}: {len(right) - len(own)} are missing"
    if len(own) > len(right) and own[: len(right)] == right:
        more = own[len(right) :]
        return f"{longer}{len(more)} {unit}s too many behind {unit} {len(right) - 1}: {_ids(more)}"
    if len(own) == len(right) and own[:-1] == right[:-1]:
        return f"{longer}the last {unit} is {own[-1]} for {right[-1]}"
    if ends := _ends_put_in(own, right):
        return f"{longer}{ends}"
    parts = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, right, own, autojunk=False).get_opcodes():
        if kind == "delete":
            parts.append(f"{_role(i, j, right, unit)} ({_ids(right[i:j])}) left out")
        elif kind == "insert":
            parts.append(f"{_ids(own[k:m])} put in before {unit} {i}")
        elif kind == "replace":
            parts.append(f"{unit}s {i} to {j - 1} are {_ids(own[k:m])} for {_ids(right[i:j])}")
    if padding is not None and a[-1] != padding and a[-1] == a[-2]:
        parts.append(f"padding is {a[-1]} for {padding}")
    more = f", and {len(parts) - _LISTED} more places" if len(parts) > _LISTED else ""
    return longer + "; ".join(parts[:_LISTED]) + more


def _ends_put_in(own: list[int], right: list[int]) -> str:
    """Say where a text's last token stands again, with or without its first, as if nothing stood between them."""
    *changes, last = difflib.SequenceMatcher(None, right, own, autojunk=False).get_opcodes()
    put = [(i, own[k:m]) for kind, i, _, k, m in (*changes, last) if kind == "insert"]
    # What is put in may push the last tokens out.
    if not put or len(right) < 3 or any(kind not in ("equal", "insert") for kind, *_ in changes):
        return ""
    for i, ids in put:
        alone = i == 0 or right[i - 1] == ids[-1] or ids[0] == right[0]
        if not alone or ids[-1] != right[-1] or {*ids} - {right[0], right[-1]}:
            return ""
    where = ", ".join(str(i) for i, _ in put)
    return f"ends of a text around nothing ({_ids(put[0][1])}) put in before token {where}, as of empty texts"


def _content(ids: list[int]) -> list[int]:
    """Return the ids without the padding: the last id's repetitions."""
    end = len(ids)
    while end and ids[end - 1] == ids[-1]:
        end -= 1
    return ids[:end] if end < len(ids) - 1 else ids


def _role(i: int, j: int, ids: list[int], unit: str) -> str:
    if i == 0 and j == 1:
        return f"the first {unit}"
    if j == len(ids) and i == j - 1:
        return f"the last {unit}"
    return f"{unit} {i}" if j == i + 1 else f"{unit}s {i} to {j - 1}"


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:_LISTED])) + (f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else "")
