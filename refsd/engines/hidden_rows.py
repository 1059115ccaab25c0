"""Which cases of attention may hide every key from a query: engines disagree on the answer."""

from refsd.golden.case import Case


def hides_rows(case: Case) -> bool:
    """True if the mask, or a causal diagonal, may hide every key from some query and the case has no sinks."""
    mask = case.inputs.get("mask")
    if "sinks" in case.inputs:
        return False
    hiding = mask is not None and mask.data in ("masked", "late")
    if case.params.get("causal"):
        return hiding or case.params.get("diagonal", 0) < 0
    return mask is not None and mask.data == "masked" and mask.n > 0
