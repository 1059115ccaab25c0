"""Place an error that is there only without taps: an engine fuses operations wrongly, and a tap ends the fusion."""

from collections.abc import Sequence

from refsd.golden.engine import Engine, EngineFailure, FusingEngine
from refsd.golden.examination import examine
from refsd.golden.judge import Judge, Standard


def wrong_fusion(engine: Engine, judge: Judge, standard: Standard, taps: Sequence[str]) -> str:
    """Name the tap that ends the wrong fusion, in a phrase: bisect how many of the taps must be asked for.

    taps: in the order of computation; with all of them the engine conforms. Empty: no fusion is suspected
    -> "" for an engine that does not fuse, and where no fusion is suspected
    """
    if not taps or not isinstance(engine, FusingEngine):
        return ""
    few, many = 0, len(taps)
    try:
        while many - few > 1:
            n = (few + many) // 2
            actual = engine.run_with(standard.case, standard.inputs, taps[:n])
            passed = examine(judge, standard, actual, {}).verdict.passed
            few, many = (few, n) if passed else (n, many)
    except EngineFailure as error:
        return f"conforms when all taps are requested, so a fused operation is wrong; with some it fails: {error}"
    tap = taps[many - 1]
    return f"conforms when all taps are requested, so a fused operation is wrong; requesting {tap} makes it right"
