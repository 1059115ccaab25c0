"""sd-cli on a device: what it is told, and that a graph computed elsewhere is refused. No sd-cli is run."""

import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.ggml.devices import Device
from refsd.engines.sdcpp import engine as sdcpp
from refsd.engines.sdcpp import program as sdcpp_program
from refsd.engines.sdcpp.device import check, choice
from refsd.engines.sdcpp.tap import Graph, Ran, read
from refsd.golden.engine import EngineFailure
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import GGML_CPU, GGML_VULKAN, GGML_VULKAN_F32

# Of sd-cli --help: April 2026, and August 2026.
OLD_USAGE = "  --offload-to-cpu    place the weights in RAM\n"
NEW_USAGE = (
    OLD_USAGE + "  --backend <string>                       runtime backend assignment, e.g. cpu or clip=cpu\n"
)


@pytest.mark.parametrize(
    ("device", "usage", "expected"),
    [
        ("Vulkan0", NEW_USAGE, (["--backend", "Vulkan0"], {})),
        ("CPU", NEW_USAGE, (["--backend", "CPU"], {})),
        ("Vulkan1", OLD_USAGE, ([], {"SD_VK_DEVICE": "1"})),
        ("CUDA0", OLD_USAGE, ([], {})),
        ("CPU", OLD_USAGE, ([], {})),
    ],
)
def test_how_a_program_is_told(device, usage, expected):
    assert choice(device, usage) == expected


THERE = Ran("Vulkan0", "Vulkan0", "Vulkan0", 7, "")


def test_every_graph_must_have_been_computed_there():
    check([Graph("a", ran=THERE), Graph("b", ran=THERE)], "Vulkan0")
    check([Graph("a", ran=THERE), Graph("b")], "Vulkan0", skip=["b"])


@pytest.mark.parametrize(
    ("ran", "asked", "why"),
    [
        (THERE._replace(device="CPU"), "Vulkan0", "CPU computed a graph of 7 nodes: sd-cli did not take Vulkan0"),
        (THERE, "CPU", "Vulkan0 computed a graph of 7 nodes: name it sdcpp@Vulkan0"),
        (THERE._replace(memory="CPU"), "Vulkan0", "Vulkan0 computed a graph in memory of CPU, not of Vulkan0"),
        (THERE._replace(unsupported="ROLL"), "Vulkan0", "Vulkan0 does not support this ROLL"),
        (THERE._replace(nodes=0), "Vulkan0", "nothing tells where"),
        (None, "Vulkan0", "nothing tells where"),
    ],
)
def test_a_graph_elsewhere_is_refused(ran, asked, why):
    with pytest.raises(EngineFailure, match=why):
        check(
            [Graph("a", ran=THERE._replace(device=asked, memory=asked, own_memory=asked)), Graph("b", ran=ran)],
            asked,
        )


def test_the_tap_tells_where(tmp_path):
    lines = ["graph\ta", "where\tVulkan0\tVulkan0\tVulkan0\t7\tROLL", "graph\tb", "where\tCPU\tCPU\tCPU\t3\t"]
    (tmp_path / "index.txt").write_text("\n".join([*lines, "graph\tc"]) + "\n")
    a, b, c = read(tmp_path)
    assert a.ran == THERE._replace(unsupported="ROLL")
    assert b.ran == Ran("CPU", "CPU", "CPU", 3, "") and c.ran is None


# Answers --version and --help as sd-cli does; else it writes as the tap would, of a device that $FOUND names, and
# fails unless it was told to take Vulkan0.
SCRIPT = """#!/bin/sh
case "$1" in
--version) echo "stable-diffusion.cpp version 9, commit c"; exit 0;;
--help) cat "$(dirname "$0")/usage"; exit 1;;
esac
[ "$SD_VK_DEVICE" = 0 ] || [ "$2 $3" = "--backend Vulkan0" ] || { echo "told $*"; exit 3; }
printf 'graph\\ta\\nwhere\\t%s\\t%s\\t%s\\t7\\t\\n' "$FOUND" "$FOUND" "$FOUND" > "$TAP_DIR/index.txt"
"""


