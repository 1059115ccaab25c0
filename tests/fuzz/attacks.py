"""Pickles that want to run something, or to take memory, in every way that opcodes allow.

An attack that Python's own pickle executes is a working one: how many are is counted, each in a process of its own.
None may run under refsd, all that name a function must be refused, and none may take more than 1 GiB.
"""

import argparse
import contextlib
import io
import os
import pickle
import resource
import signal
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

from isolation import CANARY, try_all
from judgement import REFUSALS, Outcome, command_fault
from torch_files import legacy, named, number, numbers, state, storage, tensor, text, zipped

from refsd.diagnosis.health import examine
from refsd.files.formats import open_weights
from refsd.weights.checkpoint import survey

SHORT = 200
MOST_TO_PROVE = 100  # that are tried with Python's own pickle, a process each


class Attack(NamedTuple):
    """
    content: the file
    name:    its name
    what:    how it attacks
    names:   whether it names what no checkpoint may: then it must be refused
    """

    content: bytes
    name: str
    what: str
    names: bool


def touch(rng: Random) -> tuple[str, str, bytes, str]:
    """module, name, arguments (a tuple's opcodes): what makes the canary when it is called."""
    shell, python = f"echo > {CANARY}", f"open({CANARY!r}, 'w').close()"
    one = lambda value: b"(" + text(value) + b"t"
    calls = {
        ("os", "system"): one(shell),
        ("posix", "system"): one(shell),
        ("os", "popen"): one(shell),
        ("subprocess", "getoutput"): one(shell),
        ("subprocess", "check_output"): b"((" + b"".join(map(text, ("touch", CANARY))) + b"ltt",
        ("subprocess", "Popen"): b"((" + b"".join(map(text, ("touch", CANARY))) + b"ltt",
        ("builtins", "eval"): one(python),
        ("builtins", "exec"): one(python),
        ("__builtin__", "eval"): one(python),
        ("builtins", "open"): b"(" + text(CANARY) + text("w") + b"t",
        ("io", "open"): b"(" + text(CANARY) + text("w") + b"t",
        ("_io", "FileIO"): b"(" + text(CANARY) + text("w") + b"t",
        ("os", "mkdir"): one(CANARY),
        ("pathlib", "Path.touch"): one(CANARY),
        ("timeit", "timeit"): b"(" + text("pass") + text(python) + b"t",
        ("timeit", "main"): b"((" + b"".join(map(text, ("-n", "1", "-r", "1", python))) + b"ltt",
        ("code", "InteractiveInterpreter.runsource"): one(python),
        ("cProfile", "run"): one(python),
        ("pdb", "run"): one(python),
        ("bdb", "Bdb.run"): one(python),
        ("doctest", "debug_script"): one(python),
        ("pydoc", "pipepager"): b"(" + text("x") + text(f"cat > {CANARY}") + b"t",
        ("shutil", "copyfile"): b"(" + text("/etc/hostname") + text(CANARY) + b"t",
        ("numpy.testing._private.utils", "runstring"): b"(" + text(python) + b"}t",
        ("_pickle", "loads"): b"(" + _bytes(pickle.dumps(None)) + b"t",
        ("torch", "load"): one("/dev/zero"),
        ("torch.storage", "_load_from_bytes"): b"(" + _bytes(b"\x80\x02.") + b"t",
        ("runpy", "run_path"): one("/dev/null"),
        ("importlib", "import_module"): one("antigravity"),
        ("ctypes", "CDLL"): one("libc.so.6"),
        ("operator", "attrgetter"): one("system"),
        ("functools", "partial"): b"(" + named("os", "system") + text(shell) + b"t",
        ("os.path.os", "system"): one(shell),
        ("os", "path.os.system"): one(shell),
        ("collections", "OrderedDict.fromkeys"): one("x"),
        ("torch._utils", "os.system"): one(shell),
        ("torch", "serialization.os.system"): one(shell),
        ("numpy.core.multiarray", "os.system"): one(shell),
    }
    (module, name), arguments = rng.choice(list(calls.items()))
    return module, name, arguments, f"{module}.{name}"


