"""Trajectories: what a sampler makes of its model's answers, step by step, and whether an engine does the same."""

from refsd.golden.conform import Judge
from refsd.trajectory.diagnose import diagnose
from refsd.trajectory.measure import measure_trajectory
from refsd.trajectory.run import OP

# For conform.Runner.
JUDGES = {OP: Judge(measure_trajectory, diagnose)}