@pytest.fixture(params=[OLD_USAGE, NEW_USAGE])
def program(tmp_path, monkeypatch, request):
    # Nothing is preloaded: no C compiler is needed.
    monkeypatch.setattr(sdcpp_program, "tap", lambda folder, *_: {"TAP_DIR": str(folder)})
    (tmp_path / "usage").write_text(request.param)
    path = tmp_path / "sd-cli"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return sdcpp_program.Program(path, 30.0, "Vulkan0")


def test_a_program_that_falls_back_is_found_out(program, monkeypatch):
    monkeypatch.setenv("FOUND", "Vulkan0")
    assert program.run_tapped(["-p", "a"]).graphs[0].ran == THERE
    monkeypatch.setenv("FOUND", "CPU")
    with pytest.raises(EngineFailure, match="Vulkan0 was asked and CPU computed a graph of 7 nodes"):
        program.run_tapped(["-p", "a"])


class Library:
    """A ggml of one Vulkan card and one of another maker."""

    def __init__(self, folder, threads, timeout, device=""):
        backend = {"Vulkan0": "Vulkan", "CANN0": "CANN", "CPU": "CPU"}.get(device)
        if backend is None:
            raise BadInput(f"this libggml has no device {device}, only Vulkan0 (a card), CPU (a processor)")
        self.device = Device(device, "a card", backend)
        self.multiplies_in_f16, self.f16_lanes = True, 0


def test_the_engine_of_a_device(program, monkeypatch):
    monkeypatch.setattr(sdcpp_program, "GgmlLibrary", Library)
    plain, flash = (found.engine for found in registry.find(f"sdcpp:{program.path}@Vulkan0"))
    assert (plain.name, flash.name, plain.device) == ("sdcpp@Vulkan0", "sdcpp-flash@Vulkan0", "Vulkan0 (a card)")
    half, single = CASES["full/sd15/unet/quiet"], CASES["flux/dev/256-tokens"]
    assert plain.numerics(half) is GGML_VULKAN and flash.numerics(half).flash == "f16"
    assert plain.numerics(single).products == "f16" and set(plain.numerics(single).sums) == {"conv"}
    plain._program.ggml.multiplies_in_f16 = False
    assert plain.numerics(half) is GGML_VULKAN_F32
    (cpu, _) = (found.engine for found in registry.find(f"sdcpp:{program.path}"))
    assert (cpu.name, cpu.device) == ("sdcpp", "") and cpu.numerics(half) is GGML_CPU
    (flash,) = registry.find(f"sdcpp-flash:{program.path}@Vulkan0")
    assert flash.name == "sdcpp-flash@Vulkan0"


@pytest.mark.parametrize(
    ("device", "why"), [("CUDA3", "no device CUDA3, only Vulkan0"), ("CANN0", "how ggml's CANN rounds in a model")]
)
def test_a_device_that_is_not_there_or_not_declared(program, monkeypatch, device, why):
    monkeypatch.setattr(sdcpp_program, "GgmlLibrary", Library)
    (found,) = registry.find(f"sdcpp:{program.path}@{device}")
    assert found.engine is None and why in found.why_not


def test_ggml_lies_where_the_loader_finds_it(program, monkeypatch):
    linked = "\tlibggml-base.so.0 => /opt/ggml/lib/libggml-base.so.0 (0x00007f)\n"
    monkeypatch.setattr(program, "_log", lambda args, variables, timeout: (0, linked))
    assert program.shares_ggml and str(program.ggml_folder) == "/opt/ggml/lib"


def test_a_program_without_a_shared_ggml_lists_no_devices(program):
    assert sdcpp.devices(str(program.path)) == []
