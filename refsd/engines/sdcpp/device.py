"""Choose the device on which sd-cli computes, and prove from its graphs where they were computed."""

import re
from collections.abc import Iterable

from refsd.engines.ggml.devices import CPU
from refsd.engines.sdcpp.tap import Graph
from refsd.golden.engine import EngineFailure

# The option that programs have since May 2026. Older ones take the first GPU, unless a variable has the number of a
# Vulkan device.
_OPTION, _VARIABLE = "--backend", "SD_VK_DEVICE"


def choice(device: str, usage: str) -> tuple[list[str], dict[str, str]]:
    """Return the flags and the environment variables with which the program takes a device, as far as it can.

    device: as ggml calls it: "CPU", "Vulkan0"
    usage:  what sd-cli --help prints
    """
    if re.search(rf"^\s+{_OPTION} ", usage, re.MULTILINE):
        return [_OPTION, device], {}
    number = re.fullmatch(r"Vulkan(\d+)", device)
    return [], {_VARIABLE: number[1]} if number else {}


def check(graphs: Iterable[Graph], device: str, skip: Iterable[str] = ()) -> None:
    """Raise EngineFailure unless the device computed every graph, in its own memory, and supports each node.

    skip: signatures of graphs that were not computed
    """
    for graph in graphs:
        ran = graph.ran
        if graph.signature in skip:
            continue
        if ran is None or not ran.nodes:
            raise EngineFailure(f"{device} was asked, and nothing tells where a graph was computed")
        if ran.device != device:
            asked = f"name it sdcpp@{ran.device}" if device == CPU else f"sd-cli did not take {device}"
            raise EngineFailure(
                f"{device} was asked and {ran.device} computed a graph of {ran.nodes} nodes: {asked}"
            )
        if ran.memory != ran.own_memory:
            raise EngineFailure(f"{device} computed a graph in memory of {ran.memory}, not of {ran.own_memory}")
        if ran.unsupported:
            raise EngineFailure(f"{device} does not support this {ran.unsupported}, and was given it")
