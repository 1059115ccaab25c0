"""Make goldens on a cluster: workers compute the answers, the caller's process stores them."""

import threading
from collections.abc import Iterator, Sequence

from refsd.cluster.spread import Job, Spread
from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.publishing import publish
from refsd.golden.store import Manifest, Store, prepare
from refsd.golden.wording import counted
from refsd.numerics.errors import BadInput
from refsd.progress.steps import steps
from refsd.weights.model_files import model_files, trim_model_files
from refsd.weights.recipe_files import fingerprint

_one = threading.Lock()


def answer(case: Case) -> list[tuple[Manifest, bytes]]:
    """Compute one golden: a job."""
    with _one:
        inputs, reference = case.realize(), Reference(model_files=model_files)
        outputs = reference.run(case, inputs)
        weights = fingerprint(case.model) if case.model else ""
        golden = prepare(case, inputs, outputs, reference.version, weights)
        trim_model_files()
        return [golden]


def make_on(spread: Spread, store: Store, cases: Sequence[Case], public: bool = False) -> set[str]:
    """Compute and store every answer that the store lacks, with a progress bar -> names of the new ones.

    public: write to the store's URL what it lacks there

    Raises BadInput, when all others are stored, for cases that end every worker that computes them.
    """
    store.sweep()
    waiting: list[Case] = []
    made, crashed = set(), []
    with steps("goldens", len(cases)) as advance:

        def jobs() -> Iterator[Job]:
            for case in cases:
                if store.has(case):
                    if public:
                        publish(store, case)
                    advance(case.name)
                else:
                    waiting.append(case)
                    yield Job((case,))

        for number, outcome in enumerate(spread.run(answer, jobs(), crashed=lambda job: [])):
            name = waiting[number].name
            for golden in outcome:
                store.accept(*golden)
                made.add(name)
                if public:
                    publish(store, waiting[number])
            crashed += [] if outcome else [name]
            advance(name)
    store.sweep()
    if crashed:
        others = f" and {counted(len(crashed) - 1, 'other case')}" if crashed[1:] else ""
        raise BadInput(f"{crashed[0]}{others}: the process of every worker that computed it ended")
    return made
