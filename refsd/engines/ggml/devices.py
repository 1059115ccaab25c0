"""The devices of a libggml, and one of them started as a backend that every node of a graph must run on.

Nothing here schedules: a graph is computed by ggml_backend_graph_compute on one backend, in memory of that
backend's own buffer type, after it has said of every node that it supports it. So nothing runs elsewhere unnoticed.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from refsd.engines.ggml.library import Library
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable

CPU = "CPU"
# With Mesa 22.3.6's lavapipe (which ggml calls llvmpipe) the heap is corrupted where graphs alternate and their
# buffers are freed, and is not where buffers are kept. Whether lavapipe or ggml is at fault is not known. There
# buffers are kept until they have so many bytes together.
_KEEPS_BUFFERS = "llvmpipe"
_KEPT = 1 << 30
_SET_THREADS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


class Device(NamedTuple):
    """
    name:        as ggml calls it: "CPU", "Vulkan0", "CUDA0", "BLAS"
    description: of the hardware or its driver
    backend:     what drives it, as ggml calls it: "CPU", "Vulkan", "CUDA", "BLAS"
    """

    name: str
    description: str
    backend: str

    @property
    def title(self) -> str:
        """ "Vulkan0 (llvmpipe)": as reports call it."""
        return f"{self.name} ({self.description})"


class Ran(NamedTuple):
    """Where a graph was computed, as ggml tells it of the very objects that computed it.

    device: of the backend whose graph_compute was called
    buffer: buffer type of the memory that held the tensors
    nodes:  nodes of the graph; the backend supports each of them
    """

    device: str
    buffer: str
    nodes: int


class UnsupportedNode(Exception):
    """The device does not support a node of the graph."""


class Backend:
    """A started device.

    library: the libggml that has the device
    name:    the device's name; without one, the CPU
    threads: of a device that computes on the CPU's cores

    handle: ggml_backend_t
    buffer: buffer type of the device's own memory; an accelerator as BLAS uses the CPU's

    Raises BadInput, listing the devices that exist, if there is none of this name, or if it cannot be started.
    """

    def __init__(self, library: Library, name: str = "", threads: int = 2):
        self.library = library
        device = _find(library, name or CPU)
        self.device = _describe(library, device)
        self.handle = library.ggml_backend_dev_init(device, None)
        if not self.handle:
            raise BadInput(f"ggml could not start its device {self.device.name} ({self.device.description})")
        self._set_threads(device, threads)
        self._kept: list[int] = []
        self.buffer: str = library.ggml_backend_buft_name(library.ggml_backend_dev_buffer_type(device)).decode()

    def _set_threads(self, device: int, threads: int) -> None:
        registered = self.library.ggml_backend_dev_backend_reg(device)
        function = self.library.ggml_backend_reg_get_proc_address(registered, b"ggml_backend_set_n_threads")
        if function:
            _SET_THREADS(function)(self.handle, threads)

    def check(self, graph: int) -> None:
        """Raise UnsupportedNode if the device does not support a node of the graph."""
        ggml = self.library
        for n in range(ggml.ggml_graph_n_nodes(graph)):
            node = ggml.ggml_graph_node(graph, n)
            if not ggml.ggml_backend_supports_op(self.handle, node):
                raise UnsupportedNode(
                    f"{self.device.name} does not support this {ggml.ggml_op_desc(node).decode()}"
                )

    def release(self, buffer: int) -> None:
        """Free the memory of a graph."""
        ggml = self.library
        self._kept.append(buffer)
        most = _KEPT if _KEEPS_BUFFERS in self.device.description else 0
        if sum(map(ggml.ggml_backend_buffer_get_size, self._kept)) > most:
            for one in self._kept:
                ggml.ggml_backend_buffer_free(one)
            self._kept.clear()

    def ran(self, graph: int, buffer: int) -> Ran:
        """Ask ggml which device this backend is, and which memory the graph's tensors were in."""
        ggml = self.library
        device = ggml.ggml_backend_dev_name(ggml.ggml_backend_get_device(self.handle)).decode()
        memory = ggml.ggml_backend_buft_name(ggml.ggml_backend_buffer_get_type(buffer)).decode()
        return Ran(device, memory, ggml.ggml_graph_n_nodes(graph))


def devices(library: Library) -> list[Device]:
    """List the devices of a libggml, with those of the plug-ins beside it."""
    _load_plugins(library)
    return [_describe(library, device) for device in _registered(library)]


def listed(found: Sequence[Device]) -> str:
    """Write devices in a line: "Vulkan0 (llvmpipe), CPU (AMD EPYC)"."""
    return ", ".join(one.title for one in found) or "none"


def _find(library: Library, name: str) -> int:
    for load in (lambda _: None, _load_plugins):
        load(library)
        for device in _registered(library):
            if library.ggml_backend_dev_name(device).decode() == name:
                return device
    raise BadInput(no_such_device(name, devices(library)))


def no_such_device(name: str, found: Sequence[Device]) -> str:
    """Say in a line which devices exist instead."""
    hidden = "; ggml shows a software Vulkan driver, as lavapipe, only with GGML_VK_VISIBLE_DEVICES=0"
    hint = hidden if name.startswith("Vulkan") and not any(d.name.startswith("Vulkan") for d in found) else ""
    return f"this libggml has no device {name}, only {listed(found)}{hint}"


def _registered(library: Library) -> list[int]:
    if "ggml_backend_dev_count" not in library:
        raise BadInput("this libggml is older than October 2024: it has no registry of devices")
    return [library.ggml_backend_dev_get(n) for n in range(library.ggml_backend_dev_count())]


def _load_plugins(library: Library) -> None:
    library.ggml_backend_load_all_from_path(str(library.files[0].parent).encode())


def _describe(library: Library, device: int) -> Device:
    description = library.ggml_backend_dev_description(device).decode(errors="replace")
    backend = library.ggml_backend_reg_name(library.ggml_backend_dev_backend_reg(device)).decode()
    return Device(library.ggml_backend_dev_name(device).decode(), printable(description, 80), backend)
