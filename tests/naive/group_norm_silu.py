"""The two, one after the other."""

from naive.activations import silu
from naive.group_norm import group_norm


def group_norm_silu(x, weight, bias, num_groups, eps):
    return silu(group_norm(x, weight, bias, num_groups, eps))
