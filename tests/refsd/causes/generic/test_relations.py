"""What a wrong number is of the right one, and that a chance number is nothing of any."""

import numpy as np
import pytest

from refsd.causes.generic.relations import ELEMENTWISE, relation


@pytest.mark.parametrize(
    ("value", "right", "told"),
    [
        (0.49, 0.7, "its square"),
        (0.7**0.5, 0.7, "its root"),
        (0.9170704**4, 0.9170704, "its fourth power"),
        (0.5, 0.4, "the next power of two above it"),
        (64.0, 77.0, "it rounded down to a multiple of 64"),
        (76.0, 77.0, "1 taken from it"),
        (7.5, 77.0, "the value of guidance"),
        (1 / 7.5, 77.0, "guidance's reciprocal"),
        (77 * 7.5, 77.0, "multiplied by guidance"),
        (77.0, 77.0, ""),
        (31.4159, 77.0, ""),
    ],
)
def test_a_number_is_told_from_others(value, right, told):
    found = relation(value, right, {"guidance": 7.5})
    assert found == told or (told == "it rounded down to a multiple of 64" and "two below" in found)


def test_chance_is_seldom_a_relation():
    rng = np.random.default_rng(7)
    draws = rng.uniform(0.1, 20, (2000, 2))
    assert np.mean([relation(a, b, {"c": 1.7, "d": 12.0}) != "" for a, b in draws]) < 0.01


def test_functions_of_each_number():
    x = np.array([0.3, 1.0, 0.0, 5.0])
    assert ELEMENTWISE["raised to the next power of two"](x).tolist() == [0.5, 1, 0, 8]
    assert ELEMENTWISE["lowered to the next power of two"](-x).tolist() == [-0.25, -1, 0, -4]
