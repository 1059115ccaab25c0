"""The settings of two plans, by name: which differ, and in words how."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from refsd.pipelines.plan import Plan

CONVENTION = "convention."  # before the name of a field of the plan's convention


class Difference(NamedTuple):
    """name: of a field of Plan, or "convention." and one of Convention; a, b: its values in words"""

    name: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.name} {self.a} and {self.b}"


def differences(a: Plan, b: Plan) -> Iterator[Difference]:
    """Every setting that differs; a convention's own name is none."""
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
    """a with b's setting of this name."""
    field = name.removeprefix(CONVENTION)
    if field == name:
        return replace(a, **{name: getattr(b, name)})
    return replace(a, convention=replace(a.convention, **{field: getattr(b.convention, field)}))


def words(setting: Any) -> str:
    """A value in a few words: what has a name by that, numbers by the first and the last."""
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
