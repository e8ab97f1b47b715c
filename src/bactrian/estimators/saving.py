"""Models in one file: arrays as safetensors, everything else as JSON in its header.

The header's metadata has one entry, ``bactrian``: a JSON object with the format and its version, the version of the
library, the name of the class, its parameters, further attributes, and a SHA-256 checksum over all of these, the
descriptions of the arrays and their bytes. Nothing read from a file is ever executed, and of classes only those
of learners are made, the library's own and those that were registered.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

import bactrian
from bactrian.arrays import Arrays
from bactrian.atomic_files import atomic_file
from bactrian.camel.entropy import CountingNumbers
from bactrian.learners.learn import learner_classes

#: Raised when a file of this version could be misread by older releases.
FORMAT_VERSION = 1

_FORMAT = "bactrian-model"
_LARGEST_HEADER = 100_000_000  # that of safetensors itself
_DTYPES = ("F64", "I64", "U8")
#: Lists of more strings than this are kept as arrays: vocabularies would outgrow the header.
_MANY_STRINGS = 1_000


def _learners() -> dict[str, Any]:
    """Classes that a file may name: known learners, and counting numbers."""
    return {**learner_classes(), CountingNumbers.__name__: CountingNumbers}


class ModelFileError(ValueError):
    """The file is not a model that this release can read: it is damaged, truncated, foreign or newer."""


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """What a model file holds."""

    class_name: str
    params: dict[str, Any]
    attributes: dict[str, Any]
    arrays: Arrays
    library_version: str = bactrian.__version__


def write_saved(path: str | os.PathLike[str], model: SavedModel) -> None:
    """Write a model to ``path``, replacing what is there in one step.

    Parameters and attributes may be None, booleans, numbers, strings, lists, tuples, dicts with keys that are strings,
    integers or booleans, arrays and the library's learners; arrays are kept as float64 or int64 (flat ones of strings
    or booleans as lists), and long lists of strings as arrays of bytes. What cannot be saved is a ValueError, and
    nothing is written then.
    """
    arrays = {name: _plain_array(array, name) for name, array in model.arrays.items()}
    document = {
        "format": _FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": model.library_version,
        "class": model.class_name,
        "params": {name: _encoded(value, f"params.{name}", arrays) for name, value in model.params.items()},
        "attributes": {name: _encoded(value, f"attributes.{name}", arrays) for name, value in model.attributes.items()},
    }
    # Serialised twice: the descriptions and bytes that the checksum covers are those of the file itself.
    header, body = _split(safetensors.numpy.save(arrays))
    document["sha256"] = _checksum(document, header, body)
    content = safetensors.numpy.save(arrays, metadata={"bactrian": json.dumps(document, allow_nan=False)})
    with atomic_file(path) as stream:
        stream.write(content)


def read_saved(path: str | os.PathLike[str], class_name: str) -> SavedModel:
    """Read a model of the class called ``class_name``; any other file, or a damaged one, is a ModelFileError."""
    content = Path(path).read_bytes()
    try:
        return _parsed(content, class_name)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from None


def read_model(path: str | os.PathLike[str], class_name: str, make: Callable[[SavedModel], Any]) -> Any:
    """What ``make`` makes of the model in a file; a ModelFileError also where it is refused."""
    saved = read_saved(path, class_name)
    try:
        return make(saved)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(f"{os.fspath(path)}: the file does not describe a valid model: {error}") from None


def _parsed(content: bytes, class_name: str) -> SavedModel:
    header, body = _split(content)
    document = _document(header)
    checksum = document.pop("sha256", None)
    if checksum != _checksum(document, header, body):
        raise ModelFileError("the file is damaged: its checksum does not match its content")
    if document.get("class") != class_name:
        raise ModelFileError(f"the file holds a {document.get('class')!r}, expected a {class_name}")
    arrays = _arrays(content, header)
    params, attributes = document.get("params"), document.get("attributes")
    version = document.get("library_version")
    if not (isinstance(params, dict) and isinstance(attributes, dict) and isinstance(version, str)):
        raise ModelFileError("the file lacks parts of a model: params, attributes and library_version are expected")
    return SavedModel(
        class_name=class_name,
        params={name: _decoded(value, arrays) for name, value in params.items()},
        attributes={name: _decoded(value, arrays) for name, value in attributes.items()},
        arrays={name: array for name, array in arrays.items() if not name.startswith(("params.", "attributes."))},
        library_version=version,
    )


# --- the container ---


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and body of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= length <= min(len(content) - 8, _LARGEST_HEADER):
        raise ModelFileError("the file is truncated, or is not a safetensors file")
    header = _json(content[8 : 8 + length], "the header")
    return header, content[8 + length :]


def _document(header: dict[str, Any]) -> dict[str, Any]:
    """What the library wrote into the header, its format and version checked."""
    metadata = header.get("__metadata__")
    text = metadata.get("bactrian") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise ModelFileError("this safetensors file was not written by bactrian")
    document = _json(text.encode("utf-8", "replace"), "the metadata")
    if document.get("format") != _FORMAT:
        raise ModelFileError(f"the format is {document.get('format')!r}, expected {_FORMAT!r}")
    version = document.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ModelFileError(f"format_version is {version!r}, expected a positive integer")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"the file has format version {version}, written by bactrian {document.get('library_version')}; this is "
            f"bactrian {bactrian.__version__}, which reads versions up to {FORMAT_VERSION}: upgrade to load it"
        )
    return document


def _json(text: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelFileError(f"{name} is not valid JSON: the file is damaged, or not a model of bactrian") from None
    if not isinstance(parsed, dict):
        raise ModelFileError(f"{name} is not a JSON object: the file is damaged, or not a model of bactrian")
    return parsed


def _checksum(document: Mapping[str, Any], header: Mapping[str, Any], body: bytes) -> str:
    """SHA-256 of the document, the descriptions of the arrays and their bytes."""
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    digest = hashlib.sha256()
    try:
        # Escaped, so that lone surrogates, which JSON admits, have bytes too.
        digest.update(json.dumps([document, tensors], sort_keys=True, separators=(",", ":")).encode("ascii"))
    except RecursionError:
        raise ModelFileError(
            "the metadata is nested too deeply: the file is damaged, or not a model of bactrian"
        ) from None
    digest.update(b"\0")
    digest.update(body)
    return digest.hexdigest()


def _arrays(content: bytes, header: Mapping[str, Any]) -> Arrays:
    for name, entry in header.items():
        if name != "__metadata__" and not (isinstance(entry, dict) and entry.get("dtype") in _DTYPES):
            raise ModelFileError(f"array {name!r} has no dtype of {', '.join(_DTYPES)}")
    try:
        arrays: Arrays = safetensors.numpy.load(content)
    except (SafetensorError, ValueError, OverflowError) as error:
        raise ModelFileError(f"the arrays cannot be read: {error}") from None
    return arrays


# --- values ---


def _plain_array(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.kind in "iu":
        return np.ascontiguousarray(array, dtype="<i8")
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, dtype="<f8")
    raise ValueError(f"{name} is an array of {array.dtype}; only integers and floats can be saved")


def _encoded(value: Any, name: str, arrays: Arrays) -> Any:
    """``value`` as JSON; arrays go to ``arrays`` under ``name``."""
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list) and len(value) > _MANY_STRINGS and all(isinstance(entry, str) for entry in value):
        return _encoded_strings(value, name, arrays)
    if isinstance(value, list):
        return [_encoded(entry, f"{name}.{i}", arrays) for i, entry in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(entry, f"{name}.{i}", arrays) for i, entry in enumerate(value)]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encoded(entry, f"{name}.{key}", arrays) for key, entry in value.items()}}
    if isinstance(value, dict) and all(_is_key(key) for key in value):
        keys = [key.item() if isinstance(key, np.integer | np.bool_) else key for key in value]
        entries = [_encoded(entry, f"{name}.{i}", arrays) for i, entry in enumerate(value.values())]
        return {"items": [list(pair) for pair in zip(keys, entries, strict=True)]}
    if isinstance(value, np.ndarray) and value.dtype.kind == "U" and value.ndim == 1:
        return {"words": _encoded(value.tolist(), name, arrays)}
    if isinstance(value, np.ndarray) and value.dtype.kind == "b" and value.ndim == 1:
        return {"flags": value.tolist()}
    if isinstance(value, np.ndarray):
        arrays[name] = _plain_array(value, name)
        return {"array": name}
    if type(value) in _learners().values() and dataclasses.is_dataclass(value):
        settings = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        encoded = {key: _encoded(entry, f"{name}.{key}", arrays) for key, entry in settings.items()}
        return {"learner": type(value).__name__, "settings": encoded}
    hint = "; data classes that register_learner knows can" if hasattr(value, "learn") else ""
    raise ValueError(f"{name} is a {type(value).__name__}, which cannot be saved{hint}")


def _is_key(key: Any) -> bool:
    return isinstance(key, str | int | np.integer | np.bool_)


def _encoded_strings(strings: list[str], name: str, arrays: Arrays) -> Any:
    """Many strings as two arrays, their UTF-8 bytes one after the other and the number of bytes of each."""
    pieces = [string.encode("utf-8", "surrogatepass") for string in strings]
    arrays[f"{name}.bytes"] = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    arrays[f"{name}.lengths"] = np.array([len(piece) for piece in pieces], dtype="<i8")
    return {"strings": name}


def _decoded_strings(name: Any, arrays: Arrays) -> list[str]:
    content, lengths = arrays.get(f"{name}.bytes"), arrays.get(f"{name}.lengths")
    if content is None or lengths is None or content.dtype != np.uint8 or lengths.dtype != np.int64:
        raise ModelFileError(f"the metadata names strings {name!r} that are not there")
    # Bounded first, so that no sum overflows.
    if lengths.ndim != 1 or (lengths < 0).any() or (lengths > content.size).any() or lengths.sum() != content.size:
        raise ModelFileError(f"the lengths of the strings {name!r} do not fit their bytes")
    data, ends = content.tobytes(), np.cumsum(lengths).tolist()
    try:
        pairs = zip([0, *ends[:-1]], ends, strict=True) if ends else ()
        return [data[start:stop].decode("utf-8", "surrogatepass") for start, stop in pairs]
    except UnicodeDecodeError as error:
        raise ModelFileError(f"the strings {name!r} are not UTF-8: {error}") from None


def _decoded(value: Any, arrays: Arrays) -> Any:
    """The inverse of :func:`_encoded`."""
    if isinstance(value, list):
        return [_decoded(entry, arrays) for entry in value]
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()), (None, None))
    if kind == "float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if kind == "tuple" and isinstance(content, list):
        return tuple(_decoded(entry, arrays) for entry in content)
    if kind == "dict" and isinstance(content, dict):
        return {key: _decoded(entry, arrays) for key, entry in content.items()}
    if kind == "items" and isinstance(content, list):
        if not all(isinstance(pair, list) and len(pair) == 2 and _is_key(pair[0]) for pair in content):
            raise ModelFileError("the metadata holds a damaged dict")
        return {key: _decoded(entry, arrays) for key, entry in content}
    if kind == "words":
        words = _decoded(content, arrays)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ModelFileError("the metadata holds a damaged array of strings")
        return np.array(words, dtype=np.str_)
    if kind == "flags" and isinstance(content, list) and all(isinstance(flag, bool) for flag in content):
        return np.array(content, dtype=np.bool_)
    if kind == "strings":
        return _decoded_strings(content, arrays)
    if kind == "array" and isinstance(content, str) and content in arrays:
        return arrays[content]
    if kind == "learner" and isinstance(content, str) and content in _learners():
        settings = value.get("settings")
        if isinstance(settings, dict):
            try:
                return _learners()[content](**{key: _decoded(entry, arrays) for key, entry in settings.items()})
            except (TypeError, ValueError) as error:
                raise ModelFileError(f"the settings of {content} are not valid: {error}") from None
    raise ModelFileError(f"the metadata holds a value of unknown kind {kind!r}")
