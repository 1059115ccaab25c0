"""Norms of queries and keys: which is wrong, and in which stream, of an engine that shows outputs alone."""

import pytest
from injection import Bug, Injected

from refsd.cases import CASES
from refsd.numerics.profiles import FLOAT32
from refsd.shrinking.failure import ask, runner_of
from refsd.weights.recipe_files import RecipeFiles

pytestmark = pytest.mark.jitted


class Closed(Injected):
    def run_tapped(self, case, inputs):
        return super().run_tapped(case, inputs)[0], {}


def _exchanged(stream, *pairs):
    """Weights of norms in a stream read from others. pairs: a norm and the one that is read for it"""

    def weights(right):
        return {
            name: right[next((name.replace(a, b) for a, b in pairs if stream in name and a in name), name)]
            for name in right
        }

    return Bug(weights=weights)


Q, K = ".query_norm.", ".key_norm."


@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        (_exchanged("_blocks", (K, Q)), "the norm of k has the weights of q's"),
        (_exchanged("txt_attn", (Q, K)), "the norm of q has the weights of k's, of the text's stream"),
        (_exchanged("img_attn", (Q, K), (K, Q)), "the norms of q and k are swapped, of the picture's stream"),
        (_exchanged("_blocks", (Q, K), (K, Q)), "the norms of q and k are swapped"),
    ],
)
def test_the_wrong_norm_and_its_stream_are_named(bug, cause, tmp_path):
    with RecipeFiles(tmp_path) as files:
        result = ask(runner_of(files), Closed(bug, FLOAT32, files), CASES["flux-dev/flux/between"])
    assert result is not None and result.causes[:1] == (cause,), result.causes
