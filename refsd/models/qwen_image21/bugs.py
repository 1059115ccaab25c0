"""Functions of Qwen-Image 2.1's model with bugs that a port, or a page shared with Qwen-Image, may have."""

from collections.abc import Callable
from functools import partial, wraps

import numpy as np

from refsd.golden.judge import Mutant
from refsd.kernels.tanh import tanh
from refsd.models import qwen_image21
from refsd.models.qwen_image21 import Modulation, Run
from refsd.models.vae_qwen_image21.network import LATENTS_MEAN, LATENTS_STD
from refsd.module import Module
from refsd.networks.bugs import Change, Inputs, replacing, rows_and_columns_swapped, with_arguments, with_result

_IDS, _SEQUENCE, _INTERLEAVE = qwen_image21.token_ids, qwen_image21.sequence, qwen_image21.interleave
_REACH, _BY_RUN = qwen_image21.reach, qwen_image21.by_run
_modulations = partial(with_result, qwen_image21.modulations)


def _shifted(runs, shift):
    """Add shift(run) to the positions of each picture's tokens."""
    shifts = [np.tile([0, 0, 0] if run.size is None else shift(run), (run.tokens, 1)) for run in runs]
    return _IDS(runs) + np.concatenate(shifts)


def _from_the_corner(runs):
    return _shifted(runs, lambda run: [0, *(n - n // 2 for n in run.size)])


def _picture_first(runs):
    """Number as Qwen-Image does: the picture at 0, the words after half of it."""
    *words, picture = runs
    half = max(picture.size) // 2
    first = _IDS([picture])
    return np.concatenate([_IDS(words) + half, first]) if words else first


def _words_on_one_axis(runs):
    ids = _IDS(runs)
    kept = [np.tile([1, 0, 0] if run.size is None else [1, 1, 1], (run.tokens, 1)) for run in runs]
    return ids * np.concatenate(kept)


def _picture_in_turn(runs):
    """Advance the first axis with each token of the picture that is drawn."""
    ids = _IDS(runs)
    ids[-runs[-1].tokens :, 0] += np.arange(runs[-1].tokens)
    return ids


def _as_the_language_model_counts(size):
    """Advance by the larger side in places, of 2 x 2 tokens each."""
    return max(size) // 2


def _at_the_sampler_s_time(words):
    """Modulate the words, or the references, as the picture that is drawn."""

    def by_run(vector, runs):
        rows = zip(runs, _BY_RUN(vector, runs), strict=True)
        return [vector[:-1] if (run.size is None) == words else still for run, still in rows]

    return by_run


def _all_at_time_0(vector, runs):
    return [np.repeat(vector[-1:], len(vector) - 1, axis=0)] * len(runs)


def _references_after_the_words(J, places, sizes):
    """Put the references between words and picture; the words that stand for them stay."""
    *_, drawn = _SEQUENCE(J, places, sizes)
    references = [Run(H * W, J, (H, W)) for H, W in sizes[:-1]]
    return [Run(J, 0), *references, drawn] if references else _SEQUENCE(J, places, sizes)


def _tokens_of_a_place_together(runs, words, pictures):
    """Read a reference's tokens 2 x 2 by 2 x 2, as those of the vision tower, not row by row."""
    order, at = [], 0
    for run in runs:
        if run.size is not None:
            H, W = run.size
            squares = np.arange(H * W).reshape(H // 2, 2, W // 2, 2).transpose(0, 2, 1, 3).ravel()
            order.append(at + (np.arange(H * W) if run is runs[-1] else squares))
            at += run.tokens
    return _INTERLEAVE(runs, words, pictures[:, np.concatenate(order)])


@wraps(tanh)  # whose name its taps have
def _gate_as_it_is(x):
    return x


def _gate_first(modulations):
    return tuple(Modulation(gate, scale) for scale, gate in modulations)


def _words_see_each_other(run, start, runs):
    return start + run.tokens, None


def _words_see_the_picture(run, start, runs):
    return (sum(one.tokens for one in runs), None) if run.size is None else _REACH(run, start, runs)


def _references_see_words_after_them(run, start, runs):
    return (_before(runs), None) if run.size and run is not runs[-1] else _REACH(run, start, runs)


def _references_causal_inside(run, start, runs):
    return (start + run.tokens, start) if run is not runs[-1] else _REACH(run, start, runs)


def _before(runs):
    return sum(run.tokens for run in runs[:-1])


def _weight_as_it_is(m: Module, context, eps):
    h = m.rms_norm("text_norm.weight", context, eps)
    return m.linear("out_layer", m.gelu_tanh(m.linear("in_layer", h)))


def _not_normalised(m: Module, context, eps):
    return m.linear("out_layer", m.gelu_tanh(m.linear("in_layer", context)))


def _value_activated(m: Module, h):
    return m.linear("out", m.swiglu(m.linear("gate_up", h), second_gates=True))


def _at_time_0(vec):
    return np.repeat(vec[-1:], len(vec), axis=0)


def _references(change: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Change:
    """Return a bug that changes the references' latents by the autoencoder's statistics, mean and deviation."""
    mean, std = (np.reshape(row, (-1, 1, 1)) for row in (LATENTS_MEAN, LATENTS_STD))

    def changed(inputs: Inputs) -> Inputs | None:
        met = [name for name in inputs if name.startswith("reference") and inputs[name].shape[1] == len(mean)]
        return {**inputs, **{name: change(inputs[name], mean, std) for name in met}} if met else None

    return Change(inputs=changed)


_LAST_AT_TIME_0 = with_arguments(qwen_image21.norm_out, vec=_at_time_0)
# An edit has too much contrast where the references' latents are of another scale than the noise's.
_SCALES = (
    Mutant("Qwen-Image 2.1's references are not normalised", _references(lambda z, mean, std: z * std + mean)),
    Mutant("Qwen-Image 2.1's references are normalised twice", _references(lambda z, mean, std: (z - mean) / std)),
)
BUGS = _SCALES + replacing(
    qwen_image21,
    ("Qwen-Image 2.1's rows and columns count from the corner", "token_ids", _from_the_corner),
    ("Qwen-Image 2.1's rows and columns are swapped", "token_ids", rows_and_columns_swapped(_IDS)),
    ("Qwen-Image 2.1's picture is numbered before the words, as Qwen-Image's", "token_ids", _picture_first),
    ("Qwen-Image 2.1's words are on one axis", "token_ids", _words_on_one_axis),
    ("Qwen-Image 2.1's picture advances the axis that it should freeze", "token_ids", _picture_in_turn),
    ("Qwen-Image 2.1's words have the sampler's time", "by_run", _at_the_sampler_s_time(words=True)),
    ("Qwen-Image 2.1's picture is modulated as at time 0", "by_run", _all_at_time_0),
    ("Qwen-Image 2.1's references have the sampler's time", "by_run", _at_the_sampler_s_time(words=False)),
    ("Qwen-Image 2.1's references stand after the words", "sequence", _references_after_the_words),
    ("Qwen-Image 2.1's references are read 2 x 2 by 2 x 2", "interleave", _tokens_of_a_place_together),
    ("Qwen-Image 2.1's references advance the numbers by half", "steps_of", _as_the_language_model_counts),
    ("Qwen-Image 2.1's references advance the numbers by all tokens", "steps_of", lambda size: size[0] * size[1]),
    ("Qwen-Image 2.1's references see the words after them", "reach", _references_see_words_after_them),
    ("Qwen-Image 2.1's references are causal inside", "reach", _references_causal_inside),
    ("Qwen-Image 2.1's gates lack their tanh", "tanh", _gate_as_it_is),
    ("Qwen-Image 2.1's modulation has the gate before the scale", "modulations", _modulations(_gate_first)),
    (
        "Qwen-Image 2.1's modulations of attention and MLP are swapped",
        "modulations",
        _modulations(lambda both: both[::-1]),
    ),
    ("Qwen-Image 2.1's words see the words after them", "reach", _words_see_each_other),
    ("Qwen-Image 2.1's words see the picture", "reach", _words_see_the_picture),
    ("Qwen-Image 2.1's picture is causal inside", "reach", lambda run, start, runs: (start + run.tokens, start)),
    ("Qwen-Image 2.1's text norm has its weight without the 1", "txt_in", _weight_as_it_is),
    ("Qwen-Image 2.1's text is not normalised", "txt_in", _not_normalised),
    ("Qwen-Image 2.1's MLP activates the value, not the gate", "swiglu", _value_activated),
    ("Qwen-Image 2.1's last layer is modulated as at time 0", "norm_out", _LAST_AT_TIME_0),
)
