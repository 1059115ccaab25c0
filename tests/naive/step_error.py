"""An adaptive solver's error, array by array."""

import numpy as np


def step_error(low, high, previous, atol, rtol):
    low, high, previous = (np.asarray(x, np.float64) for x in (low, high, previous))
    tolerated = np.clip(rtol * np.max(np.abs([low, previous]), axis=0), atol, None)
    return np.linalg.norm((low - high) / tolerated) / np.sqrt(low.size)
