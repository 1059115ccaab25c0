"""A few of the draws of tap_sweep.py, which runs as many as one likes."""

import honest_engines
import numpy as np
import pytest
import tap_sweep

from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import TORCH_F32

pytestmark = pytest.mark.jitted  # whole models

# Engines, cases.
HONEST = [("backwards-float32*", "clip-l/clip/ended"), ("backwards-bf16*", "taesd/tae-decoder/*")]


@pytest.mark.parametrize(("engines", "cases"), HONEST)
def test_numpy_raises_no_alarm(engines, cases):
    lines = []
    assert tap_sweep.main(["--seeds", "1", "--cases", cases, "--engines", engines], lines.append) == 0, lines
    assert len(lines) == 5, "two engines, two lines of theirs, one of all"


def test_a_sum_that_leaves_out_a_number_is_an_alarm(monkeypatch):
    total = honest_engines._total
    monkeypatch.setattr(honest_engines, "_total", lambda x: total(x[..., :-1]))
    lines = []
    arguments = ["--seeds", "1", "--cases", "clip-l/clip/ended", "--engines", "backwards-float32"]
    assert tap_sweep.main(arguments, lines.append) == 1
    assert "ALARM text_model.encoder.layers.0.layer_norm1" in "".join(lines)


def test_backwards_is_another_order():
    rng = np.random.default_rng(3)
    x, weight = (rng.standard_normal((20, 300)).astype(np.float32) for _ in range(2))
    forwards, backwards = (order(TORCH_F32).linear(x, weight) for order in (Arithmetic, honest_engines.Backwards))
    np.testing.assert_allclose(forwards, backwards, atol=1e-4)
    assert (forwards != backwards).mean() > 0.2
