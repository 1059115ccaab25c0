"""Compare the settings of two plans by name, and describe the differences."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from refsd.pipelines.plan import Plan

CONVENTION = "convention."  # prefix of the names of a convention's fields


class Difference(NamedTuple):
    """A setting that differs.

    name: a field of Plan, or "convention." and a field of Convention
    a, b: values in words
    """

    name: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.name} {self.a} and {self.b}"


def differences(a: Plan, b: Plan) -> Iterator[Difference]:
    """List every setting that differs; the conventions' names do not count as a setting."""
    names = [field.name for field in fields(a) if field.name != "convention"]
    names += [f"{CONVENTION}{field.name}" for field in fields(a.convention) if field.name != "name"]
    for name in names:
        one, other = words(value(a, name)), words(value(b, name))
        if one != other:
            yield Difference(name, one, other)


def value(plan: Plan, name: str) -> Any:
    field = name.removeprefix(CONVENTION)
    return getattr(plan if field == name else plan.convention, field)


def exchanged(a: Plan, b: Plan, name: str) -> Plan:
    """Return plan a with b's value of one setting."""
    field = name.removeprefix(CONVENTION)
    if field == name:
        return replace(a, **{name: getattr(b, name)})
    return replace(a, convention=replace(a.convention, **{field: getattr(b.convention, field)}))


def words(setting: Any) -> str:
    """Describe a value in a few words: by its name if it has one; arrays by the first and the last number."""
    if isinstance(setting, np.ndarray):
        return f"{len(setting)} from {setting[0]:.8g} to {setting[-2]:.8g}, {setting[-1]:.8g}"
    if hasattr(setting, "sigmas"):
        sigmas = np.asarray(setting.sigmas, np.float64)
        return f"{len(sigmas)} from {sigmas[0]:.8g} to {sigmas[-1]:.8g}"
    for name in ("engine", "name", "__name__"):
        if hasattr(setting, name):
            return str(getattr(setting, name))
    shown = f"{setting:.8g}" if isinstance(setting, float) else str(setting)
    return shown if len(shown) < 80 and " at 0x" not in shown else type(setting).__name__
