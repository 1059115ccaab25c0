"""sd-server beside REFSD_SD_CLI draws a picture, as asked through A1111's API, and float64 judges it.

Full-size weights, and some ten pictures of the reference's own: minutes.
"""

import contextlib
import datetime
import functools
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import ModelRecipe
from refsd.golden.report import Result
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64
from refsd.weights.model_files import model_files

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SERVER = Path(os.environ.get("REFSD_SD_CLI", "sd-cli")).with_name("sd-server")
CASE = CASES["full/sd15/picture/euler"]


@functools.cache
def truth():
    return Reference(FLOAT64, model_files=model_files).run(CASE, CASE.realize())


@contextlib.contextmanager
def serving(folder: Path, *flags: str):
    """Start sd-server with the recipe's weights. -> its address, once it listens"""
    weights = folder / "refsd-sd15-f16.safetensors"
    weights.symlink_to(model_files(ModelRecipe("sd15", "f16"), "ldm"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [SERVER, "-m", weights, "--listen-port", str(port), *flags]
    with open(folder / "log.txt", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            until = time.monotonic() + 600
            while time.monotonic() < until and server.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def judged(address: str) -> Result:
    """Judge under what the build's own ggml is measured to do: on AVX512-FP16 it adds up in float16."""
    ggml = registry.find(f"ggml:{SERVER.parent}")[0].engine
    profile = "ggml-cpu-f16-sums" if ggml._library.f16_lanes else "ggml-cpu"
    (found,) = registry.find(f"a1111:{address}:{profile}")
    assert found.engine is not None, found.why_not
    runner = conform.Runner(judges(model_files), lambda case: truth(), today=datetime.date(2026, 11, 23))
    (result,) = conform.run(runner, [found.engine], [CASE])
    return result


def test_a_picture_conforms(tmp_path):
    with serving(tmp_path) as address:
        result = judged(address)
    assert (result.engine, result.status) == ("sd-server", verdict.PASS), result.reason


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--rng", "cpu"), "the noise of torch's CPU generator (rng cpu)"),
        (("--clip-skip", "2"), "CLIP's last layer skipped (clip_skip 2)"),
    ],
)
def test_a_wrong_setting_of_the_server_is_named(tmp_path, flags, cause, monkeypatch):
    monkeypatch.setattr("refsd.judges.picture._SEARCH", 3600.0)  # seconds: other tests may run beside it
    with serving(tmp_path, *flags) as address:
        result = judged(address)
    assert (result.status, result.causes) == (verdict.FAIL, (cause,)), result.reason
