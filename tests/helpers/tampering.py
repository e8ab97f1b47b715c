"""Files as disks, networks, vandals and forgers leave them."""

import hashlib
import json


def rewritten(path, change, **arrays):
    """The file with its document changed and the checksum made good, as a forger would.

    ``arrays``, of as many bytes, take the place of those of their names.
    """
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8:start]), bytearray(content[start:])
    document = json.loads(header["__metadata__"]["bactrian"])
    del document["sha256"]
    for name, array in arrays.items():
        first, last = header[name]["data_offsets"]
        assert array.nbytes == last - first
        body[first:last] = array.tobytes()
    change(document, header)
    described = {name: entry for name, entry in header.items() if name != "__metadata__"}
    covered = json.dumps([document, described], sort_keys=True, separators=(",", ":")).encode("ascii")
    document["sha256"] = hashlib.sha256(covered + b"\0" + body).hexdigest()
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
