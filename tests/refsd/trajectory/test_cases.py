"""Cases of samplers reach what mutations of their code had shown to be out of every case's reach."""

from functools import partial

import numpy as np

from refsd.cases import CASES
from refsd.trajectory.forms import forms
from refsd.trajectory.run import sigmas_of, solver_of


def test_a_restart_restarts():
    case = CASES["trajectory/restart/karras-20"]
    solver, sigmas = solver_of(case), sigmas_of(case)
    assert case.params["steps"] >= 20
    right, without = (forms(one, sigmas) for one in (solver, solver._replace(run=partial(solver.run, segments=[]))))
    assert right.draws == 1 and without.draws == 0


def test_the_fast_solver_has_steps_of_each_order():
    for name, calls in (("exponential", 6), ("discrete", 7)):
        form = forms(solver_of(case := CASES[f"trajectory/dpm_fast/{name}"]), sigmas_of(case))
        assert form.calls == calls and np.isfinite(form.rows).all()
