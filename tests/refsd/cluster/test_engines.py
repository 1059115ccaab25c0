"""Which workers an engine is asked on."""

import pytest

from refsd import __version__
from refsd.cluster.engines import RemoteEngine, There, find, resources
from refsd.golden.report import Missing
from refsd.numerics.errors import BadInput


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("torch-bf16", "torch", ["torch-bf16", "torch"]),
        ("torch@cuda:1", "torch@cuda:1", ["torch@cuda:1", "cuda", "torch"]),
        ("ggml", "ggml@Vulkan0", ["ggml", "vulkan"]),
        ("refsd-float32", "refsd:float32", ["refsd-float32", "refsd"]),
    ],
)
def test_resources_that_mean_an_engine(name, argument, expected):
    assert resources(name, argument) == expected


def _engine(version="1"):
    return RemoteEngine("torch", "torch", version, "cpu", {}, set())


class _Spread:
    """A cluster: worker -> (the resources that it declares, the engine that it has or why not)."""

    def __init__(self, **workers):
        self.client, self._workers = self, workers

    def scheduler_info(self, n_workers):
        return {"workers": {name: {"resources": dict.fromkeys(of, 1)} for name, (of, _) in self._workers.items()}}

    def on_every_worker(self, function, *arguments):
        return {name: self._there(engine) for name, (_, engine) in self._workers.items()}

    def _there(self, engine):
        if isinstance(engine, str):
            return There(__version__, {"torch": []}, {"torch": [Missing("torch", engine)]})
        return There(__version__, {"torch": [engine]}, {"torch": []})


def test_an_engine_that_all_workers_have_needs_nothing():
    groups, missing = find(_Spread(a=((), _engine()), b=((), _engine())), ["torch"], "*", [])
    assert groups["torch"][0].needs == {} and missing == []


def test_an_engine_goes_to_the_workers_that_declare_it():
    groups, missing = find(_Spread(a=(("torch",), _engine()), b=((), "not installed")), ["torch"], "*", [])
    assert groups["torch"][0].needs == {"torch": 1.0} and missing == []


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ({"a": ((), _engine()), "b": ((), "not installed")}, "lacking on b.*--resources torch=1"),
        ({"a": (("torch",), _engine()), "b": (("torch",), "not installed")}, "'torch' is declared by b"),
        ({"a": ((), "not installed")}, "cannot be judged: not installed"),
        ({"a": ((), _engine("1")), "b": ((), _engine("2"))}, "the workers have versions 1, 2"),
    ],
)
def test_an_engine_that_is_not_on_all_its_workers_is_refused(workers, says):
    with pytest.raises(BadInput, match=says):
        find(_Spread(**workers), ["torch"], "*", [])


def test_a_worker_with_another_refsd_is_refused(monkeypatch):
    spread = _Spread(a=((), _engine()))
    monkeypatch.setattr("refsd.cluster.engines.__version__", "another")
    with pytest.raises(BadInput, match="install the same"):
        find(spread, ["torch"], "*", [])
