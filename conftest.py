"""What pytest leaves alone: modules whose optional dependency is not there, so that a broken import is an error.

And parts that tests and examples register: none is left to the next.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["src/bactrian/torch.py", "src/bactrian/engines/torch/*"]


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Put back what a test registers."""
    from bactrian.camel import entropy
    from bactrian.experiments.table2 import message_features  # noqa: F401 - has registered its own by now
    from bactrian.learners import learn
    from bactrian.text import features, tokenizer

    tables = (learn.METHODS, entropy.REGISTERED, features.REGISTERED, tokenizer._REGISTERED)
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        if table != content:
            table.clear()
            table.update(content)
