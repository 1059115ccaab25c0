"""Start a program once for each request: it reads one JSON line on stdin and writes one output file."""

import json
import os
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from refsd.engines.relocation import environment
from refsd.engines.supervised import MAX_FILE, Supervised, died, ending, last_words, tail
from refsd.engines.work_folder import WorkFolder
from refsd.golden.engine import EngineFailure

PROTOCOL = 1
_MAX_OUTPUT = 256 << 20


def full_request(request: Mapping[str, Any], folder: WorkFolder, output: str) -> dict[str, Any]:
    """Complete a request with the protocol version and the output path. output: a file name in folder.work"""
    return {"protocol": PROTOCOL, **request, "output": str(folder.work / output)}


class Program:
    """A program that is started anew for each request, and its limits.

    command:    the program and its arguments, with absolute paths, so that any working folder will do
    timeout:    seconds allowed for one request
    max_output: bytes allowed in total in its folder and on stdout and stderr
    max_file:   bytes allowed in any one file, wherever the program writes it
    """

    def __init__(self, command: list[str], timeout: float, max_output: int = _MAX_OUTPUT, max_file: int = MAX_FILE):
        self.command = command
        self.timeout = timeout
        self.max_output = max_output
        self.max_file = max_file
        self._supervised = Supervised()
        self._turn = threading.Lock()

    def ask(self, request: Mapping[str, Any], folder: WorkFolder, output: str, most: int | None = None) -> bytes:
        """Run the program once in a fresh `folder` and return the bytes of its file `output`, `most` bytes at most.

        Raises EngineFailure with one line that ends with what the program printed as the reason.
        """
        request = full_request(request, folder, output)
        with self._turn, tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as log:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.seek(0)
            before = folder.size()

            def look() -> None:
                if folder.size() - before + os.fstat(log.fileno()).st_size > self.max_output:
                    raise EngineFailure(f"it wrote more than {self.max_output >> 20} MiB")

            self._supervised.start(self.command, folder.work, environment(), self.max_file, log, stdin)
            try:
                code = self._supervised.wait(self.timeout, look)
            finally:
                self._supervised.end()
            look()
            if code != 0:
                raise died(ending(code), tail(log))
            try:
                return folder.read(output, self.max_output if most is None else most)
            except EngineFailure as error:
                raise EngineFailure(f"it ended well, but {error} ({last_words(tail(log))})") from None
