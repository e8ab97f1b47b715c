"""Random numbers inside kernels: xoshiro256++ (Blackman & Vigna, ACM Trans. Math. Softw. 47(4), 2021).

Every chain owns a state of four words, so that what it draws depends neither on threads nor on other chains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit

Words = NDArray[np.uint64]


def new_states(seed: int | np.random.SeedSequence, n: int) -> Words:
    """(n, 4) independent states."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    words: Words = sequence.generate_state(4 * n, np.uint64).astype(np.uint64)
    return words.reshape(n, 4)


@njit(cache=True, nogil=True, error_model="numpy")
def _rotate(word: np.uint64, by: int) -> np.uint64:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


@njit(cache=True, nogil=True, error_model="numpy")
def uniform(state: Words) -> float:
    """A number from [0, 1); advances ``state`` (4,)."""
    result = _rotate(state[0] + state[3], 23) + state[0]
    shifted = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = _rotate(state[3], 45)
    return float(result >> np.uint64(11)) * 2.0**-53


@njit(cache=True, nogil=True, error_model="numpy")
def draw(probabilities: NDArray[np.float64], start: int, size: int, state: Words) -> int:
    """A state drawn from ``probabilities[start : start + size]``, which add up to about 1."""
    total = 0.0
    for k in range(size):
        total += probabilities[start + k]
    left = uniform(state) * total
    chosen = 0
    for k in range(size):
        if probabilities[start + k] > 0.0:
            chosen = k
            left -= probabilities[start + k]
            if left < 0.0:
                break
    return chosen
