"""Functions of Ministral 3's rotation with bugs that a port may have."""

import math

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import mistral
from refsd.networks.bugs import Change, replacing
from refsd.numerics.arithmetic import Arithmetic

_STRETCH, _SCALE, _TURNING = mistral.stretch, mistral.query_scale, mistral.turning


def _not_stretched(head_dim, theta, factor, *more):
    return np.ones(head_dim // 2)


def _all_slowed(head_dim, theta, factor, *more):
    return np.full(head_dim // 2, 1 / factor)


def _ramp_reversed(head_dim, theta, factor, *more):
    return 1 + 1 / factor - _STRETCH(head_dim, theta, factor, *more)


def _ends_swapped(head_dim, theta, factor, trained_length, beta_fast, beta_slow, truncate):
    return _STRETCH(head_dim, theta, factor, trained_length, beta_slow, beta_fast, truncate)


def _not_rounded(head_dim, theta, factor, trained_length, beta_fast, beta_slow, truncate):
    return _STRETCH(head_dim, theta, factor, trained_length, beta_fast, beta_slow, not truncate)


def _wavelengths_mixed(head_dim, theta, factor, *more):
    """The line in the wavelength, where it is one in the frequency."""
    return 1 / (1 + (1 - _STRETCH(head_dim, theta, factor, *more)) / (1 - 1 / factor) * (factor - 1))


def _of_half_the_channels(turns, head_dim, theta, trained_length):
    return _TURNING(turns, head_dim, theta, trained_length) / 2


def _without_attention_factor(place, attention_factor, *more):
    return _SCALE(place, 1.0, *more)


def _attention_factor_once(place, attention_factor, *more):
    return _SCALE(place, attention_factor**0.5, *more)


def _not_scaled(place, attention_factor, trained_length, beta):
    return _SCALE(place, attention_factor, trained_length, 0.0)


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

    return Change(
        Longer, replaced=((mistral, "stretch", noted), (mistral, "query_scale", _without_attention_factor))
    )


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
    ("YaRN's ramp is not rounded to whole channels, or the reverse", "stretch", _not_rounded),
    ("YaRN mixes wavelengths, not frequencies", "stretch", _wavelengths_mixed),
    ("YaRN's ramp counts half the channels", "turning", _of_half_the_channels),
    ("YaRN's attention factor is left out", "query_scale", _without_attention_factor),
    ("YaRN's attention factor is the queries' alone", "query_scale", _attention_factor_once),
    ("Ministral's queries are not scaled by their place", "query_scale", _not_scaled),
    ("Ministral's queries are scaled by a place that is not rounded down", "query_scale", _scaled_smoothly),
)
