"""A function's text gives every usual bug in it; a number is solved for; a changed run does no harm."""

import contextlib
import itertools
import os
import re
import signal
import sys
import time

import numpy as np
import pytest

from refsd.causes.generic.formula_variants import Text
from refsd.causes.generic.running_code import TooLong, apart, at_most, executed, results_of, swapped
from refsd.causes.generic.sequences import sequence_difference
from refsd.causes.generic.solved_numbers import PLAIN, bits, is_plain, shown, solved
from refsd.golden.search_cuts import noted_cuts


def _slope(x, denoised, sigma, sigma_next, share=0.25):
    d = (x - denoised) / sigma
    return x + d * (sigma_next - sigma) * share


def _rounded(x, denoised, sigma):
    return float(x - denoised) + float(sigma)


def _loop(n):
    while n > 0:
        n -= 1
    return n


def _sums(a, b, c):
    a += b
    return a + b * c - (c + 1)


def _chosen(x, engine, norm: bool):
    first = len(x) > 2
    return x[0] if engine == "sdcpp" and first and norm else x[1]


def _phrases():
    return {variant.phrase: variant for variant in Text(_slope).variants()}


@pytest.mark.parametrize(
    ("phrase", "value"),
    [
        ("slope: sigma_next in place of sigma, in d = (x - denoised) / sigma", 8 + (8 - 2) / 1.0 * (1 - 4) * 0.25),
        ("slope: - denoised left out, in d = (x - denoised) / sigma", 8 + 8 / 4 * (1 - 4) * 0.25),
        ("slope: * share left out, in x + d * (sigma_next - sigma) * share", 8 + 6 / 4 * (1 - 4)),
        ("slope: * share twice, in x + d * (sigma_next - sigma) * share", 8 + 6 / 4 * (1 - 4) * 0.0625),
        ("slope: x left out of x + d * (sigma_next - sigma) * share", 6 / 4 * (1 - 4) * 0.25),
    ],
)
def test_a_function_with_one_thing_changed(phrase, value):
    with swapped(_slope, _phrases()[phrase].code):
        assert _slope(8.0, 2.0, 4.0, 1.0) == pytest.approx(value)
    assert _slope(8.0, 2.0, 4.0, 1.0) == pytest.approx(8 + 6 / 4 * -3 * 0.25)


def test_a_function_of_a_part_of_its_argument_too():
    variants = {variant.phrase: variant for variant in Text(_rounded).variants()}
    (phrase,) = [phrase for phrase in variants if "float of denoised, too" in phrase]
    with swapped(_rounded, variants[phrase].code):
        assert _rounded(np.float64(8), "2", 4) == 10
    assert not [phrase for phrase in variants if "float of sigma, too" in phrase]


def _ends(levels):
    return levels[0], levels[-1]


def test_a_negative_number_is_quoted_with_its_sign():
    phrases = {variant.phrase for variant in Text(_ends).variants()}
    assert {f"ends: {n} in place of -1, in (levels[0], levels[-1])" for n in ("-2", "1")} <= phrases
    assert not [one for one in phrases if "in place of 1" in one]


def test_what_is_true_or_false_is_no_other_variable():
    phrases = [variant.phrase for variant in Text(_chosen).variants()]
    assert {one for one in phrases if "taken for" in one} == {
        f"chosen: {name} taken for {value}, in x[0] if engine == 'sdcpp' and first and norm else x[1]"
        for name in ("first", "norm")
        for value in (True, False)
    }
    assert not [one for one in phrases if re.search("(x|engine) in place of (first|norm|engine)", one)]


def test_a_number_in_a_text_is_another():
    numbers = {number.phrase: number for number in Text(_slope).numbers()}
    default = numbers["slope, share"]
    assert default.value == 0.25 and default.position == 0


def test_a_loop_that_might_not_end_has_no_variants():
    with pytest.raises(LookupError, match="never end"):
        Text(_loop)


def test_the_functions_of_a_run():
    assert executed(lambda: _slope(8.0, 2.0, 4.0, 1.0), lambda module: module == __name__)[-1] is _slope
    assert not executed(lambda: _slope(8.0, 2.0, 4.0, 1.0), lambda module: False)


def test_what_is_done_apart_leaves_nothing_behind():
    kept = [1]

    def work():
        yield ["before"]
        kept.append(2)
        with swapped(_loop, (lambda n: n).__code__):
            yield [_loop(5)]
        raise RuntimeError

    assert apart(work, 1.0) == [["before"], [5]]
    assert kept == [1]


def test_what_never_ends_is_ended():
    def work():
        try:
            with at_most(0.05):
                while True:
                    pass
        except TooLong:
            yield ["late"]
        while True:
            pass

    with noted_cuts() as cuts:
        assert apart(work, 0.2) == [["late"]]
    assert cuts == [0.2]


