"""Names as patterns."""

import pytest

from refsd.weights.name_groups import few, grouped

ALL = [f"layers.{i}.{leaf}" for i in range(4) for leaf in ("a.weight", "a.bias", "b.weight")] + ["x.weight", "y"]


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["layers.1.a.weight"], ["layers.1.a.weight"]),
        (["layers.1.a.weight", "layers.1.a.bias"], ["layers.1.a.*"]),
        ([name for name in ALL if name.startswith(("layers.2", "layers.3"))], ["layers.2-3.*"]),
        ([f"layers.{i}.b.weight" for i in (0, 1, 3)], ["layers.0-1,3.b.weight"]),
        (["x.weight", "y"], ["x.weight", "y"]),
        (["elsewhere.0.z"], ["elsewhere.0.z"]),
        ([], []),
    ],
)
def test_patterns(names, patterns):
    assert grouped(names, ALL) == patterns


def test_few():
    assert few(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert few(["a"]) == "a"
