"""Solvers that read their history at other steps are told so; other wrong steps are not."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.trajectory.diagnose import diagnose
from refsd.causes.trajectory.moved_history import moved_history
from refsd.causes.trajectory.mutants import Change
from refsd.causes.trajectory.simulate import simulate
from refsd.numerics.profiles import FLOAT32
from refsd.trajectory.forms import forms
from refsd.trajectory.run import sigmas_of, solver_of

pytestmark = pytest.mark.jitted


def _causes(name, rows):
    case = CASES[f"trajectory/{name}"]
    inputs = case.realize()
    dump = simulate(case, inputs["noise"].values().astype(np.float32), sigmas_of(case), Change(rows))
    assert dump is not None
    return diagnose(case, inputs, dump.outputs(), FLOAT32)


def _newest_exchanged(case, form, sigmas):
    rows, n = form.rows.copy(), form.calls
    for k in range(2, len(rows)):
        rows[k, [n + k - 1, n + k - 2]] = form.rows[k, [n + k - 2, n + k - 1]]
    return rows


def _previous_denoised(case, form, sigmas):
    """A buffer that is read before it is written: from the second step on, the denoised of the step before."""
    rows, n = form.rows.copy(), form.calls
    for k in range(2, len(rows)):
        rows[k, n + k - 2] += rows[k, n + k - 1]
        rows[k, n + k - 1] = 0
    return rows


def test_exchanged_ages_are_told():
    (named,) = _causes("dpmpp2m/karras", _newest_exchanged)
    assert named == (
        "history: of denoised, that of the step before where this step's belongs "
        "and this step's where that of the step before belongs"
    )


def test_a_stale_buffer_is_told():
    (named,) = _causes("euler/karras", _previous_denoised)
    assert named == "history: of denoised, that of the step before where this step's belongs"


def test_other_wrong_steps_have_no_history():
    def rows(case, form, sigmas):
        wrong = form.rows.copy()
        wrong[3] *= 1.01
        return wrong

    assert not any("history" in cause for cause in _causes("dpmpp2m/karras", rows))
    case = CASES["trajectory/dpmpp2m/karras"]
    assert not moved_history(forms(solver_of(case), sigmas_of(case)), lambda form: False)
