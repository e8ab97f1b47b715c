"""Table 1 of the paper: named entities of CoNLL-2003."""
