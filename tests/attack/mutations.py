"""Damage to files: what disks, networks, editors and vandals do."""

from __future__ import annotations

import numpy as np

#: Words that a careless hand puts into files of text.
WORDS = (
    "0",
    "-1",
    "1",
    "2",
    "7",
    "99999999999",
    "1e999",
    "-0.5",
    "nan",
    "inf",
    "#",
    "",
    "null",
    "[",
    "}",
    '"',
    "ß",
    "1_0",
)


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """One to three changes: flipped bits, other bytes, cuts, gaps, insertions, zeros, repeats, digits, words."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            break
        # Half of the changes go to the beginning, where most of the structure is.
        place = int(rng.integers(len(data) if rng.random() < 0.5 else min(len(data), 2500)))
        length = int(rng.integers(1, 40))
        kind = rng.integers(9)
        if kind == 0:
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[place] = int(rng.integers(256))
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            del data[place : place + length]
        elif kind == 4:
            data[place:place] = rng.bytes(length)
        elif kind == 5:
            data[place : place + length] = bytes(min(length, len(data) - place))
        elif kind == 6:
            data[place:place] = data[place : place + length]
        elif kind == 7:
            digits = [i for i in range(len(data)) if 48 <= data[i] <= 57]
            if digits:
                data[digits[int(rng.integers(len(digits)))]] = 48 + int(rng.integers(10))
        else:
            words = data.split(b" ")
            words[int(rng.integers(len(words)))] = WORDS[int(rng.integers(len(WORDS)))].encode()
            data = bytearray(b" ".join(words))
    return bytes(data)
