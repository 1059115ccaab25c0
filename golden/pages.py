"""Collect the pages of a folder, so that a new page is found by itself."""

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def modules(package: str) -> list[ModuleType]:
    """Import every module of a package, in the order of their names."""
    folder = importlib.import_module(package).__path__
    return [importlib.import_module(page.name) for page in pkgutil.iter_modules(folder, f"{package}.")]


def tables(package: str, name: str) -> list[Any]:
    """Return the value of `name` in each module of a package that defines it."""
    return [getattr(page, name) for page in modules(package) if hasattr(page, name)]


def rows(package: str, name: str) -> dict[str, Any]:
    """Join the tables of a package's modules. Raises ValueError where two have a row of one name."""
    joined: dict[str, Any] = {}
    for table in tables(package, name):
        if both := joined.keys() & table.keys():
            raise ValueError(f"two pages of {package} declare {min(both)}")
        joined |= table
    return joined


def by_name(package: str, name: str) -> dict[str, Any]:
    """Join lists of things with a name. Raises ValueError where two have one name."""
    joined: dict[str, Any] = {}
    for one in (one for table in tables(package, name) for one in table):
        if one.name in joined:
            raise ValueError(f"two pages of {package} declare {one.name}")
        joined[one.name] = one
    return joined
