"""sd-server beside REFSD_SD_CLI, looked into: its samplers, schedules and noise, step by step.

Full-size weights, as for test_sdcpp.py. The whole matrix is benchmarks/sdcpp_samplers_study.py's.
"""

import os
from pathlib import Path

import pytest
from sdcpp_server import Server
from sdcpp_trajectories import SamplerRun, compare, float32_levels, seen

from refsd.golden.case import ModelRecipe
from refsd.golden.engine import EngineFailure
from refsd.pipelines import sampling
from refsd.samplers.schedules import SCHEDULES
from refsd.weights.model_files import model_files

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SERVER = Path(os.environ.get("REFSD_SD_CLI", "sd-cli")).with_name("sd-server")


@pytest.fixture(scope="module")
def server():
    model = model_files(ModelRecipe("sd15", "f16"), "ldm")
    with Server(SERVER, model, ["f32:8x8x4x1"]) as running:
        yield running


def test_refsd_has_every_name(server):
    samplers = [name for name in server.names("samplers") if name != "default"]
    schedules = [name for name in server.names("schedulers") if name != "default"]
    assert len(samplers) >= 15 and set(samplers) <= set(sampling.names())
    assert len(schedules) >= 11 and set(schedules) <= set(SCHEDULES)


def test_every_sampler_and_every_schedule(server):
    samplers = [name for name in server.names("samplers") if name != "default"]
    schedules = [name for name in server.names("schedulers") if name != "default"]
    asked = [SamplerRun(name, "karras", 5, cfg_scale=7.0) for name in samplers]
    asked += [SamplerRun("dpm++2m", name, 4) for name in schedules]
    for one in asked:
        graphs = server.picture("a cat", one.width, one.height, one.cfg_scale, one.seed, **one.sampling())
        apart = compare(one, seen(graphs, one.cfg_scale), float32_levels())
        assert apart.steps.max() < 5e-6, one
        assert apart.t < 2e-3, one


def test_a_server_that_ends_is_said(tmp_path):
    with pytest.raises(EngineFailure, match="sd-server ended with"), Server(SERVER, tmp_path / "nothing.gguf"):
        pass
