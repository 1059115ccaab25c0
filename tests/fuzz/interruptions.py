"""Commands that write, killed at any moment, or without room to write: no file may stand half under a final name.

Each command has a whole run to be compared with. After a kill what stands there is absent or the whole; a second
run ends as the first one did, and leaves nothing beside it.
"""

import argparse
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from judgement import ending_fault

SHORT_KILLS = 3
SHORT_DISK = ("dequant", "golden make", "noise")
SECONDS = 300


class Command(NamedTuple):
    """
    arguments: the folder -> a command line of refsd
    outputs:   names in the folder that are whole or absent
    changing:  parts of a name whose content is another at each run: who made it, and when
    """

    arguments: Callable[[Path], list[str]]
    outputs: tuple[str, ...]
    changing: tuple[str, ...] = ()


GGUF, MODEL = "small.gguf", "small.safetensors"
COMMANDS = {
    "weights make": Command(
        lambda folder: ["weights", "make", "sd15", "--tiny", "-o", str(folder / "m.safetensors")],
        ("m.safetensors",),
    ),
    "weights make a folder": Command(
        lambda folder: ["weights", "make", "sd15", "--tiny", "--layout", "diffusers", "-o", str(folder / "m")],
        ("m",),
    ),
    "weights make gguf": Command(
        lambda folder: ["weights", "make", "sd15", "--tiny", "--type", "q8_0", "-o", str(folder / "m.gguf")],
        ("m.gguf",),
    ),
    "dequant": Command(
        lambda folder: ["dequant", str(folder / GGUF), "-o", str(folder / "d.safetensors")], ("d.safetensors",)
    ),
    "golden make": Command(
        lambda folder: ["golden", "make", str(folder / "g"), "--cases", "silu/*"],
        ("g/cases", "g/blobs"),
        ("g/cases",),
    ),
    "conform": Command(
        lambda folder: [
            *("conform", "refsd:float32", "--cases", "silu/*", "--golden", str(folder / "g")),
            *("--report", str(folder / "r"), "--json", str(folder / "c.json"), "--junit", str(folder / "j.xml")),
        ],
        ("r/report.html", "r/report.md", "r/conform.json", "r/junit.xml", "c.json", "j.xml", "g/blobs"),
        ("r/", "c.json", "j.xml"),
    ),
    "noise": Command(
        lambda folder: ["noise", "--seed", "1", "-o", str(folder / "n.safetensors")], ("n.safetensors",)
    ),
}


