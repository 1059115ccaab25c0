"""sd-server with the tap in: one loaded model, as many pictures as are asked for, every graph of each."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refsd.golden.engines import EngineFailure
from refsd.golden.engines.sdcpp_program import last_words
from refsd.golden.engines.sdcpp_tap import Graph, environment, parse


class Server:
    """An unmodified sd-server, running between `with` and its end.

    path:  the program; it links ggml as a shared library
    model: a checkpoint
    skip:  signatures of graphs that need not be computed, see sdcpp_tap.c
    """

    def __init__(self, path: Path, model: Path, skip: Iterable[str] = (), timeout: float = 600.0):
        self.path, self.model, self.skip, self.timeout = path, model, tuple(skip), timeout
        self._lines = 0

    def __enter__(self) -> "Server":
        self._folder = tempfile.TemporaryDirectory(prefix="refsd-server-")
        self._log = open(Path(self._folder.name) / "log.txt", "w+b")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        tapped = environment(Path(self._folder.name), skip=self.skip)
        command = [str(self.path), "-m", str(self.model), "--listen-port", str(self.port)]
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "OMP_WAIT_POLICY": "passive", **tapped},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self._close()
            raise EngineFailure(f"{self.path} cannot be started: {error.strerror}") from error
        try:
            self._wait()
        except EngineFailure:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._log.close()
        self._folder.cleanup()

    def _wait(self) -> None:
        until = time.monotonic() + self.timeout
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise EngineFailure(f"{self.path.name} ended with {self._process.returncode}: {self._said()}")
            try:
                self._ask("/sdapi/v1/samplers", None)
                return
            except urllib.error.URLError:
                time.sleep(0.2)
        raise EngineFailure(f"{self.path.name} did not listen within {self.timeout:.0f} s: {self._said()}")

    def _said(self) -> str:
        self._log.seek(0)
        return last_words(self._log.read().decode(errors="replace"))

    def _ask(self, place: str, body: dict[str, Any] | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{place}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:
            return answer.read()

    def names(self, what: str) -> list[str]:
        """What it offers: "samplers" or "schedulers"."""
        return [entry["name"] for entry in json.loads(self._ask(f"/sdapi/v1/{what}", None))]

    def picture(self, prompt: str, width: int, height: int, cfg_scale: float, seed: int, **sampling) -> list[Graph]:
        """Make a picture and give every graph that it took, in order.

        sampling: sample_method, scheduler, sample_steps, eta, custom_sigmas
        Raises EngineFailure with the program's last words.
        """
        extra = json.dumps({"sample_params": sampling})
        body = {
            "prompt": f"{prompt}<sd_cpp_extra_args>{extra}</sd_cpp_extra_args>",
            "width": width,
            "height": height,
            "cfg_scale": cfg_scale,
            "seed": seed,
            "steps": sampling.get("sample_steps", 20),
        }
        try:
            self._ask("/sdapi/v1/txt2img", body)
        except OSError as error:
            raise EngineFailure(f"{self.path.name}: {error}: {self._said()}") from error
        return self._graphs()

    def _graphs(self) -> list[Graph]:
        """Those since the last call; their files are removed."""
        folder = Path(self._folder.name)
        lines = (folder / "index.txt").read_text().splitlines()
        new, self._lines = lines[self._lines :], len(lines)
        graphs = parse(new, folder)
        for file in folder.glob("g*.bin"):
            file.unlink()
        return graphs
