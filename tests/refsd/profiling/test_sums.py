"""The order of a sum, read from where a cancellation loses a term."""

import numpy as np
import pytest

from refsd.numerics.profiles import Float16Sums
from refsd.profiling.sums import float16_sums, in_words, ordering, structure


def within(tree) -> np.ndarray:
    """Of a sum as nested tuples of term numbers: the size of the smallest part with 0 and j, for j = 1, 2, ..."""

    def leaves(node):
        return {node} if isinstance(node, int) else set().union(*map(leaves, node))

    sizes = {}
    node = tree
    while not isinstance(node, int):
        sizes |= dict.fromkeys(leaves(node), len(leaves(node)))
        node = next(part for part in node if 0 in leaves(part))
    return np.array([sizes[j] for j in sorted(sizes) if j])


def chain(terms):
    node = terms[0]
    for term in terms[1:]:
        node = (node, term)
    return node


def halves(terms):
    return terms[0] if len(terms) == 1 else (halves(terms[: len(terms) // 2]), halves(terms[len(terms) // 2 :]))


K = 64
TREES = {
    "one after the other": chain(range(K)),
    "one after the other, shuffled": chain([0, *(j ^ 1 for j in range(2, K)), 1]),
    "by halves": halves(range(K)),
    "16 at once": chain([tuple(range(i, i + 16)) for i in range(0, K, 16)]),
    "sums of 8, one after the other": chain([chain(range(i, i + 8)) for i in range(0, K, 8)]),
    "8 sums side by side": halves([chain(range(i, K, 8)) for i in range(8)]),
    "another order": chain([0, 5, 3, (1, 2), *(j for j in range(4, K) if j != 5)]),
}


@pytest.mark.parametrize("name", TREES)
def test_orders_are_named(name):
    assert ordering(within(TREES[name]))[0] == name


def test_nothing_lost_says_nothing():
    assert ordering(np.full(63, 2))[0] == ordering(np.full(63, np.nan))[0] == "not seen"


def test_sums_of_float16_are_put_in_words_and_read_back():
    for sums in (Float16Sums(), Float16Sums(16), Float16Sums(8, 32), Float16Sums(1, 64)):
        assert float16_sums("float16" + in_words(sums)) == sums
    assert float16_sums("float32") is None
    assert structure(np.zeros(62, bool), 64) == Float16Sums()
