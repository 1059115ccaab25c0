"""A few of the draws of tests/false_alarms/tap_sweep.py on torch."""

import pytest
import tap_sweep
import torch

pytestmark = pytest.mark.peer


@pytest.mark.parametrize(
    "cases",
    [
        "clip-l/*",
        "flux-dev/flux/quiet",
        "flux-vae/vae-decoder/quiet",
        "w*-vae/w*-vae-decoder/frames",
        "minimax-h3-vae/*/picture",
        "ltx2*/*/frames",
    ],
)
def test_torch_raises_no_alarm(cases):
    lines = []
    assert tap_sweep.main(["--seeds", "2", "--cases", cases, "--engines", "torch*"], lines.append) == 0, lines
    assert any("torch-channels-last" in line for line in lines)


def test_a_wrong_tap_is_an_alarm(monkeypatch):
    """A tenth of a per cent in each linear layer, which bfloat16 hides in each element and float16 in most."""
    true = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *given: true(*given) * 1.001)
    lines = []
    assert tap_sweep.main(["--seeds", "1", "--cases", "clip-l/*", "--engines", "torch*"], lines.append) == 1
    assert any("torch-f16" in line for line in lines) and "ALARM text_model.encoder.layers.0" in "".join(lines)
    assert tap_sweep.main(["--cases", "nothing"], lines.append) == 1
