"""The kinds of case. A new one is a file of this folder with a subclass of golden's Judge, and a line here."""

from refsd.golden.engine import ModelFiles
from refsd.golden.judge import Judges
from refsd.golden.operation_judge import OperationJudge
from refsd.judges.model import ModelJudge
from refsd.judges.picture import PictureJudge
from refsd.judges.stage import StageJudge
from refsd.judges.trajectory import TrajectoryJudge


def judges(model_files: ModelFiles | None = None) -> Judges:
    """Every kind.

    model_files: gives the file of a model's recipe weights; without it, cases that need one are refused
    """
    return Judges(
        OperationJudge(), TrajectoryJudge(), StageJudge(), ModelJudge(model_files), PictureJudge(model_files)
    )
