"""Damage every kind of file that refsd reads, misbehave, kill commands, fill the disk: refsd must stay upright.

    python tests/fuzz/fuzz.py                                        a short run of everything, about a minute
    python tests/fuzz/fuzz.py files --count 20000 --seed 7           mutations of files; --only KIND
    python tests/fuzz/fuzz.py pickles --count 1000                   pickles that attack
    python tests/fuzz/fuzz.py engines --count 200                    programs that misbehave
    python tests/fuzz/fuzz.py kills --count 40                       commands killed at any moment
    python tests/fuzz/fuzz.py disk --count 1                         files that may not grow, a full file system

What fails is kept in fuzz-failures/, and the line that does it again is printed. Exit code 1 if anything fails.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "fixtures")]

import attacks  # noqa: E402
import engines  # noqa: E402
import files  # noqa: E402
import interruptions  # noqa: E402

SECTIONS = {
    "files": files.run,
    "pickles": attacks.run,
    "engines": engines.run,
    "kills": interruptions.kills,
    "disk": interruptions.full_disk,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only")
    parser.add_argument("--at", type=int)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    options = parser.parse_args()
    failures = 0
    for section in options.sections or SECTIONS:
        began = time.monotonic()
        counts: Counter = Counter()
        failures += SECTIONS[section](options, counts)
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        print(f"{section}: {said}; seed {options.seed}, {time.monotonic() - began:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
