"""A folder that is read makes a case known; after each test it is forgotten again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from refsd.adoption.folder import KIND
from refsd.cases import CASES
from refsd.components import COMPONENTS

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = {*CASES}
    yield
    for name in CASES.keys() - before:
        del CASES[name]
    for name in [name for name in COMPONENTS if name.startswith(KIND)]:
        del COMPONENTS[name]


@pytest.fixture
def tiny(tmp_path) -> Path:
    """examples/adopt/mymodel.py, adopted by torch 2.13.0 with onnxscript 0.7.2 on 2026-11-26."""
    return Path(shutil.copytree(ROOT / "tests/fixtures/adopted/tiny", tmp_path / "tiny"))
