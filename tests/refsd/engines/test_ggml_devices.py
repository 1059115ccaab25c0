"""Devices of ggml that misbehave: each is named, the run is complete, and the others are judged."""

import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from refsd.engines.ggml import devices
from refsd.engines.ggml import engine as ggml
from refsd.engines.ggml.declared import DECLARED, undeclared
from refsd.engines.ggml.devices import Backend, Device, UnsupportedNode
from refsd.engines.reference import Reference
from refsd.engines.worker import Worker
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored

# device -> what its process does when it is asked to compute
PROCESSES = {"crashes": "import os; os.abort()", "hangs": "import time; time.sleep(60)"}
# device -> what is wrong with where it computed
ELSEWHERE = {"falls back": {"device": "CPU"}, "borrows": {"buffer": "CPU"}, "idles": {"nodes": 0}}


class StubWorker:
    """Answers as ggml's worker does, for a device that is named after what it does wrong."""

    def __init__(self, arguments, timeout):
        self.device = arguments[-1]
        code = PROCESSES.get(self.device)
        self.process = None if code is None else Worker(["-c", code], 2.0)

    def ask(self, header, inputs):
        name = self.device
        if "describe" in header:
            if name == "missing":
                return {"unfit": "this libggml has no device missing, only fine (stub card)"}, {}
            ops = {"ggml": ["silu", "relu"], "ggml-flash": [], "ggml-direct": []}
            where = {"device": [name, "stub card", "Vulkan"], "buffer": name}
            return {"version": "0", "ops": ops, "lacks": [], "requests": [], **where}, {}
        if "supports" in header:
            return {"lacks": f"{name} does not support this RELU" if header["supports"] == "relu" else ""}, {}
        if self.process is not None:
            return self.process.ask(header, inputs)
        x = inputs["x"].data.astype(np.float64)
        ran = {"device": name, "buffer": name, "nodes": 1, **ELSEWHERE.get(name, {})}
        return {"ran": ran}, {"y": stored((x / (1 + np.exp(-x))).astype(np.float32))}


SILU = Case("silu", "silu", {"x": Recipe((2, 3))})
RELU = Case("relu", "relu", {"x": Recipe((2, 3))})


@pytest.fixture
def stub(monkeypatch):
    """Make the engine "ggml" of a stub device."""
    monkeypatch.setattr(ggml, "Worker", StubWorker)
    return lambda device: ggml.GgmlEngine("ggml", ggml.GgmlLibrary(Path("nowhere"), 1, 30.0, device))


def test_each_is_named_and_the_others_are_judged(stub):
    names = ("fine", "falls back", "borrows", "idles", "crashes", "hangs")
    runner = conform.Runner(
        judges(), lambda case: Reference(FLOAT64).run(case, case.realize()), today=datetime.date(2026, 11, 20)
    )
    engines = [stub(name) for name in names]
    assert [engine.name for engine in engines] == [f"ggml@{name}" for name in names]
    results = conform.run(runner, engines, [SILU, RELU])
    assert len(results) == 2 * len(names)
    told = {result.engine: (result.status, result.reason) for result in results if result.case == "silu"}
    assert told["ggml@fine"] == (verdict.PASS, "")
    expected = {
        "falls back": "falls back was asked and CPU computed 1 nodes",
        "borrows": "in memory of CPU: expected borrows with memory of borrows",
        "idles": "idles computed 0 nodes",
        "crashes": "ended by SIGABRT",
        "hangs": "no answer after 2 s",
    }
    for name, words in expected.items():
        status, reason = told[f"ggml@{name}"]
        assert status == verdict.ERROR and words in reason, reason
    refused = [result for result in results if result.case == "relu"]
    assert {result.status for result in refused} == {verdict.REFUSED}
    assert refused[0].reason == "fine does not support this RELU"


def test_a_device_that_is_not_there(stub):
    with pytest.raises(BadInput, match="no device missing, only fine"):
        stub("missing")


def test_undeclared_backends_are_refused(stub):
    engine = stub("fine")
    engine._library.device = Device("CANN0", "Ascend", "CANN")
    assert engine.refuses(SILU).startswith("how ggml's CANN rounds is not declared: CPU, BLAS, Vulkan, ")


