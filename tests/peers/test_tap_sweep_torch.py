"""A few of the draws of tests/false_alarms/tap_sweep.py on torch."""

import pytest
import tap_sweep
import torch

pytestmark = pytest.mark.peer


# Convolutions over frames in float16 and bfloat16 take torch a minute without AVX-512.
_FRAMES = "torch*" if torch.backends.cpu.get_cpu_capability() == "AVX512" else "torch torch-channels-last"


@pytest.mark.parametrize(
    ("cases", "engines"),
    [
        ("clip-l/*", "torch*"),
        ("flux-dev/flux/quiet", "torch*"),
        ("flux-vae/vae-decoder/quiet", "torch*"),
        ("w*-vae/w*-vae-decoder/frames", _FRAMES),
        ("minimax-h3-vae/*/picture", _FRAMES),
        ("ltx2*/*/frames", _FRAMES),
    ],
)
def test_torch_raises_no_alarm(cases, engines):
    lines = []
    assert tap_sweep.main(["--seeds", "2", "--cases", cases, "--engines", *engines.split()], lines.append) == 0, (
        lines
    )
    assert any("torch-channels-last" in line for line in lines)


def test_a_wrong_tap_is_an_alarm(monkeypatch):
    """A tenth of a per cent in each linear layer, which bfloat16 hides in each element and float16 in most."""
    true = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *given: true(*given) * 1.001)
    lines = []
    assert tap_sweep.main(["--seeds", "1", "--cases", "clip-l/*", "--engines", "torch*"], lines.append) == 1
    assert any("torch-f16" in line for line in lines) and "ALARM text_model.encoder.layers.0" in "".join(lines)
    assert tap_sweep.main(["--cases", "nothing"], lines.append) == 1
