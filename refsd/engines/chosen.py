"""The engines that a user chooses by arguments, or all that are there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden.engine import Engine
from refsd.golden.input_file import note_input
from refsd.golden.report import Missing
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import PROFILES
from refsd.weights.model_files import model_files


def reference_engine(profile: str) -> Reference:
    """Make the reference under a numerics profile an engine, to be judged against float64. Raises BadInput."""
    if profile not in PROFILES:
        meant = did_you_mean(profile, PROFILES)
        raise BadInput(f"refsd:{profile}: no such numerics profile{meant}; there are {', '.join(PROFILES)}")
    engine = Reference(PROFILES[profile], model_files=model_files)
    engine.name = f"refsd-{profile}"
    return engine


def one_engine(argument: str, **options: Any) -> Engine:
    """Find a single engine: "torch" is the first engine of torch, "torch-bf16" the engine of that name.

    options: for the engine's `find`: timeout, seconds that an answer may take

    Raises BadInput if it is missing.
    """
    given = registry.Argument.of(argument)
    if given.name == "refsd":
        return reference_engine(given.path or "float32")
    if given.path:
        note_input(Path(given.path))
    looked = registry.find(argument, model_files=model_files, **options)
    found = [one.engine for one in looked if one.engine is not None]
    if not found:
        raise BadInput(f"{argument} cannot be judged: {'; '.join(one.why_not for one in looked)}")
    return found[0]


def asked_for(arguments: Sequence[str] | None) -> Sequence[str]:
    """The arguments; where there are none, the reference in float32 and every engine that needs no path."""
    return arguments or ("refsd:float32", *registry.default())


def look_for(argument: str, taps: str, timeout: float | None = None) -> tuple[list[Engine], list[Missing]]:
    """Find the engines of one argument, and those that are not there.

    taps:    a glob of taps that they must give
    timeout: seconds that an answer may take; None: as many as each engine allows
    """
    name, _, profile = argument.partition(":")
    if name == "refsd":
        return [reference_engine(profile or "float32")], []
    limits = {} if timeout is None else {"timeout": timeout}
    looked = registry.find(argument, model_files=model_files, taps=taps, **limits)
    found = [one.engine for one in looked if one.engine is not None]
    return found, [Missing(one.name, one.why_not) for one in looked if one.engine is None]
