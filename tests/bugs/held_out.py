"""Held-out bugs: real ones that were collected and written down before anyone looked at the judge's known bugs.

They measure how well the judge names what it was not written for. `inject.py --held-out` runs them.
"""

from typing import NamedTuple

from injection import Injection


class HeldOut(NamedTuple):
    """
    level:     as in a list of bugs
    source:    repository, commit or thread
    injection: None where no case reaches the bug
    """

    level: str
    source: str
    injection: Injection | None


def with_cases(table: dict[str, HeldOut], since: dict[str, Injection]) -> dict[str, HeldOut]:
    """Add the injections of bugs that no case showed when the set was drawn, and that one shows since."""
    return {id: one._replace(injection=one.injection or since.get(id)) for id, one in table.items()}


def injections(table: dict[str, HeldOut]) -> dict[str, Injection]:
    """By id, those that a case reaches."""
    return {id: one.injection for id, one in table.items() if one.injection is not None}


def levels(table: dict[str, HeldOut]) -> dict[str, str]:
    return {id: one.level for id, one in table.items()}
