"""refsd sigmas --compare: judge one's own noise levels, as the cases of stage/sigmas are judged."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer

from refsd.engines.dump.engine import read_dump
from refsd.golden.input_file import read_input
from refsd.judges import judges
from refsd.judges.comparison import with_case
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.reports.comparison_lines import comparison_lines, headline
from refsd.stages.stage import case
from refsd.weights.model_files import model_files

_LARGEST = 1 << 20
# Of the levels that cases have, those with a rule of their own come first: what is wrong is then named by it.
_LEVELS = "sd", "flux", "flux2", "qwen-image", "flow", "flow-10000"
_NEAR = 1e-12


def compare_levels(own: Path, right: np.ndarray, params: Mapping[str, Any]) -> None:
    """Judge levels and print the verdict; exit with code 1 if they are wrong.

    right:  the levels that `refsd sigmas` prints
    params: of a case of stage/sigmas, but for its levels: those are taken that give what is printed

    Raises BadInput for a file without sigmas, and if no case has these levels.
    """
    found = _read(own)
    for levels in _LEVELS:
        one = case("sigmas", f"{params['schedule']}-n{params['steps']}", levels=levels, **params)
        try:
            truth = judges(model_files).of(one).answer(one, {}, Arithmetic(FLOAT64))
        except (BadInput, AttributeError, TypeError):  # a schedule of other levels
            continue
        sigmas = truth["sigmas"]
        if sigmas.shape == right.shape and np.allclose(sigmas, right, rtol=_NEAR, atol=_NEAR):
            compared = with_case(one, found, {"sigmas": sigmas}, FLOAT32, model_files)
            typer.echo(headline(compared, f"{own} against {len(right) - 1} steps of {params['schedule']}"))
            for line in comparison_lines(compared):
                typer.echo(line)
            if not compared.examined.verdict.passed:
                raise typer.Exit(1)
            return
    raise BadInput(f"--compare: no case has such levels of {params['engine']}; leave it out to see them")


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix != ".json":
        found = read_dump(path)
        if len(found) != 1 and "sigmas" not in found:
            raise BadInput(f"{path}: expected a tensor `sigmas`, found {', '.join([*found][:3])}, ...")
        return {"sigmas": found["sigmas"] if "sigmas" in found else next(iter(found.values()))}
    try:
        listed = json.loads(read_input(path, _LARGEST, "a list of sigmas"))
        sigmas = np.asarray(listed["sigmas"] if isinstance(listed, dict) else listed, np.float64)
    except (ValueError, KeyError, TypeError):
        sigmas = np.zeros(0)
    if sigmas.ndim != 1 or not sigmas.size:
        raise BadInput(f"{path}: expected a JSON list of sigmas, the first the largest, as [14.6, 7, 3, 0]")
    return {"sigmas": sigmas}
