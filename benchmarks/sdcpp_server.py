"""Run sd-server with the tap: load a model once, draw many pictures, and read every graph of each."""

import http.client
import json
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refsd.engines.relocation import environment
from refsd.engines.sdcpp.program import last_words
from refsd.engines.sdcpp.tap import Graph, parse
from refsd.engines.sdcpp.tap import environment as tap
from refsd.engines.supervised import MAX_FILE, Supervised, ending
from refsd.golden.engine import EngineFailure

# Exceptions in the client if the server has ended or sends no valid HTTP.
_SILENCE = (OSError, http.client.HTTPException)


class Server:
    """An unmodified sd-server, which runs for the length of a `with` block.

    path:  the program; it must link ggml as a shared library
    model: a checkpoint
    skip:  signatures of graphs that need not be computed, see tap.c
    """

    def __init__(self, path: Path, model: Path, skip: Iterable[str] = (), timeout: float = 600.0):
        self.path, self.model, self.skip, self.timeout = path.absolute(), model.absolute(), tuple(skip), timeout
        self._lines = 0
        self._supervised = Supervised()

    def __enter__(self) -> "Server":
        self._folder = tempfile.TemporaryDirectory(prefix="refsd-server-")
        self._log = open(Path(self._folder.name) / "log.txt", "w+b")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        tapped = tap(Path(self._folder.name), skip=self.skip)
        command = [str(self.path), "-m", str(self.model), "--listen-port", str(self.port)]
        variables = {**environment(), "OMP_WAIT_POLICY": "passive", **tapped}
        try:
            self._supervised.start(command, Path(self._folder.name), variables, MAX_FILE, self._log)
            self._wait()
        except EngineFailure:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._supervised.end()
        self._log.close()
        self._folder.cleanup()

    def _wait(self) -> None:
        until = time.monotonic() + self.timeout
        while time.monotonic() < until:
            code = self._supervised.poll()
            if code is not None:
                raise EngineFailure(f"{self.path.name} {ending(code)}: {self._last_log_words()}")
            try:
                self._ask("/sdapi/v1/samplers", None)
                return
            except _SILENCE:
                time.sleep(0.2)
        raise EngineFailure(
            f"{self.path.name} did not listen within {self.timeout:.0f} s: {self._last_log_words()}"
        )

    def _last_log_words(self) -> str:
        self._log.seek(0)
        return last_words(self._log.read().decode(errors="replace"))

    def _ask(self, place: str, body: dict[str, Any] | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{place}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:
            return answer.read()

    def names(self, what: str) -> list[str]:
        """List the names of the server's "samplers" or "schedulers", as `what` asks."""
        return [entry["name"] for entry in json.loads(self._ask(f"/sdapi/v1/{what}", None))]

    def picture(self, prompt: str, width: int, height: int, cfg_scale: float, seed: int, **sampling) -> list[Graph]:
        """Draw a picture and return every graph that the server computed for it, in order.

        sampling: sample_method, scheduler, sample_steps, eta, custom_sigmas
        Raises EngineFailure with the last lines of the server's log.
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
        except _SILENCE as error:
            raise EngineFailure(f"{self.path.name}: {error}: {self._last_log_words()}") from error
        return self._graphs()

    def _graphs(self) -> list[Graph]:
        """Read the graphs recorded since the last call, and delete their files."""
        folder = Path(self._folder.name)
        lines = (folder / "index.txt").read_text().splitlines()
        new, self._lines = lines[self._lines :], len(lines)
        graphs = parse(new, folder)
        for file in folder.glob("g*.bin"):
            file.unlink()
        return graphs
