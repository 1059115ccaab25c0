"""An exchange of two small parts is likelier than one half that is read where the other lies."""

import numpy as np

from refsd.networks.part_orders import part_orders


def test_a_half_read_for_the_other_is_tried_after_every_exchange():
    """A place that reads one part alone cannot tell them apart: gates of six parts exchanged show as a half."""
    named = [*part_orders(12)]
    words = [phrase for phrase, _ in named]
    half = words.index("part 1 of the 2 of {} is read where part 2 lies")
    assert words.index("parts 3 and 6 of the 6 of {} are exchanged") < half
    exchanged, read = dict(named)["parts 3 and 6 of the 6 of {} are exchanged"], named[half][1]
    assert np.array_equal(exchanged[4:6], read[4:6]), "as the third part sees them"
    assert [*read] == [6, 7, 8, 9, 10, 11, 6, 7, 8, 9, 10, 11]
    assert words.index("part 2 of the 2 of {} is read where part 1 lies") < words.index(
        "parts 1 and 2 of the 2 of {} are exchanged"
    )
