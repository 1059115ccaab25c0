"""Make the answers that a store of goldens lacks, and show how far that is."""

from collections.abc import Sequence

from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.store import Store, make
from refsd.model_files import model_files, trim_model_files
from refsd.progress import compile_progress
from refsd.step_progress import steps


def make_into(store: Store, chosen: Sequence[Case]) -> int:
    """Compute the answers that a store lacks, with a progress bar -> number of new answers."""
    with compile_progress(), steps("goldens", len(chosen)) as advance:

        def done(case: Case, new: bool) -> None:
            advance(case.name)
            trim_model_files()

        return make(store, chosen, Reference(model_files=model_files), done)