@pytest.mark.parametrize(
    ("backend", "weight", "rows", "products", "in_float16"),
    [
        ("Vulkan", "f32", 77, "f16", False),
        ("Vulkan", "f16", 77, "f16", True),
        ("Vulkan", "q8_0", 77, "f16", True),
        ("Vulkan", "bf16", 77, "bf16", False),
        ("Vulkan", "f16", 8, None, False),
        ("BLAS", "q8_0", 77, None, False),
        ("CUDA", "f32", 77, "tf32", False),
        ("CUDA", "f16", 77, "f16", True),
        ("MTL", "q8_0", 77, "f16", False),
        ("MTL", "bf16", 77, "bf16", False),
    ],
)
def test_what_a_backend_declares_for_a_matrix(backend, weight, rows, products, in_float16):
    library = SimpleNamespace(multiplies_in_f16=True)
    case = Case("linear", "linear", {"x": Recipe((rows, 32)), "weight": Recipe((4, 32), weight)})
    numerics = DECLARED[backend](library, "ggml", case)
    assert numerics.products == products and ("linear" in numerics.sums) == in_float16
    library.multiplies_in_f16 = False
    if backend == "Vulkan":
        assert DECLARED[backend](library, "ggml", case).products is None


def test_what_cuda_does_to_activations_of_blocks_is_not_declared():
    case = Case("linear", "linear", {"x": Recipe((9, 32)), "weight": Recipe((4, 32), "q8_0")})
    assert "q8_0 weights is not declared" in undeclared("CUDA", case)
    assert undeclared("MTL", case) is None


class Fake:
    """A libggml of two devices, whose functions take and return names in place of pointers."""

    def __init__(self):
        self.files = [Path("/lib/libggml.so")]
        self.loaded = []
        self.devices = ["CPU"]
        self.card = b"a card"
        self.freed = []

    def __contains__(self, name):
        return hasattr(self, name)

    def ggml_backend_load_all_from_path(self, folder):
        self.loaded.append(folder)
        self.devices = ["Vulkan0", "CPU"]

    def ggml_backend_dev_count(self):
        return len(self.devices)

    def ggml_backend_dev_get(self, n):
        return self.devices[n]

    def ggml_backend_dev_name(self, device):
        return device.encode()

    def ggml_backend_dev_description(self, device):
        return self.card

    def ggml_backend_dev_backend_reg(self, device):
        return device.rstrip("0")

    def ggml_backend_reg_name(self, backend):
        return backend.encode()

    def ggml_backend_reg_get_proc_address(self, backend, name):
        return None

    def ggml_backend_dev_init(self, device, params):
        return f"{device} started"

    def ggml_backend_dev_buffer_type(self, device):
        return f"memory of {device}"

    def ggml_backend_buft_name(self, buffers):
        return buffers.encode()

    def ggml_backend_get_device(self, handle):
        return handle.removesuffix(" started")

    def ggml_backend_buffer_get_type(self, buffer):
        return buffer

    def ggml_backend_buffer_get_size(self, buffer):
        return 400 << 20

    def ggml_backend_buffer_free(self, buffer):
        self.freed.append(buffer)

    def ggml_graph_n_nodes(self, graph):
        return len(graph)

    def ggml_graph_node(self, graph, n):
        return graph[n]

    def ggml_op_desc(self, node):
        return node.encode()

    def ggml_backend_supports_op(self, handle, node):
        return node != "FLASH_ATTN_EXT"


def test_a_backend_is_the_device_that_was_named():
    library = Fake()
    backend = Backend(library, "Vulkan0")
    assert library.loaded == [b"/lib"]
    assert backend.device == Device("Vulkan0", "a card", "Vulkan")
    assert backend.handle == "Vulkan0 started" and backend.buffer == "memory of Vulkan0"
    assert backend.ran(["ADD", "MUL"], "memory of Vulkan0") == ("Vulkan0", "memory of Vulkan0", 2)
    backend.check(["ADD", "MUL"])
    with pytest.raises(UnsupportedNode, match=r"^Vulkan0 does not support this FLASH_ATTN_EXT$"):
        backend.check(["ADD", "FLASH_ATTN_EXT"])


def test_buffers_are_freed_at_once_but_on_lavapipe():
    library = Fake()
    Backend(library, "Vulkan0").release(1)
    assert library.freed == [1]
    library.card = b"llvmpipe (LLVM 15.0.6, 256 bits)"
    backend = Backend(library, "Vulkan0")
    backend.release(2)
    backend.release(3)
    assert library.freed == [1]
    backend.release(4)
    assert library.freed == [1, 2, 3, 4]


def test_plug_ins_are_loaded_only_where_the_device_is_not_there():
    library = Fake()
    assert Backend(library).device.name == "CPU" and library.loaded == []


def test_an_unknown_device_lists_those_that_exist():
    with pytest.raises(
        BadInput, match=r"^this libggml has no device CUDA0, only Vulkan0 \(a card\), CPU \(a card\)$"
    ):
        Backend(Fake(), "CUDA0")
    hint = devices.no_such_device("Vulkan0", [Device("CPU", "a card", "CPU")])
    assert "only CPU (a card)" in hint and "GGML_VK_VISIBLE_DEVICES=0" in hint


def test_old_libraries_have_no_registry():
    with pytest.raises(BadInput, match="older than October 2024"):
        Backend(type("Old", (), {"__contains__": lambda self, name: False})())
