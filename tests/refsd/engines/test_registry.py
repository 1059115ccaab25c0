"""Engines as the command line calls them: a name, a path, a device."""

import pytest

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


def test_every_engine_with_devices_lists_them():
    for kind in registry.WITH_DEVICES:
        assert callable(registry.load(kind).devices)


@pytest.mark.parametrize("kind", registry.FOLDERS)
def test_every_engine_can_be_looked_for(kind):
    page = registry.load(kind)
    assert callable(page.find)
    assert callable(getattr(page, "devices", None)) == (kind in registry.WITH_DEVICES)
