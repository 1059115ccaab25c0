"""refsd bench: onnxruntime and OpenVINO compute a module's numbers in float32; ggml's process starts."""

import os

import numpy as np
import pytest

from refsd.bench import graphs, sd15
from refsd.bench.kernels import KernelRequest, Worker

# torch calls its tracer and this exporter deprecated; both are what openvino and onnxruntime are given.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
torch = pytest.importorskip("torch")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A convolution and a product in place of a whole decoder."""
    torch.manual_seed(1)
    part = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3, padding=1), torch.nn.SiLU(), torch.nn.Linear(32, 5)).eval()
    monkeypatch.setattr(graphs, "module", lambda what: part)

    def written(what, format, needs):
        graphs.write(what, format, tmp_path)
        return tmp_path / graphs.FILES[format]

    monkeypatch.setattr(graphs, "_written", written)
    return part


@pytest.mark.parametrize("contender", ["onnxruntime", "openvino"])
def test_a_graph_gives_the_modules_answer_in_float32(small, contender):
    pytest.importorskip(contender)
    rows, setup = getattr(graphs, f"{contender}_rows")("vae", 1)
    z = sd15.inputs("vae")["z"]
    with torch.no_grad():
        want = small(torch.from_numpy(z)).numpy()
    got = rows[sd15.ROWS["vae"]]()[0]
    assert np.linalg.norm(got - want) < 2e-6 * np.linalg.norm(want)
    assert setup["threads"] == 1 and setup["version"]


@pytest.mark.parametrize("variable", ["REFSD_GGML", "REFSD_GGML_NEWEST"])
def test_ggml_is_a_contender_of_the_kernels(variable):
    worker = Worker("ggml", KernelRequest(places={"ggml": os.environ[variable]}, threads=1))
    worker.close()
    assert not worker.absent
    assert "sha256" in worker.setup["version"]
