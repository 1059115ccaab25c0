"""The adapter of sd-server, with a small program in its place that answers over HTTP and writes a tap's files."""

import sys
from pathlib import Path

import numpy as np
import pytest
import sdcpp_server
from sdcpp_server import Server

from refsd.golden.engine import EngineFailure

PROGRAM = """#!{python}
import http.server, json, os, struct, sys
dir = os.environ["TAP_DIR"]
calls = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer([{{"name": "euler"}}, {{"name": "heun"}}])

    def do_POST(self):
        global calls
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["seed"] == 13:
            print("out of luck", flush=True)
            os._exit(3)
        with open(f"{{dir}}/g{{calls}}.bin", "wb") as file:
            file.write(struct.pack("<2f", asked["seed"], asked["steps"]))
        with open(f"{{dir}}/index.txt", "a") as index:
            index.write("graph\\tf32:2x1x1x1\\n")
            index.write(f"input\\tx\\tf32\\t2\\t1\\t1\\t1\\tg{{calls}}.bin\\tNONE\\t0\\t0\\n")
        calls += 1
        self.answer({{"images": []}})

    def log_message(self, *_):
        pass

if "nothing" in sys.argv[2]:
    print("no such model", flush=True)
    sys.exit(1)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[4])), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    # Nothing is preloaded: no C compiler is needed.
    monkeypatch.setattr(sdcpp_server, "tap", lambda folder, skip: {"TAP_DIR": str(folder)})
    path = tmp_path / "sd-server"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    return path


def test_each_picture_has_its_own_graphs(program, tmp_path):
    with Server(program, tmp_path / "model") as server:
        assert server.names("samplers") == ["euler", "heun"]
        for seed, steps in ((5, 4), (6, 2)):
            (graph,) = server.picture("a cat", 64, 64, 1.0, seed, sample_steps=steps)
            assert graph.signature == "f32:2x1x1x1"
            np.testing.assert_array_equal(graph.inputs[0], [seed, steps])
        folder = Path(server._folder.name)
        assert not list(folder.glob("g*.bin"))
    assert not folder.exists()


def test_its_last_words_are_told(program, tmp_path):
    with Server(program, tmp_path / "model") as server, pytest.raises(EngineFailure, match="out of luck"):
        server.picture("a cat", 64, 64, 1.0, 13)
    for path, model, said in (
        (program, "nothing", "ended with exit code 1: no such model"),
        (tmp_path / "nowhere", "model", "nowhere does not start: No such file"),
    ):
        with pytest.raises(EngineFailure, match=said), Server(path, tmp_path / model):
            pass
