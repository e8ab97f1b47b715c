"""Files as disks, networks, vandals and forgers leave them."""

import json

from bactrian.estimators import saving


def rewritten(path, change):
    """The file with its document changed and the checksum made good, as a forger would."""
    header, body = saving._split(path.read_bytes())
    document = json.loads(header["__metadata__"]["bactrian"])
    del document["sha256"]
    change(document, header)
    document["sha256"] = saving._checksum(document, header, body)
    header["__metadata__"]["bactrian"] = json.dumps(document)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def mutated(content, rng):
    """A file with one to three random changes of the kinds that disks, networks and vandals make."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        kind = rng.integers(8)
        # Half of the changes go to the header, where most of the structure is.
        place = int(rng.integers(len(data) if rng.random() < 0.5 else min(len(data), 2500))) if data else 0
        length = int(rng.integers(1, 40))
        if kind == 0 and data:
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == 1 and data:
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
        elif data:
            digits = [i for i in range(len(data)) if 48 <= data[i] <= 57]
            if digits:
                data[digits[int(rng.integers(len(digits)))]] = 48 + int(rng.integers(10))
    return bytes(data)
