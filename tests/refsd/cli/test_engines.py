"""refsd engines: what is there, on which devices, and how to get the rest."""

import json

import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.engines import inventory as inventories
from refsd.engines import registry
from refsd.engines.ggml import engine as ggml
from refsd.engines.ggml.devices import Device
from refsd.golden.engine import EngineFailure, EngineSearch


class Engine:
    version, device = "1.2", "CPU (a processor)"

    def __init__(self, name):
        self.name = name


@pytest.fixture
def some(monkeypatch):
    """One engine that is there with two devices, one that is missing, one that needs a path."""
    three = {name: f"refsd.engines.{name}.engine" for name in ("exec", "ggml", "torch")}
    monkeypatch.setattr(registry, "modules", lambda: three)
    found = {
        "ggml": [EngineSearch("ggml", Engine("ggml"))],
        "torch": [EngineSearch("torch", None, "pip install it")],
    }
    monkeypatch.setattr(registry, "find", lambda kind, **_: found[kind])
    there = [Device("CPU", "a processor", "CPU"), Device("Vulkan0", "llvmpipe", "Vulkan")]
    monkeypatch.setattr(ggml, "devices", lambda: there)


def test_a_line_for_each(some):
    done = CliRunner().invoke(app, ["engines"])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "exec          missing: name it: exec:PROGRAM",
        "ggml          1.2, on CPU (a processor)",
        "ggml@Vulkan0  on Vulkan0 (llvmpipe)",
        "torch         missing: pip install it",
    ]


def test_json(some):
    lines = json.loads(CliRunner().invoke(app, ["engines", "--json"]).stdout)
    assert [line["argument"] for line in lines] == ["exec", "ggml", "ggml@Vulkan0", "torch"]
    assert lines[2] == {"argument": "ggml@Vulkan0", "version": "", "device": "Vulkan0 (llvmpipe)", "missing": ""}


def test_devices_that_cannot_be_listed(some, monkeypatch):
    def dies():
        raise EngineFailure("ended by SIGSEGV: it said nothing")

    monkeypatch.setattr(ggml, "devices", dies)
    entry = inventories.inventory()[2]
    assert entry.missing == "its devices cannot be listed: ended by SIGSEGV: it said nothing"


def test_doctor_reads_the_same_list(some):
    from refsd.commands import doctor

    facts = {fact.name: fact.found for fact in doctor.try_engines()}
    assert facts["ggml"] == "1.2, CPU (a processor)" and facts["torch"] == "not judged: pip install it"
