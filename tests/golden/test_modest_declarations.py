"""An engine that computes more precisely than it declares is told so; an honest one is not."""

import msgspec
import pytest

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden.conform import Runner, run
from refsd.golden.modest_declarations import modest_declarations
from refsd.numerics.profiles import FLOAT32, FLOAT64, PROFILES, TORCH_F16_SUMS

_CASES = [case for name, case in CASES.items() if name.startswith(("linear/f32/", "silu/", "layer_norm/"))]


class _Engine(Reference):
    """Computes in float32, whatever it declares."""

    name = "go"
    declared = TORCH_F16_SUMS

    def numerics(self, case):
        return self.declared


def judged(declared):
    engine, reference = _Engine(FLOAT32), Reference(FLOAT64)
    engine.name, engine.declared = "go", declared
    return run(Runner(reference.judges, lambda case: reference.run(case, case.realize())), [engine], _CASES)


def test_a_declaration_that_is_far_too_coarse_is_told():
    results = judged(TORCH_F16_SUMS)
    assert all(r.conforms for r in results)
    (line,) = modest_declarations(results, {"go": "exec:./my engine"})
    assert "times nearer to the truth than declared" in line and "`refsd profile 'exec:./my engine'`" in line
    assert line.startswith(f"go: {len(results)} answers of torch-f16-sums are ")
    # One answer that is as far off as declared: another part of the engine may be as coarse.
    m = results[0].outputs[0]
    m = msgspec.structs.replace(m, relative_l2=m.honest_relative_l2)
    results[0] = msgspec.structs.replace(results[0], outputs=[m])
    assert modest_declarations(results, {"go": "go"}) == []


@pytest.mark.parametrize("declared", [FLOAT32, PROFILES["torch-f32"], PROFILES["ggml-cpu"]])
def test_an_honest_declaration_is_not(declared):
    assert modest_declarations(judged(declared), {"go": "go"}) == []