def _bytes(raw: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(raw)) + raw


def short(value: str) -> bytes:
    raw = value.encode()
    return b"\x8c" + bytes([len(raw)]) + raw


def naming(rng: Random, module: str, name: str) -> tuple[bytes, str]:
    """The opcodes that put a global on the stack."""
    memo = bytes([rng.randrange(256)])
    ways = {
        "GLOBAL": named(module, name),
        "STACK_GLOBAL": short(module) + short(name) + b"\x93",
        "STACK_GLOBAL of long texts": text(module) + text(name) + b"\x93",
        "STACK_GLOBAL from the memo": short(name) + b"q" + memo + short(module) + b"h" + memo + b"\x93",
        "GLOBAL from the memo": named(module, name) + b"q" + memo + b"0h" + memo,
        "memoized": short(module) + b"\x94" + short(name) + b"\x94\x93\x94",
        "Python 2's texts": b"U"
        + bytes([len(module)])
        + module.encode()
        + b"U"
        + bytes([len(name)])
        + name.encode()
        + b"\x93",
        "in a frame": frame(short(module) + short(name) + b"\x93"),
    }
    how = rng.choice(list(ways))
    return ways[how], how


def frame(raw: bytes) -> bytes:
    return b"\x95" + struct.pack("<Q", len(raw)) + raw


def calling(rng: Random, function: bytes, arguments: bytes, module: str, name: str) -> tuple[bytes, str]:
    """The opcodes that call it."""
    inner = arguments[1:-1] if arguments.startswith(b"(") and arguments.endswith(b"t") else b""
    ways = {
        "REDUCE": function + arguments + b"R",
        "INST": b"(" + inner + f"i{module}\n{name}\n".encode(),
        "OBJ": b"(" + function + inner + b"o",
        "NEWOBJ": function + arguments + b"\x81",
        "NEWOBJ_EX": function + arguments + b"}\x92",
        "BUILD": named("argparse", "Namespace")
        + b")R}"
        + text("__setstate__")
        + function
        + b"sb"
        + arguments
        + b"b",
        "REDUCE of REDUCE": named("functools", "partial") + b"(" + function + inner + b"tR)R",
        "REDUCE in a key": b"}" + function + arguments + b"RK\1s",
        "REDUCE as a storage": b"("
        + text("storage")
        + function
        + arguments
        + b"R"
        + text("0")
        + text("cpu")
        + b"K\6tQ",
        "REDUCE as a dtype": named("torch._utils", "_rebuild_tensor_v3")
        + b"("
        + storage()
        + b"K\0"
        + numbers((6,))
        + numbers((1,))
        + b"\x89)"
        + function
        + arguments
        + b"RtR",
        "REDUCE as hooks": tensor().replace(
            named("collections", "OrderedDict") + b")R", function + arguments + b"R"
        ),
        "rebuilt by": named("torch._tensor", "_rebuild_from_type_v2")
        + b"("
        + function
        + named("torch", "Tensor")
        + arguments
        + b"}tR",
        "PERSID": b"Pos.system\n",
        "BINPERSID": b"(" + text("module") + function + text("a.py") + text("x") + b"tQ" + arguments + b"R",
        "popped": function + arguments + b"R0N",
    }
    how = rng.choice(list(ways))
    return ways[how], how


