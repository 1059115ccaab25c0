"""Engines as the command line calls them: a name, a path, a device."""

import importlib
import inspect

import pytest
from typer.testing import CliRunner

from refsd import engines
from refsd.cli import app
from refsd.engines import registry
from refsd.engines.registry import Argument
from refsd.numerics.errors import BadInput


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("ggml", ("ggml", "ggml", "", "")),
        ("ggml@Vulkan0", ("ggml", "ggml", "", "Vulkan0")),
        ("ggml:/lib/libggml.so@Vulkan0", ("ggml", "ggml", "/lib/libggml.so", "Vulkan0")),
        ("ggml-flash:/lib@CUDA0", ("ggml-flash", "ggml", "/lib", "CUDA0")),
        ("ggml:/home/me@work/lib", ("ggml", "ggml", "/home/me@work/lib", "")),
        ("ggml:/home/me@work/lib@Metal", ("ggml", "ggml", "/home/me@work/lib", "Metal")),
        ("sdcpp:/bin/sd-cli@Vulkan0", ("sdcpp", "sdcpp", "/bin/sd-cli", "Vulkan0")),
        ("sdcpp-flash@CUDA0", ("sdcpp-flash", "sdcpp", "", "CUDA0")),
        ("torch@cuda:1", ("torch", "torch", "", "cuda:1")),
        ("torch-bf16@mps", ("torch-bf16", "torch", "", "mps")),
        ("torch:channels_last", ("torch", "torch", "channels_last", "")),
        ("exec:./program --to me@there", ("exec", "exec", "./program --to me@there", "")),
        ("gguf-py", ("gguf-py", "gguf-py", "", "")),
    ],
)
def test_a_name_a_path_and_a_device(argument, expected):
    assert Argument.of(argument) == expected


def test_a_path_that_exists_has_no_device(tmp_path):
    folder = tmp_path / "lib@Vulkan0"
    assert Argument.of(f"ggml:{folder}")[2:] == (f"{tmp_path}/lib", "Vulkan0")
    folder.mkdir()
    assert Argument.of(f"ggml:{folder}")[2:] == (str(folder), "")
    assert Argument.of(f"ggml:{folder}@CPU")[2:] == (str(folder), "CPU")


def test_devices_of_an_engine_that_has_none():
    with pytest.raises(BadInput, match=r"gguf-py@cuda: gguf-py has no devices to choose from; ggml, .*torch have"):
        registry.find("gguf-py@cuda")


@pytest.mark.parametrize("kind", registry.modules())
def test_every_engine_can_be_looked_for(kind):
    page = registry.load(kind)
    assert callable(page.find)
    assert ("device" in inspect.signature(page.find).parameters) == registry.has_devices(kind)
    assert not registry.has_devices(kind) or callable(page.devices)
    assert registry.example(kind) == "" or registry.example(kind).startswith(f"{kind}:")


def test_what_engines_share_is_no_engine():
    assert not {"registry", "worker", "by-onnx", "arrays", "reference"} & registry.modules().keys()
    assert registry.modules()["tinygrad-tensor"] == "refsd.engines.tinygrad_tensor"
    assert registry.modules()["ggml"] == "refsd.engines.ggml.engine"


ONE_FILE = """
from refsd.golden.engine import EngineSearch

def find(path=None, **_):
    return [EngineSearch("half-a", None, "it is half there")]
"""


def test_an_engine_is_one_file(tmp_path, monkeypatch):
    """A file, or a folder with an engine.py, dropped beside the others is listed and looked for."""
    (tmp_path / "half_a.py").write_text(ONE_FILE)
    (tmp_path / "half_b").mkdir()
    (tmp_path / "half_b" / "engine.py").write_text('EXAMPLE = "half-b:PATH"\n' + ONE_FILE)
    (tmp_path / "tables.py").write_text("FIND = 1\n")
    importlib.import_module("refsd.engines.inventory")  # before the folder is another
    monkeypatch.setattr(engines, "__path__", [str(tmp_path)])
    registry.modules.cache_clear()
    try:
        done = CliRunner().invoke(app, ["engines"])
        assert registry.default() == ("half-a",)
    finally:
        registry.modules.cache_clear()
    assert done.stdout.splitlines() == [
        "half-a  missing: it is half there",
        "half-b  missing: name it: half-b:PATH",
    ]
