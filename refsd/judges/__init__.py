"""The kinds of case. To add one, add a file with a subclass of golden's Judge, and list it in `judges` below."""

from refsd.golden.engine import ModelFiles
from refsd.golden.judge import Judges
from refsd.judges.model import ModelJudge
from refsd.judges.operation import OperationJudge
from refsd.judges.picture import PictureJudge
from refsd.judges.stage import StageJudge
from refsd.judges.trajectory import TrajectoryJudge


def judges(model_files: ModelFiles | None = None) -> Judges:
    """Return the judges of all kinds of case.

    model_files: model recipe, layout -> file of its weights; without it, cases that need a model are refused
    """
    return Judges(
        OperationJudge(), TrajectoryJudge(), StageJudge(), ModelJudge(model_files), PictureJudge(model_files)
    )
