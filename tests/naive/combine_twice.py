"""Two rows of weights times the stacked arrays, then the first row's answer added to the second's."""

import numpy as np


def combine_twice(again, first_weights, second_weights, arrays):
    stacked = np.stack([np.asarray(x, np.float64) for x in arrays])
    first, second = np.tensordot(np.array([first_weights, second_weights], np.float64), stacked, 1)
    return first, second + again * first
