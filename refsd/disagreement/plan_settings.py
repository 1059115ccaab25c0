"""Compare the settings of two plans by name, and describe the differences."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from refsd.pipelines.plan import Plan
from refsd.samplers.levels import NearestLevels

CONVENTION = "convention."  # prefix of the names of a convention's fields


# What a convention's fields say, for those that may be a cause.
_IN_WORDS = {
    "prompt": "how a prompt is parsed and weighed",
    "projects_clip_l": "CLIP-L's pooled text is projected",
    "weighs_together": "both CLIPs are weighted as one array",
    "zeros_empty": "an empty negative prompt becomes zeros",
    "zeros_pooled": "so does its pooled text",
    "zeros_refiner": "an empty negative prompt of the refiner becomes zeros",
    "family_rows": "the family's rules of text and schedule",
    "reads_scheduler": "scheduler_config.json sets the levels",
    "truncation": "what strength leaves of the levels",
    "one_stream": "one random stream for posterior and noise",
    "whole_batch": "one random stream for all pictures of a batch",
    "draws_init": "the latent to start from is drawn from its posterior",
}


class Difference(NamedTuple):
    """A setting that differs.

    name: a field of Plan, or "convention." and a field of Convention
    a, b: values in words
    """

    name: str
    a: str
    b: str

    def __str__(self) -> str:
        field = self.name.removeprefix(CONVENTION)
        if field == self.name:
            return f"{self.name} {self.a} and {self.b}"
        yes_no = {"True": "yes", "False": "no"}
        return f"{_IN_WORDS.get(field, field)}: {yes_no.get(self.a, self.a)} and {yes_no.get(self.b, self.b)}"


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
        given = ", of which the network is given the nearest" if isinstance(setting, NearestLevels) else ""
        return f"{len(sigmas)} from {sigmas[0]:.8g} to {sigmas[-1]:.8g}{given}"
    for name in ("engine", "name", "__name__"):
        if hasattr(setting, name):
            return str(getattr(setting, name))
    shown = f"{setting:.8g}" if isinstance(setting, float) else str(setting)
    return shown if len(shown) < 80 and " at 0x" not in shown else type(setting).__name__
