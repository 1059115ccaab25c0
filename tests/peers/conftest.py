"""What is known to be wrong in the peers' engines is known once: the waivers of conform hold in these tests too."""

from pathlib import Path

import pytest

from refsd.golden.waivers import Waiver, applicable, read
from refsd.numerics.processor import cpu_features

_WAIVERS = Path(__file__).resolve().parents[2] / ".ci" / "waivers.toml"


@pytest.fixture(scope="session")
def waivers() -> list[Waiver]:
    """The waivers that hold on this machine."""
    return applicable(read(_WAIVERS), cpu_features())
