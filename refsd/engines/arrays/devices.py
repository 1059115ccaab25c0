"""The devices of an array library, as its worker process lists them."""

from typing import NamedTuple

from refsd.engines.arrays.worker import ANY
from refsd.engines.worker import Worker
from refsd.golden.engine import EngineFailure


class Device(NamedTuple):
    """name: as the library calls it: "cpu", "cuda:1", "CUDA"; description: of the hardware"""

    name: str
    description: str

    @property
    def title(self) -> str:
        """The name in reports: "cuda:1 (NVIDIA H100)"."""
        return f"{self.name} ({self.description})" if self.description else self.name


def list_devices(module: str, *arguments: str) -> list[Device]:
    """List the devices that the library sees. module: of its worker. Raises EngineFailure if it does not start."""
    answer, _ = Worker(["-m", module, ANY, *arguments]).ask({"describe": True}, {})
    return [Device(*one) for one in answer["devices"]]


def starts(worker: Worker) -> str:
    """Start a worker -> why it does not; "" if it does."""
    try:
        worker.ask({"describe": True}, {})
    except EngineFailure as error:
        return str(error)
    return ""
