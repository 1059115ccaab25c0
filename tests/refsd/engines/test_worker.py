import gc

import numpy as np
import pytest

from refsd.engines.worker import Worker
from refsd.golden.engine import EngineDied, EngineFailure
from refsd.numerics.tensor import stored

SCRIPT = """
import os, sys, threading, time
from refsd.engines.worker import serve

answered = 0

def answer(header, tensors):
    global answered
    answered += 1
    print("noise on stdout")
    os.write(1, b"noise below Python\\n")
    what = header["do"]
    if what == "abort":
        print("GGML_ASSERT(x > 0) failed", file=sys.stderr, flush=True)
        os.abort()
    if what == "throw":
        print("terminate called without an active exception", file=sys.stderr, flush=True)
        os.abort()
    if what == "exit":
        os._exit(7)
    if what == "sleep":
        time.sleep(60)
    if what == "raise":
        raise ValueError("no such thing")
    if what == "crash later":
        threading.Timer(0.1, os._exit, [7]).start()
    return {"answered": answered}, tensors

serve(answer)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("worker") / "worker.py"
    path.write_text(SCRIPT)
    return str(path)


def test_answers_and_survives_every_end(script):
    worker = Worker([script])
    x = {"x": stored(np.arange(4, dtype=np.float32))}
    assert worker.ask({"do": "echo"}, x)[0] == {"answered": 1}
    with pytest.raises(EngineFailure, match=r"^ValueError: no such thing$"):
        worker.ask({"do": "raise"}, x)
    answer, back = worker.ask({"do": "echo"}, x)
    assert answer == {"answered": 3}
    np.testing.assert_array_equal(back["x"].data, x["x"].data)

    with pytest.raises(EngineFailure, match=r"^ended by SIGABRT: GGML_ASSERT\(x > 0\) failed$"):
        worker.ask({"do": "abort"}, x)
    assert worker.ask({"do": "echo"}, x)[0] == {"answered": 1}
    # What an earlier process said is not this one's last word.
    with pytest.raises(EngineFailure, match=r"^ended with exit code 7: noise"):
        worker.ask({"do": "exit"}, x)
    process = worker._alive()
    del worker
    gc.collect()
    assert process.poll() is not None


def test_a_crash_after_an_answer_fails_the_next_request(script):
    worker = Worker([script])
    worker.ask({"do": "crash later"}, {})
    worker._process.wait()
    with pytest.raises(EngineFailure, match=r"^after its last answer it ended with exit code 7: noise"):
        worker.ask({"do": "echo"}, {})
    assert worker.ask({"do": "echo"}, {})[0] == {"answered": 1}


def test_a_crash_after_an_answer_is_not_told_by_the_words_of_an_earlier_process(script):
    worker = Worker([script])
    with pytest.raises(EngineFailure, match="terminate called"):
        worker.ask({"do": "throw"}, {})
    worker.ask({"do": "crash later"}, {})
    worker._process.wait()
    with pytest.raises(EngineDied, match=r"exit code 7: noise") as error:
        worker.ask({"do": "echo"}, {})
    assert error.value.log and "terminate" not in str(error.value.log)


def test_a_worker_that_hangs_is_ended(script):
    worker = Worker([script])
    worker.ask({"do": "echo"}, {})
    worker.timeout = 0.5
    with pytest.raises(EngineDied, match=r"^no answer after 0.5 s$") as error:
        worker.ask({"do": "sleep"}, {})
    assert "noise below Python" in error.value.log
    worker.timeout = 300
    assert worker.ask({"do": "echo"}, {})[0] == {"answered": 1}
