"""JAX and MLX as engines: an operation of each page passes, a wrong one does not."""

import importlib

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.jax import LIBRARY as JAX
from refsd.engines.mlx import LIBRARY as MLX
from refsd.engines.reference import Reference
from refsd.golden import conform, operations
from refsd.judges import judges

pytestmark = pytest.mark.peer

# A case of each page of ops/, and those in which the libraries' ways are told apart.
SOME = (
    *("conv2d/f32/uneven-n1-c7-k20-h14-w17", "layer_norm/f32/awkward-x33x77", "gelu/f32/bend-x33x77"),
    *("attention/f32/grouped-b2-l20-j33-h6-d32-g2", "rope/f32/flux-n2-l20-h3-d128", "pad/f32/reflect-n2-c5-h6-w8"),
    "linear/f32/awkward-x2x33x77-o20",
)


@pytest.fixture(scope="module")
def runner(waivers):
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), waivers)


@pytest.mark.parametrize("name", ["jax", "mlx"])
def test_a_case_of_each_page(name, runner):
    (found,) = [one for one in registry.find(name) if one.name == name]
    results = conform.run(runner, [found.engine], [CASES[case] for case in SOME])
    assert [r.case for r in results] == [*SOME]
    assert [(r.case, r.status, r.reason) for r in results if not r.conforms or r.status == "refused"] == []


@pytest.mark.parametrize("name", ["jax", "mlx"])
def test_devices_are_listed(name):
    assert registry.load(name).devices()[0].name == "cpu"


class Wrong:
    """An engine that answers by one function of a library, in this process."""

    name, version = "wrong", "1"

    def __init__(self, engine, package, function):
        self.refuses, self.numerics, self.deviations = engine.refuses, engine.numerics, engine.deviations
        self._package, self._function = package, function

    def run(self, case, inputs):
        library = importlib.import_module(self._package)
        importlib.import_module(f"{self._package}.nn")
        array = library.numpy.asarray if self._package == "jax" else library.core.array
        tensors = {name: array(tensor.values()) for name, tensor in inputs.items()}
        params = operations.complete(case.op, inputs, case.params)
        return {"y": np.array(self._function(library, tensors, dict(params)))}


WRONG = {
    "jax's gelu where it is not told": (JAX, "gelu", lambda jax, x, params: jax.nn.gelu(x["x"])),
    "jax's resize where it is not told": (
        *(JAX, "resize_bilinear"),
        lambda jax, x, params: jax.image.resize(
            x["x"], (*x["x"].shape[:2], params["height"], params["width"]), "linear"
        ),
    ),
    "mlx's approximate gelu": (MLX, "gelu", lambda mlx, x, params: mlx.nn.gelu_approx(x["x"])),
    "mlx's rope in the other pairing": (
        *(MLX, "rope"),
        lambda mlx, x, params: MLX.functions["rope"](mlx, x, params | {"halves": not params["halves"]}),
    ),
    "mlx's GroupNorm without pytorch_compatible": (
        *(MLX, "group_norm"),
        lambda mlx, x, params: _own_groups(mlx, x, params),
    ),
}


def _own_groups(mlx, x, params):
    norm = mlx.nn.GroupNorm(params["num_groups"], x["x"].shape[1], params["eps"])
    norm.weight, norm.bias = x["weight"], x["bias"]
    return norm(x["x"].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("what", WRONG)
def test_a_known_misuse_is_seen(what, runner):
    library, op, function = WRONG[what]
    (found,) = [one for one in registry.find(library.name) if one.name == library.name]
    cases = [case for case in CASES.values() if case.op == op and found.engine.refuses(case) is None][:4]
    results = conform.run(runner._replace(explains=False), [Wrong(found.engine, library.name, function)], cases)
    assert "fail" in {r.status for r in results}
