"""Functions of Ministral 3's rotation with bugs that a port may have."""

import math
from functools import partial

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import mistral
from refsd.networks.bugs import Change, replacing, with_arguments, with_result
from refsd.numerics.arithmetic import Arithmetic

_STRETCH, _scale = mistral.stretch, partial(with_arguments, mistral.query_scale)


def _not_stretched(head_dim, theta, factor, *more):
    return np.ones(head_dim // 2)


def _all_slowed(head_dim, theta, factor, *more):
    return np.full(head_dim // 2, 1 / factor)


def _ramp_reversed(head_dim, theta, factor, *more):
    return 1 + 1 / factor - _STRETCH(head_dim, theta, factor, *more)


def _ends_swapped(head_dim, theta, factor, trained_length, beta_fast, beta_slow, truncate):
    return _STRETCH(head_dim, theta, factor, trained_length, beta_slow, beta_fast, truncate)


def _wavelengths_mixed(head_dim, theta, factor, *more):
    """The line in the wavelength, where it is one in the frequency."""
    return 1 / (1 + (1 - _STRETCH(head_dim, theta, factor, *more)) / (1 - 1 / factor) * (factor - 1))


def _scaled_smoothly(place, attention_factor, trained_length, beta):
    return attention_factor**2 * (1 + beta * np.log1p(place / trained_length))


def _of_factor(factor: float) -> float:
    return 0.1 * math.log(factor) + 1


def _with_attention_factor(other) -> Change:
    """other: what the file has, and what YaRN's authors give for its factor -> what is taken"""

    def params(right):
        if "attention_factor" not in right:
            return right
        return {**right, "attention_factor": other(right["attention_factor"], _of_factor(right["factor"]))}

    return Change(params=params)


def _turned_by_factor() -> Change:
    """Cosines and sines are multiplied by the factor that YaRN's authors give, and the file's is not seen."""
    last = [1.0]

    def noted(head_dim, theta, factor, *more):
        last[0] = _of_factor(factor)
        return _STRETCH(head_dim, theta, factor, *more)

    class Longer(Arithmetic):
        def rope_halves(self, x, angle):
            return self.multiply(super().rope_halves(x, angle), last[0])

    alone = _scale(attention_factor=lambda n: 1.0)
    return Change(Longer, replaced=((mistral, "stretch", noted), (mistral, "query_scale", alone)))


_FACTORS = (
    Mutant(
        "YaRN's attention factor is 0.1 ln(factor) + 1, whatever the file has",
        _with_attention_factor(lambda own, usual: usual),
    ),
    Mutant(
        "YaRN's attention factor is multiplied by 0.1 ln(factor) + 1 once more",
        _with_attention_factor(lambda own, usual: own * usual),
    ),
    Mutant("cosines and sines are multiplied by YaRN's 0.1 ln(factor) + 1, not the file's", _turned_by_factor()),
)
BUGS = _FACTORS + replacing(
    mistral,
    ("Ministral's frequencies are not stretched", "stretch", _not_stretched),
    ("Ministral's frequencies are all slowed", "stretch", _all_slowed),
    ("YaRN's ramp slows the fast channels", "stretch", _ramp_reversed),
    ("YaRN's beta_fast and beta_slow are swapped", "stretch", _ends_swapped),
    (
        "YaRN's ramp is not rounded to whole channels, or the reverse",
        "stretch",
        with_arguments(_STRETCH, truncate=lambda rounded: not rounded),
    ),
    ("YaRN mixes wavelengths, not frequencies", "stretch", _wavelengths_mixed),
    ("YaRN's ramp counts half the channels", "turning", with_result(mistral.turning, lambda turns: turns / 2)),
    ("YaRN's attention factor is left out", "query_scale", _scale(attention_factor=lambda n: 1.0)),
    ("YaRN's attention factor is the queries' alone", "query_scale", _scale(attention_factor=lambda n: n**0.5)),
    ("Ministral's queries are not scaled by their place", "query_scale", _scale(beta=lambda n: 0.0)),
    ("Ministral's queries are scaled by a place that is not rounded down", "query_scale", _scaled_smoothly),
)
