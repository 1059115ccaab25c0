"""Ask whether numbers below float32's smallest normal one, 2^-126, are taken for 0 where they come in or go out."""

import numpy as np

from refsd.profiling.products import first_terms, linear
from refsd.profiling.question import Finding, Questioner


def of_products(questioner: Questioner) -> list[Finding]:
    """2^-130 2^20, 2^-70 2^-65 and, for a type that has no room for either, 2^-100 1"""
    x = first_terms(np.array([2.0**-130, 2.0**-70, 2.0**-100]))
    y = np.diagonal(linear(questioner, x, 2.0 ** np.array([[20.0], [-65.0], [0.0]]) * np.ones(x.shape)))
    return _findings("linear", y[0] != 0, y[1] != 0, "2^-70 2^-65") if y[2] else []


def of_sums(questioner: Questioner) -> list[Finding]:
    """2^-130 + 2^-120 and 2^-126 - 2^-127"""
    a, b = np.array([[2.0**-130, 2.0**-126]]), np.array([[2.0**-120, -(2.0**-127)]])
    y = questioner.ask("add", a.shape, a=a, b=b)[0]
    return _findings("add", y[0] != 2.0**-120, y[1] != 0, "2^-126 - 2^-127") if y[0] else []


def _findings(op: str, came_in: bool, went_out: bool, small: str) -> list[Finding]:
    kept = {True: "kept", False: "flushed to 0"}
    read = f"2^-130 counted as {'itself' if came_in else '0'}"
    wrote = f"{small} came back as {'itself' if went_out else '0'}"
    return [
        Finding(op, "subnormal inputs", kept[bool(came_in)], read, declared=False),
        Finding(op, "subnormal results", kept[bool(went_out)], wrote, declared=False),
    ]
