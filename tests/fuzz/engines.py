"""Programs that misbehave as engines: the table in tests/fixtures/misbehaviours.py, through `refsd conform`."""

import argparse
import shlex
from collections import Counter
from pathlib import Path
from random import Random

from isolation import try_all
from judgement import Outcome, command_fault
from misbehaviours import MISBEHAVIOURS, program

SHORT = 8
SECONDS = 240  # a program may write 256 MiB before it is ended
CASE = "silu/f32/bend-x33x77"


def once(name: str, folder: Path) -> Outcome:
    command = program(name, folder)
    arguments = ["conform", f"exec:{shlex.join(command)}", "--cases", CASE, "--golden", str(folder / "g")]
    fault = command_fault([*arguments, "--report", str(folder / "r")])
    if fault:
        return Outcome("failure", f"{name}: {fault}")
    return Outcome("judged")


def run(options: argparse.Namespace, counts: Counter) -> int:
    """Those that hang are left to their own tests, where the time limit is short."""
    names = [name for name, wrong in MISBEHAVIOURS.items() if not wrong.hangs]
    names = Random(options.seed).sample(names, min(options.count or SHORT, len(names)))
    failures = 0
    for index, outcome in try_all(
        len(names), lambda i, folder: once(names[i], folder), watch=False, seconds=SECONDS
    ):
        counts[outcome.kind] += 1
        if outcome.kind == "failure":
            failures += 1
            print(f"FAILURE engine {names[index]}: {outcome.what}")
    return failures
