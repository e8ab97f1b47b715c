"""What pytest leaves alone: modules whose optional dependency is not there, so that a broken import is an error."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["src/bactrian/torch.py", "src/bactrian/engines/torch/*"]
