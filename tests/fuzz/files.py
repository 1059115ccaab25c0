"""Mutations of files, of every kind in KINDS."""

import argparse
import functools
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from isolation import try_all
from judgement import Outcome, judge
from kind import Files, Kind, put
from kind_adapters import ADAPTERS
from kind_dumps import BIN, NPY, NPZ
from kind_folders import FOLDERS, INDICES
from kind_gguf import GGUF
from kind_golden import ANSWERS, DESCRIPTIONS, REPORTS, STORES, WAIVED
from kind_pictures import PICTURES
from kind_safetensors import SAFETENSORS
from kind_tokenizers import SPIECE, TOKENIZER_GGUF, TOKENIZER_JSON, VOCABULARY
from kind_torch import TORCH_LEGACY, TORCH_ZIP

# kind -> its share of the mutations
KINDS: dict[Kind, int] = {
    SAFETENSORS: 10,
    GGUF: 10,
    TORCH_ZIP: 10,
    TORCH_LEGACY: 6,
    NPY: 4,
    NPZ: 4,
    BIN: 4,
    FOLDERS: 10,
    INDICES: 4,
    TOKENIZER_JSON: 4,
    VOCABULARY: 3,
    SPIECE: 4,
    TOKENIZER_GGUF: 4,
    STORES: 5,
    WAIVED: 3,
    REPORTS: 3,
    ANSWERS: 3,
    DESCRIPTIONS: 4,
    ADAPTERS: 6,
    PICTURES: 3,
}
SHORT = 1000
COMMANDS_EVERY = 10


def run(options: argparse.Namespace, counts: Counter) -> int:
    """-> how many failed"""
    kinds = {kind: share for kind, share in KINDS.items() if options.only in (None, kind.name)}
    if not kinds:
        raise SystemExit(f"--only {options.only}: expected one of {', '.join(kind.name for kind in KINDS)}")
    total, failures = options.count or SHORT, 0
    for kind, share in kinds.items():
        start, n = (0, -(-total * share // sum(kinds.values()))) if options.at is None else (options.at, 1)
        failures += _run_kind(kind, start, n, options, counts)
    return failures


def _run_kind(kind: Kind, start: int, n: int, options: argparse.Namespace, counts: Counter) -> int:
    linked = tempfile.TemporaryDirectory(prefix="refsd-fuzz-examples-")
    examples = kind.examples(Path(linked.name))
    names = sorted(examples)
    per_kind: Counter = Counter()
    failures: Counter = Counter()

    @functools.cache
    def before(name: str, folder: Path):
        place = folder.parent / f"example-{name}"
        put(place, examples[name])
        return kind.read(place)

    def once(index: int, folder: Path) -> Outcome:
        name, mutation = mutated(kind, options.seed, index, examples, names)
        put(folder, mutation.files)
        answer = before(name, folder.parent / "any")
        outcome = judge(kind, folder, mutation, answer, index % COMMANDS_EVERY == 0 or options.at is not None)
        what = (
            outcome.what
            if outcome.kind == "refused" and options.at is None
            else f"{name}, {mutation.what}: {outcome.what}"
        )
        return Outcome(outcome.kind, what)

    for index, outcome in try_all(n, once, start):
        per_kind[outcome.kind] += 1
        if outcome.kind == "failure":
            failures[_essence(outcome.what)] += 1
            if failures[_essence(outcome.what)] <= 3:
                kept = options.keep / f"{kind.name}-{index}"
                put(kept, mutated(kind, options.seed, index, examples, names)[1].files)
                print(f"FAILURE {kind.name} {index}: {outcome.what}")
                print(
                    "  again: python tests/fuzz/fuzz.py files "
                    f"--seed {options.seed} --only {kind.name} --at {index}"
                )
        elif options.at is not None:
            print(f"{outcome.kind}: {outcome.what}")
    print(f"  {kind.name:14}" + "".join(f" {per_kind[k]:6} {k}" for k in ("refused", "another", "same", "failure")))
    counts += per_kind
    return per_kind["failure"]


def mutated(kind: Kind, seed: str, index: int, examples: dict[str, Files], names: list[str]):
    """The same for the same seed, kind and index."""
    rng = Random(f"{seed}/{kind.name}/{index}")
    name = rng.choice(names)
    mutation = kind.mutate(rng, examples[name])
    while rng.random() < 0.25:
        try:
            again = kind.mutate(rng, mutation.files)
        except Exception:  # too damaged to be changed in this way
            break
        mutation = again._replace(what=f"{mutation.what}; {again.what}", changes=False)
    return name, mutation


def _essence(what: str) -> str:
    """What failures of one kind share, of which three are shown."""
    if what.endswith("the answer is the same as without the change"):
        return what[:30]
    for word in ("traceback: ", "silently accepted: ", "it prints", "refsd "):
        if word in what:
            return what[what.index(word) :][:70]
    return what[-70:]
