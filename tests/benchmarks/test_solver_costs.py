"""What solvers cost: the figures are the machine's, their meaning is tested."""

import functools
import json
import time

import numpy as np
import pytest
import solver_costs
from state_passes import state_passes

from refsd.numerics.errors import BadInput
from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS

TINY = (1, 2, 2, 2)


def test_every_sampler_has_its_row():
    assert set(solver_costs.STATE) == {*SAMPLERS, *CFG_PP_SAMPLERS, *(f"flow/{name}" for name in FLOW_SAMPLERS)}


@pytest.mark.parametrize("name", solver_costs.STATE)
def test_every_row_runs(name):
    run = solver_costs._Run(name, "float64", TINY)
    run.turn(1)
    assert run.best.keys() == {"run", "given", "once", "copy"} and run.steps > 0


@pytest.mark.jitted
def test_a_bench_measures_what_is_asked_for():
    costs = solver_costs.bench(("euler*", "dpm_*", "uni_pc"), 1, 1, TINY)
    names = [name for name in solver_costs.STATE if name.startswith(("euler", "dpm_")) or name == "uni_pc"]
    assert {dtype: sorted(rows) for dtype, rows in costs.items()} == dict.fromkeys(
        ("float32", "float64"), sorted(names)
    )
    for rows in costs.values():
        assert all(cost.step > 0 and cost.once > 0 and cost.copy > 0 for cost in rows.values())
    shown, other = solver_costs.tables(costs, {"noise": 2e-3})
    assert shown.row_count == len(names) + 1 and other.row_count == 1


def test_the_script_shows_and_writes_its_times(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(solver_costs, "bench", functools.partial(solver_costs.bench, calls=1, shape=TINY))
    monkeypatch.setattr(solver_costs, "beside", functools.partial(solver_costs.beside, TINY, 1))
    solver_costs.main(["euler", "--runs", "1", "--json", str(tmp_path / "costs.json")])
    assert "geometric mean" in capsys.readouterr().out
    assert json.loads((tmp_path / "costs.json").read_text())["steps"]["float32"].keys() == {"euler"}


def test_time_is_the_cpu_s():
    assert solver_costs._each(lambda: time.sleep(0.05), 2) < 0.025


def test_a_solver_that_is_not_there():
    with pytest.raises(BadInput, match="no solver"):
        solver_costs.bench(("eular",))


def test_a_pass_reads_and_writes_what_it_says():
    arrays = {name: np.full(3, 2.0**place) for place, name in enumerate("xdsrqyp")}
    state_passes(("xdsrq>yp",), arrays)()
    assert (arrays["y"] == 3).all() and (arrays["p"] == 31).all()
    state_passes(("xd>y", "yds>x"), arrays)()
    assert (arrays["y"] == 3).all() and (arrays["x"] == 9).all()


@pytest.mark.jitted
def test_what_is_no_solvers():
    assert min(solver_costs.beside((1, 4, 4, 4), 1).values()) > 0
