"""Name the device on which an engine computes."""

from refsd.golden.engine import Engine
from refsd.numerics.processor import processor


def device_of(engine: Engine) -> str:
    """Return what the engine says that it computes on; the processor if it says nothing."""
    return getattr(engine, "device", "") or processor()
