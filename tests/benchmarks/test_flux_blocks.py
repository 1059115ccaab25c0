"""Flux's blocks beside torch's: their inputs, and who is absent."""

import flux_blocks
import pytest


def test_the_blocks_have_full_width_and_their_rotation():
    x = flux_blocks.blocks_inputs(32, 3)
    assert x["both"].shape == (1, 4 + 3, 3072) and x["angle"].shape == (1, 7, 64)
    assert not x["angle"][0, :3].any() and x["angle"][0, 4:].any()
    assert flux_blocks.blocks_rows(1024, 512)[0] == "Flux, double block, 4096 + 512 tokens"


@pytest.mark.jitted
def test_refsd_runs_its_blocks_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(flux_blocks, "CONTENDERS", {"refsd": flux_blocks.refsd_blocks})
    entry = flux_blocks.bench(32, 3, 2)["refsd"]
    assert [len(seconds) for seconds in entry.seconds.values()] == [2, 2] and entry.peak > 2**20
    assert entry.setup["weights"] == "f16" and "numba" in entry.setup
