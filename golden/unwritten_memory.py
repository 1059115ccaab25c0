"""Recognise memory that no code wrote by its contents: values beyond all reason, NaN that no arithmetic gives."""

import numpy as np

from refsd.golden.evidence import Evidence
from refsd.golden.judge import Answer
from refsd.golden.wording import counted

UNWRITTEN = "memory that nobody wrote is read"

# No formula gives a number so many times as large as the largest right one.
_BEYOND = 2.0**60
# The others must be right: of a wrong formula most are wrong.
_MOST = 0.5
_PAYLOAD = np.uint64((1 << 51) - 1)
# The NaN that CUDA's arithmetic gives, of float16, bfloat16 and float32, in float64.
_OF_CUDA = np.array([0x7FFFFC0000000000, 0x7FFFE00000000000, 0x7FFFFFFFE0000000], np.uint64)


def foreign_outputs(actual: Answer, truth: Answer, honest: Answer) -> tuple[str, ...]:
    """Return as a cause what shows that the first such output holds memory that nobody wrote; else ()."""
    for name, right in truth.items():
        y = actual.get(name)
        if y is None or y.dtype.kind != "f" or y.shape != right.shape or not right.size:
            continue
        y, right, near = (np.atleast_1d(np.asarray(t, np.float64)) for t in (y, right, honest[name]))
        finite = np.isfinite(right).all() and np.isfinite(near).all()
        if finite and (shown := unwritten(Evidence(y, right, near))):
            return (f"{UNWRITTEN}: {shown}",)
    return ()


def unwritten(evidence: Evidence) -> str:
    """Say in a phrase what shows that memory was read that nobody wrote; "" if nothing does."""
    actual, wrong = evidence.actual, evidence.wrong()
    bits = np.ascontiguousarray(actual).view(np.uint64)
    foreign = np.isnan(actual) & ((bits & _PAYLOAD) != 0) & ~np.isin(bits, _OF_CUDA)
    if foreign.any():
        n = f"{int(foreign.sum())} of {counted(actual.size, 'element')}"
        return f"{n} are NaN with bits that no arithmetic gives"
    size = np.where(np.isfinite(actual) & wrong, np.abs(actual), 0.0)
    largest = max(float(np.abs(evidence.truth).max()), 1e-30)
    if wrong.any() and wrong.mean() <= _MOST and size.max() > _BEYOND * largest:
        n = f"{int(wrong.sum())} of {counted(actual.size, 'element')}"
        return f"{n} hold unrelated values, up to {size.max():.2g}, where all others are right"
    return ""