def bomb(rng: Random) -> tuple[bytes, str]:
    """Few bytes that want to be many: opcodes that leave one value."""
    n = rng.choice([10, 60, 199, 201, 5000, 200_000])
    size = rng.choice([2**16, 2**31 - 1, 2**31, 2**32 - 1])
    large = rng.choice([2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
    wild = [
        rng.choice([0, 1, 2, 2**20, 2**31, 2**40, 2**62, 2**63, 2**100, -1]) for _ in range(rng.randrange(1, 5))
    ]
    steps = [rng.choice([0, 0, 1, 2**20, 2**62, -1]) for _ in wild]
    doubled = b"]q\0" + b"".join(
        b"(" + (b"h" + bytes([i])) * 10 + b"lq" + bytes([i + 1]) for i in range(min(n, 200))
    )
    ways = {
        f"{n} lists in lists": b"]" * n + b"a" * (n - 1),
        f"{n} tuples": b"N" + b"\x85" * n,
        f"{n} dicts": b"}" * n + (text("a") + b"N").join([b""] * 2),
        f"{n} marks": b"(" * n + b"t" * n,
        f"lists of ten, {min(n, 200)} times": doubled,
        f"tuples of ten, {min(n, 200)} times": b")q\0"
        + b"".join(b"(" + (b"h" + bytes([i])) * 10 + b"tq" + bytes([i + 1]) for i in range(min(n, 200))),
        f"BINUNICODE of {size}": b"X" + struct.pack("<I", size) + b"a",
        f"BINUNICODE8 of {large}": b"\x8d" + struct.pack("<Q", large) + b"a",
        f"BINBYTES8 of {large}": b"\x8e" + struct.pack("<Q", large) + b"a",
        f"BYTEARRAY8 of {large}": b"\x96" + struct.pack("<Q", large) + b"a",
        f"LONG4 of {size}": b"\x8b" + struct.pack("<I", size) + b"\1",
        f"a frame of {large}": b"\x95" + struct.pack("<Q", large) + b"N",
        f"memo {size}": b"Nr" + struct.pack("<I", size) + b"0j" + struct.pack("<I", size),
        f"EXT4 {size}": b"\x84" + struct.pack("<I", size),
        "EXT1": b"\x82\1",
        "EXT2": b"\x83\1\1",
        f"a tensor of {wild} by {steps}": tensor(wild, steps),
        f"a storage of {wild[0]}": tensor(of=storage(numel=wild[0])),
        f"a view of a storage from {wild[0]}": tensor(
            of=storage(view=b"(" + text("0") + number(wild[0]) + number(6) + b"t")
        ),
        f"{n} keys": b"}(" + b"".join(text(str(i)) + b"N" for i in range(min(n, 60_000))) + b"u",
        f"{n} tensors of one storage": b"}("
        + b"".join(text(str(i)) + tensor() for i in range(min(n, 20_000)))
        + b"u",
        "a dict in itself": b"}q\0(" + text("w") + tensor() + text("self") + b"h\0u",
        f"pairs of {n}": named("collections", "OrderedDict") + b"((" + b"(NNt" * min(n, 60_000) + b"ltR",
        f"a text of {n} dots": text("." * min(n, 60_000)),
        "a counter of itself": named("collections", "Counter") + b"(}q\0" + text("a") + b"h\0stR",
        "a size of a size": named("torch", "Size") + b"(" + named("torch", "Size") + b"()ttR",
    }
    how = rng.choice(list(ways))
    return ways[how], how


def attack(seed: str, index: int) -> Attack:
    """The same for the same seed and index."""
    rng = Random(f"{seed}/pickles/{index}")
    if rng.random() < 0.7:
        module, name, arguments, target = touch(rng)
        function, by = naming(rng, module, name)
        opcodes, how = calling(rng, function, arguments, module, name)
        what, names = f"{how} of {target}, {by}", True
    else:
        opcodes, what = bomb(rng)
        names = what.startswith("EXT")
    where = rng.choice(["between tensors", "first", "last", "alone", "in a wrapper", "a key"])
    good = text("v") + tensor()
    protocol = b"" if rng.random() < 0.2 else b"\x80" + bytes([rng.randrange(6)])
    pickled = {
        "between tensors": b"}(" + good + text("w") + opcodes + text("x") + tensor() + b"u.",
        "first": b"}(" + text("u") + opcodes + good + b"u.",
        "last": b"}(" + good + text("w") + opcodes + b"u.",
        "alone": opcodes + b".",
        "in a wrapper": b"}(" + text("state_dict") + b"}(" + good + b"u" + text("optimizer") + opcodes + b"u.",
        "a key": b"}(" + good + opcodes + tensor() + b"u.",
    }[where]
    pickled = protocol + pickled
    kind = rng.choice(["zip", "zip", "legacy", "legacy head", "bare"])
    content = {
        "zip": lambda: zipped(pickled),
        "legacy": lambda: legacy(pickled),
        "legacy head": lambda: pickled + legacy(state(w=tensor())),
        "bare": lambda: pickled,
    }[kind]()
    suffix = rng.choice(
        [".ckpt", ".pt", ".pth", ".bin", ".pkl", ".safetensors"] if kind == "zip" else [".ckpt", ".pt", ".bin"]
    )
    return Attack(content, f"a{suffix}", f"{what}, {where}, {kind}{suffix}", names)


def once(seed: str, index: int, folder: Path) -> Outcome:
    made = attack(seed, index)
    path = folder / made.name
    path.write_bytes(made.content)
    try:
        weights = open_weights(path)
        examine(survey(path), whole=True)
        for name in weights:
            assert weights[name].shape == weights.headers[name].shape
    except REFUSALS as refusal:
        if not str(refusal).isprintable() or len(str(refusal)) > 1000:
            return Outcome(
                "failure", f"{made.what}: a refusal that is not one printable line: {str(refusal)[:200]!a}"
            )
        outcome = Outcome("refused", str(refusal))
    except MemoryError:
        raise
    except BaseException as error:
        return Outcome("failure", f"{made.what}: {type(error).__name__}: {str(error)[:200]!a}")
    else:
        if made.names:
            return Outcome("failure", f"{made.what}: silently accepted")
        outcome = Outcome("opened", made.what)
    if index % 10 == 0:
        fault = command_fault(["info", str(path), "--values"])
        if fault:
            return Outcome("failure", f"{made.what}: {fault}")
    return outcome


class _Victim(pickle.Unpickler):
    """What torch.load does without weights_only, where torch is not installed."""

    def persistent_load(self, pid):
        return None

    def find_class(self, module, name):
        return (
            (lambda *_: None)
            if module.startswith("torch") and "os.system" not in name
            else super().find_class(module, name)
        )


def executes(content: bytes) -> bool:
    """Whether Python's own pickle makes the canary of it: in a process of its own, in an empty folder."""
    pickled = content[content.index(b"data.pkl") + len("data.pkl") :] if content.startswith(b"PK") else content
    with tempfile.TemporaryDirectory(prefix="refsd-fuzz-") as name:
        pid = os.fork()
        if pid == 0:
            os.chdir(name)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            signal.alarm(2)
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            file = io.BytesIO(pickled)
            with contextlib.suppress(BaseException):
                for _ in range(4):  # a legacy file has three pickles before the one
                    _Victim(file).load()
            os._exit(0)
        os.waitpid(pid, 0)
        return (Path(name) / CANARY).exists()


def run(options: argparse.Namespace, counts: Counter) -> int:
    start, n = (0, options.count or SHORT) if options.at is None else (options.at, 1)
    failures = 0
    for index, outcome in try_all(n, lambda index, folder: once(options.seed, index, folder), start):
        counts[outcome.kind] += 1
        if outcome.kind == "failure":
            failures += 1
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"pickle-{index}-{attack(options.seed, index).name}").write_bytes(
                attack(options.seed, index).content
            )
            if failures <= 20:
                print(f"FAILURE pickle {index}: {outcome.what}")
                print(f"  again: python tests/fuzz/fuzz.py pickles --seed {options.seed} --at {index}")
        elif options.at is not None:
            print(f"{outcome.kind}: {outcome.what}")
    tried = range(start, start + min(n, MOST_TO_PROVE))
    working = sum(executes(attack(options.seed, index).content) for index in tried)
    print(f"  Python's own pickle runs {working} of the first {len(tried)}")
    sys.stdout.flush()
    return failures
