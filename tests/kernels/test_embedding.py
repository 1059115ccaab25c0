"""Embedding lookup: rows of the table, and ids that are not there."""

import numpy as np
import pytest

from refsd.kernels.embedding import embedding

TABLE = np.arange(12.0).reshape(4, 3)


def test_rows():
    ids = np.array([[3, 0], [1, 1]])
    np.testing.assert_array_equal(embedding(ids, TABLE), np.eye(4)[ids] @ TABLE)
    assert embedding(np.zeros((0, 2), np.int32), TABLE).shape == (0, 2, 3)


@pytest.mark.parametrize("bad", [-1, 4])
def test_ids_outside_the_table(bad):
    with pytest.raises(IndexError, match="a table of 4 rows"):
        embedding(np.array([0, bad]), TABLE)