class Run(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float


def start(arguments: list[str], folder: Path, limit: int | None = None) -> subprocess.Popen:
    """limit: bytes that a file may have"""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [sys.executable, "-m", "refsd", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=limited,
        env={**os.environ, "REFSD_CACHE": str(folder / "cache")},
    )


def finish(process: subprocess.Popen, began: float) -> Run:
    out, err = process.communicate(timeout=SECONDS)
    return Run(process.returncode, out, err, time.monotonic() - began)


def run_whole(arguments: list[str], folder: Path, limit: int | None = None) -> Run:
    return finish(start(arguments, folder, limit), time.monotonic())


def contents(folder: Path, outputs: tuple[str, ...]) -> dict[str, str]:
    """path -> SHA-256 of every file under the outputs"""
    found = {}
    for output in outputs:
        path = folder / output
        for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
            found[file.relative_to(folder).as_posix()] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def fault_of(command: Command, folder: Path, whole: dict[str, str]) -> str | None:
    """What stands half under a final name."""
    found = contents(folder, command.outputs)
    for name, digest in found.items():
        if name not in whole:
            return f"{name} is left, which a whole run does not make"
        if digest != whole[name] and not name.startswith(command.changing or ("\0",)):
            return f"{name} is half written: {(folder / name).stat().st_size} bytes"
    for output in command.outputs:
        inside = {name for name in whole if name.startswith(f"{output}/")}
        there = {name for name in found if name.startswith(f"{output}/")}
        if inside and there and there != inside and not output.startswith("g/"):
            return f"{output} is there with {len(there)} of its {len(inside)} files"
    return None


def made_ready(name: str, folder: Path, inputs: Path) -> Command:
    folder.mkdir(parents=True)
    shutil.copy(inputs / GGUF, folder / GGUF)
    return COMMANDS[name]


def _inputs(folder: Path) -> None:
    done = run_whole(["weights", "make", "sd15", "--tiny", "--type", "q8_0", "-o", str(folder / GGUF)], folder)
    assert done.code == 0, done.err


def kills(options: argparse.Namespace, counts: Counter) -> int:
    """Kill the commands in turn at random moments; half of them as soon as something unfinished is on disk."""
    total, failures = options.count or SHORT_KILLS, 0
    with tempfile.TemporaryDirectory(prefix="refsd-kills-") as scratch:
        place = Path(scratch)
        _inputs(place)
        names = [name for name in COMMANDS if options.only in (None, name)]
        whole: dict[str, tuple[dict[str, str], float]] = {}
        for index in range(total) if options.at is None else [options.at]:
            rng = Random(f"{options.seed}/kills/{index}")
            name = names[index % len(names)]
            if name not in whole:
                command = made_ready(name, place / f"whole-{names.index(name)}", place)
                done = run_whole(command.arguments(place / f"whole-{names.index(name)}"), place)
                assert done.code == 0, f"{name}: {done.err}"
                whole[name] = contents(place / f"whole-{names.index(name)}", command.outputs), done.seconds
            fault, when = _killed(name, place / str(index), place, rng, *whole[name])
            counts["failure" if fault else when] += 1
            if fault:
                failures += 1
                print(f"FAILURE kill {index}: {name}, {when}: {fault}")
                print(f"  again: python tests/fuzz/fuzz.py kills --seed {options.seed} --at {index}")
    return failures


def _killed(
    name: str, folder: Path, inputs: Path, rng: Random, whole: dict[str, str], seconds: float
) -> tuple[str | None, str]:
    """-> what is wrong, when it was killed"""
    command = made_ready(name, folder, inputs)
    before = set(folder.rglob("*"))
    began = time.monotonic()
    process = start(command.arguments(folder), folder)
    wait = rng.random() * seconds * 0.6 + seconds * 0.4
    watching = rng.random() < 0.6
    pause = rng.random() * 0.02
    while time.monotonic() - began < wait + (seconds if watching else 0) and process.poll() is None:
        # Half of them: as soon as anything new is on disk, and a moment later.
        if watching and any(
            path.is_file() for path in set(folder.rglob("*")) - before if "cache" not in path.parts
        ):
            time.sleep(pause)
            break
        time.sleep(0.002)
    ended = process.poll() is not None
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    when = "ended before" if ended else "killed while it wrote" if watching else "killed"
    fault = fault_of(command, folder, whole)
    if fault is None:
        if (folder / "m").is_dir():  # it was whole just before the kill, and a folder is not written over
            shutil.rmtree(folder / "m")
        again = run_whole(command.arguments(folder), folder)
        fault = fault_of(command, folder, whole) or ending_fault(again.code, again.out, again.err)
        if again.code != 0 or contents(folder, command.outputs).keys() != whole.keys():
            fault = fault or f"the run after it ends with {again.code}: {again.err[-300:]!a}"
    if fault is None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        left = [path for path in files if ".refsd-part-" in str(path) or "tmp" in path.relative_to(folder).parts]
        if left:
            fault = f"the run after it leaves {left[0].relative_to(folder)}"
    shutil.rmtree(folder)
    return fault, when


# A full disk

LIMITS = (0, 1, 100, 4096, 60_000, 500_000)


def full_disk(options: argparse.Namespace, counts: Counter) -> int:
    """Files that may not grow; a file system without room, where one may be mounted; stdout to /dev/full."""
    failures = 0

    def judged(what: str, done: Run, fault: str | None) -> None:
        nonlocal failures
        fault = fault or ending_fault(done.code, done.out, done.err)
        counts["failure" if fault else "refused" if done.code == 2 else "had room"] += 1
        if fault:
            failures += 1
            print(f"FAILURE {what}: {fault}")

    with tempfile.TemporaryDirectory(prefix="refsd-disk-") as scratch:
        place = Path(scratch)
        _inputs(place)
        names = [name for name in (COMMANDS if options.count else SHORT_DISK) if options.only in (None, name)]
        limits, sizes = (LIMITS, ("64k", "1m")) if options.count else (LIMITS[3:4], ("64k",))
        for name in names:
            command = made_ready(name, place / "whole", place)
            done = run_whole(command.arguments(place / "whole"), place / "whole")
            whole = contents(place / "whole", command.outputs)
            shutil.rmtree(place / "whole")
            assert done.code == 0, f"{name}: {done.err}"
            for limit in limits:
                command = made_ready(name, place / "small", place)
                done = run_whole(command.arguments(place / "small"), place / "small", limit)
                judged(f"{name} with files of {limit} bytes", done, fault_of(command, place / "small", whole))
                shutil.rmtree(place / "small")
        for size in sizes:
            mount = place / "mount"
            mount.mkdir(exist_ok=True)
            if subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)], capture_output=True
            ).returncode:
                print("  no leave to mount a small file system: left out")
                break
            try:
                for name in names:
                    if (place / GGUF).stat().st_size < (1 << 20 if size == "1m" else 1 << 16):
                        shutil.copy(place / GGUF, mount / GGUF)
                    command = COMMANDS[name]
                    arguments = [a.replace(str(mount / GGUF), str(place / GGUF)) for a in command.arguments(mount)]
                    done = run_whole(arguments, mount)
                    judged(f"{name} on a disk of {size}", done, None)
                    for path in mount.iterdir():
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                subprocess.run(["umount", str(mount)], check=True)
        for arguments in (
            ["info", str(place / GGUF)],
            ["info", str(place / GGUF), "--json"],
            ["sigmas", "--steps", "5"],
            ["--help"],
        ):
            with open("/dev/full", "w") as full:
                process = subprocess.Popen(
                    [sys.executable, "-m", "refsd", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
                )
                _, err = process.communicate(timeout=SECONDS)
            fault = None if process.returncode == 2 else f"exit code {process.returncode}, 2 expected"
            judged(f"refsd {arguments[0]} > /dev/full", Run(process.returncode, "", err, 0), fault)
    return failures
