"""Taps are asked for by a glob and answered by name."""

import datetime
import sys
from pathlib import Path

from refsd.cases import CASES
from refsd.engines.exec.engine import find
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.engine import TappedEngine
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64
from refsd.weights import recipes

EXAMPLE = Path(__file__).parents[3] / "examples" / "exec" / "engine.py"
WANTED = "body.0.rdb2.*"


def test_only_the_taps_of_a_glob_are_judged(tmp_path):
    """The program writes those alone that it is asked for; refsd judges no others, whatever an engine shows."""

    def model_files(model, layout):
        path = tmp_path / f"{layout}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    case = CASES["esrgan/esrgan/odd"]
    truth = Reference(FLOAT64, model_files=model_files).run(case, case.realize())
    judged = []
    asked = conform.Runner(
        judges(model_files),
        lambda case: truth,
        today=datetime.date(2026, 11, 20),
        measured=lambda answered: judged.append([m.output for m in answered.examined.trace.taps]),
        taps=WANTED,
    )
    for of_program in (WANTED, "*"):
        (found,) = find(f"{sys.executable} {EXAMPLE}", model_files=model_files, taps=of_program)
        assert isinstance(found.engine, TappedEngine)
        _, taps = found.engine.run_tapped(case, case.realize())
        assert taps and all(name.startswith("body.0.rdb2.") for name in taps) == (of_program == WANTED)
        (result,) = conform.run(asked, [found.engine], [case])
        assert result.status == verdict.PASS
    assert judged == [[f"body.0.rdb2.conv{i}" for i in range(1, 6)] + ["out"]] * 2
