"""The reference as an engine: it answers a Case through the same interface as ggml, torch or a program."""

from collections.abc import Iterable, Mapping

import numpy as np

from refsd import __version__
from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.judges import judges
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import Deviation
from refsd.numerics.profiles import FLOAT64, Numerics
from refsd.numerics.tensor import StoredTensor


class Reference:
    """Answer cases with the reference.

    numerics:    the rounding to emulate; FLOAT64 gives the truth
    deviations:  known bugs to reproduce, to test whether they explain an engine's error
    model_files: returns the file with a model's recipe weights; None: refuse cases of models
    """

    name = "refsd"
    version = __version__

    def __init__(
        self,
        numerics: Numerics = FLOAT64,
        deviations: Iterable[Deviation] = (),
        model_files: ModelFiles | None = None,
    ):
        self.arithmetic = Arithmetic(numerics, deviations)
        self.judges = judges(model_files)

    def refuses(self, case: Case) -> str | None:
        judge = self.judges.find(case)
        return judge.refuses(case, self.arithmetic.numerics) if judge else f"no operation {case.op}"

    def numerics(self, case: Case) -> Numerics:
        return self.arithmetic.numerics

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return self.arithmetic.deviations

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        """Compute the case. Raises BadInput if its inputs or parameters are invalid."""
        return self.judges.of(case).answer(case, inputs, self.arithmetic)
