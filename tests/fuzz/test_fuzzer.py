"""The fuzzer can fail: each thing that it looks for is found where it is put."""

import os
import signal
from pathlib import Path
from random import Random

import numpy as np
import pytest
from attacks import attack
from files import KINDS, mutated
from isolation import CANARY, try_all
from judgement import Outcome, ending_fault, judge
from kind import Kind, Mutation
from mutations import bytes_changed, json_changed
from readings import tensors_read
from torch_by_pickle import read_legacy
from torch_files import COUNTED, legacy, state, tensor

from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput


def kind(read, second=None) -> Kind:
    return Kind("test", lambda folder: {}, lambda rng, files: Mutation({}, ""), read, second)


def raises(error):
    def read(folder):
        raise error

    return read


def unprintable(text):
    """An error that has got round its own constructor, which escapes."""
    error = BadInput("")
    error.args = (text,)
    return error


CHANGED, MAYBE = Mutation({}, "something", True), Mutation({}, "something")


@pytest.mark.parametrize(
    ("read", "second", "mutation", "outcome"),
    [
        (raises(BadInput("a: no such thing")), None, CHANGED, "refused"),
        (raises(unprintable("two\nlines")), None, CHANGED, "failure"),
        (raises(unprintable("\x1b[2J")), None, CHANGED, "failure"),
        (raises(ValueError("x")), None, CHANGED, "failure"),
        (lambda folder: 1, None, CHANGED, "failure"),  # the same answer, though the meaning was changed
        (lambda folder: 1, None, MAYBE, "same"),
        (lambda folder: 2, None, CHANGED, "another"),
        (lambda folder: 2, lambda folder: 3, MAYBE, "failure"),
        (lambda folder: 2, lambda folder: 2, MAYBE, "another"),
        (lambda folder: 2, raises(KeyError("x")), MAYBE, "failure"),
    ],
)
def test_what_is_judged(tmp_path, read, second, mutation, outcome):
    assert judge(kind(read, second), tmp_path, mutation, 1, commands=False).kind == outcome


def allocate(folder: Path) -> None:
    np.ones(3 << 27)  # 3 GiB


DEEDS = {
    "dies": lambda folder: os.kill(os.getpid(), signal.SIGKILL),
    "allocates": allocate,
    "runs a program": lambda folder: os.system("true"),
    "leaves the canary": lambda folder: (folder / CANARY).touch(),
    "leaves quietly": lambda folder: os._exit(3),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_what_happens_in_a_process(deed):
    """One input of four does it; the others are tried all the same."""

    def once(index: int, folder: Path) -> Outcome:
        if index == 2:
            DEEDS[deed](folder)
        return Outcome("same")

    found = [(index, outcome.kind) for index, outcome in try_all(4, once)]
    assert found == [(0, "same"), (1, "same"), (2, "failure"), (3, "same")]


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (1, "", "Traceback (most recent call last):\n"),
        (3, "", ""),
        (0, "\x1b[2J", ""),
        (2, "", "a\nb\n"),
        (2, "", "refsd: a\nrefsd: b\n"),
        (2, "", "a.py:3: UserWarning: a\n  a = 5\nrefsd: b\n"),
        (2, "", "refsd: warning: a\n"),
        (-9, "", ""),
    ],
)
def test_how_a_command_ends(code, out, err):
    assert ending_fault(code, out, err) is not None
    assert ending_fault(2, "", "refsd: a: no such file\n") is None
    assert ending_fault(2, "", "refsd: warning: a\nrefsd: a: no such file\n") is None


def test_a_memo_number_of_billions_asks_for_no_memory(tmp_path):
    """A legal pickle, which refsd reads too."""
    pickled = state(a=tensor()).replace(b"}(", b"}r" + (0xCC000103).to_bytes(4, "little") + b"(")
    path = tmp_path / "a.ckpt"
    path.write_bytes(legacy(pickled, ("0",), COUNTED))

    def once(index: int, folder: Path) -> Outcome:
        return Outcome("same" if read_legacy(path) == tensors_read(open_weights(path)) else "failure")

    assert [outcome.kind for _, outcome in try_all(2, once)] == ["same", "same"]


def test_a_seed_does_it_again(tmp_path):
    for kind in KINDS:
        examples = kind.examples(tmp_path)
        once, again = (mutated(kind, "1", 5, examples, sorted(examples)) for _ in range(2))
        assert once == again
    assert attack("1", 7) == attack("1", 7) != attack("2", 7)


def test_every_example_is_read_and_agreed_upon(tmp_path):
    """Else a refusal would prove nothing."""
    from kind import put

    for kind in KINDS:
        for name, files in kind.examples(tmp_path).items():
            folder = tmp_path / kind.name / name
            put(folder, files)
            answer = kind.read(folder)
            assert kind.second is None or kind.second(folder) == answer, (kind.name, name)


def test_mutations_change():
    rng = Random(1)
    content = bytes(range(200))
    assert sum(bytes_changed(rng, content)[0] != content for _ in range(200)) > 190
    assert sum(json_changed(rng, b'{"a": [1, {"b": "c"}]}')[2] for _ in range(200)) > 100