def test_what_sleeps_is_ended_after_a_patient_wait(monkeypatch):
    def work():
        yield ["before"]
        time.sleep(60)

    monkeypatch.setattr("refsd.causes.generic.running_code._patience", lambda seconds: 0.5)
    with noted_cuts() as cuts:
        assert apart(work, 3.0) == [["before"]]
    assert cuts == [3.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_dies_is_not_cut_by_its_time(number):
    def work():
        yield ["before"]
        os.kill(os.getpid(), number)

    with noted_cuts() as cuts:
        assert apart(work, 1.0) == [["before"]]
    assert cuts == []


def test_without_timers_a_thread_ends_what_takes_too_long(monkeypatch):
    monkeypatch.delattr(signal, "setitimer")
    begun = time.monotonic()
    with pytest.raises(TooLong), at_most(0.05):
        while time.monotonic() < begun + 20:
            pass
    with at_most(0.05):
        quick = 1
    time.sleep(0.1)
    assert quick and time.monotonic() - begun < 10


def test_where_nothing_can_be_forked_a_new_process_is_started(monkeypatch):
    monkeypatch.delattr(os, "fork")
    assert apart(itertools.combinations, 1.0, "abc", 2) == [["a", "b"], ["a", "c"], ["b", "c"]]
    with noted_cuts() as cuts:
        assert apart(eval, 2.0, "__import__('os')._exit(75)") == [] and cuts == [2.0]
        monkeypatch.setattr(sys, "executable", "no-such-python")
        assert apart(itertools.combinations, 1.0, "abc", 2) == []
    assert cuts == [2.0]


def test_a_number_is_solved_for():
    s = np.linspace(0.1, 1, 9)

    def shifted(a):
        return a * s / (1 + (a - 1) * s)

    best = solved([3.0], lambda a: shifted(1.15) - shifted(a[0]))
    assert best == pytest.approx([1.15], rel=1e-6)
    assert solved([3.0], lambda a: np.ones(9)) is None
    ends = solved([80.0, 0.002], lambda v: 100.0 + (0.03 - 100) * s - (v[0] + (v[1] - v[0]) * s))
    assert ends == pytest.approx([100.0, 0.03], rel=1e-6)
    assert shown(np.pi / 2) == "1.5708 (pi / 2)" and shown(1.15000001) == "1.15"
    assert is_plain(1.16) and is_plain(1 / 3) and not is_plain(1.23457)
    assert bits(2.0) < bits(0.45) < bits(1.16) < PLAIN < bits(3210) and bits(4096.0) < PLAIN < bits(10 / 11)


def test_a_result_is_a_constant():
    text, run = Text(_slope), lambda: _slope(3.0, 1.0, 4.0, 2.0)
    of = results_of(_slope, run)
    assert of["d"] == 0.5 and of[""] == 2.75
    numbers = {n.phrase: n for n in text.results(of)}
    constant = numbers["d, in slope, is one number throughout"]
    with swapped(_slope, text.with_numbers([(constant, 1.5)])):
        assert run() == 3.0 + 1.5 * -2 * 0.25


def test_variables_are_exchanged_in_a_statement_and_throughout():
    answers = {}
    for variant in Text(_slope).variants():
        if variant.kind == "exchange":
            with contextlib.suppress(UnboundLocalError), swapped(_slope, variant.code):
                answers[variant.phrase] = _slope(3.0, 1.0, 4.0, 2.0)
    assert answers["slope: x and denoised exchanged in d = (x - denoised) / sigma"] == 3.0 - 0.5 * -2 * 0.25
    assert answers["slope: sigma and sigma_next exchanged throughout"] == 3.0 + 1.0 * 2 * 0.25


@pytest.mark.parametrize(
    ("found", "phrase"),
    [
        ([[1, 5, 6, 7, 2, 0, 0]], None),
        ([[1, 5, 7, 2, 0, 0, 0]], "token 2 (6) left out"),
        ([[5, 6, 7, 2, 0, 0, 0]], "the first token (1) left out"),
        ([[1, 5, 6, 0, 0, 0, 0]], "cut off after token 2: 2 are missing"),
        ([[1, 5, 6, 7, 2, 2, 2]], "padding is 2 for 0"),
        ([[1, 5, 6, 7, 2]], "5 tokens for 7: "),
        ([[1, 5, 9, 8, 7, 2, 0]], "tokens 2 to 2 are 9, 8 for 6"),
    ],
)
def test_how_tokens_differ(found, phrase):
    told = sequence_difference(np.array(found), np.array([[1, 5, 6, 7, 2, 0, 0]]), "token")
    assert told is None if phrase is None else phrase in (told or "")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([1, 2, 1, 5, 6, 2], "ends of a text around nothing (1, 2) put in before token 0, as of empty texts"),
        ([1, 5, 1, 2, 6, 2], "ends of a text around nothing (1, 2) put in before token 2"),
        ([1, 5, 2, 1, 6, 2], "2, 1 put in before token 2"),
    ],
)
def test_ends_around_nothing_are_those_of_empty_texts(found, says):
    told = sequence_difference(np.array([found]), np.array([[1, 5, 6, 2]]), "token")
    assert says in (told or ""), told


def test_capitals_for_small_letters():
    words = {5: "A", 6: "a", 7: "cat "}
    text = lambda ids: "".join(words[id] for id in ids)
    for found, right, says in (
        ([5, 7], [6, 7], "capitals for small letters, 'Acat' for 'acat'"),
        ([6, 7], [5, 7], "small letters for capitals"),
    ):
        told = sequence_difference(np.array([found]), np.array([right]), "token", text=text)
        assert told and told.startswith(says), told


@pytest.mark.parametrize(
    ("phrase", "value"),
    [
        ("sums: the factor of b, in a += b", 2 + 30 + 3 * 5 - 6),
        ("sums: the factor of a, in a + b * c - (c + 1)", 50 + 15 - 6),
        ("sums: the factor of b * c, in a + b * c - (c + 1)", 5 + 150 - 6),
        ("sums: the factor of c, in a + b * c - (c + 1)", 5 + 15 - 51),
    ],
)
def test_a_term_of_a_sum_has_a_factor(phrase, value):
    text = Text(_sums)
    factors = {factor.phrase: factor for factor in text.factors()}
    assert len(factors) == 4
    with swapped(_sums, text.with_numbers([(factors[phrase], 10.0)])):
        assert _sums(2, 3, 5) == value
