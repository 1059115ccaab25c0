"""A model that has no page: refsd adopt mymodel.py:build -o tiny"""

import torch
import torch.nn.functional as F


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.GroupNorm(4, 16, eps=1e-6)
        self.conv_out = torch.nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        return x + self.conv_out(F.silu(self.norm(self.conv_in(x))))


def build():
    torch.manual_seed(0)
    return Tiny(), {"x": torch.randn(2, 3, 12, 8)}
