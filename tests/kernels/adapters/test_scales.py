"""Each trainer's rule, on the cases where they part."""

import numpy as np
import pytest

from refsd.kernels.adapters import scales


def test_alpha():
    assert scales.alpha_over_rank(None, 4) == 1
    assert scales.alpha_over_rank(2.0, 4) == 0.5
    assert scales.alpha_over_root(2.0, 4) == 1.0


@pytest.mark.parametrize(
    ("w1_rank", "w2_rank", "lycoris", "peft", "sdcpp"),
    [
        (None, None, 1.0, 0.75, 1.0),
        (None, 4, 0.75, 0.75, 0.75),
        (4, None, 0.75, 0.75, 0.75),
        (4, 4, 0.75, 0.75, 0.75),
        (None, 1, 3.0, 0.75, 3 / 40),
        (1, None, 3.0, 0.75, 3 / 40),
    ],
)
def test_lokr(w1_rank, w2_rank, lycoris, peft, sdcpp):
    """alpha 3; PEFT's configuration says r = 4; a part of one row has 40 columns."""
    rank = scales.lokr_rank(w1_rank, w2_rank)
    assert scales.lokr_scale(3.0, rank) == lycoris
    assert scales.lokr_scale_peft(3.0, 4) == peft
    assert scales.lokr_scale_sdcpp(3.0, scales.rank_sdcpp(rank, 40)) == sdcpp
    assert scales.lokr_scale_lycoris_diff(3.0, rank) == lycoris**2


def test_rslora_in_lycoris():
    """LyCORIS trains with alpha / sqrt(rank) and writes an alpha from which the common rule gives that again."""
    alpha, rank = 3.0, 8
    written = alpha * (rank / np.sqrt(rank))
    assert scales.alpha_over_rank(written, rank) == pytest.approx(alpha / np.sqrt(rank))
