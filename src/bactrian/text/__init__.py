"""Text: readers and writers, tokens with their places, label schemes, features and scores of entities."""

from bactrian.text.columns import (
    Entity,
    column_lines,
    find_entities,
    json_line,
    prediction_lines,
    read_columns,
    tagged_text,
    write_columns,
    write_lines,
)
from bactrian.text.documents import Document, joined_text, skip_edges
from bactrian.text.entities import (
    SCHEMES,
    Score,
    Scores,
    allowed_transitions,
    convert,
    entity_scores,
    entity_tags,
    guess_scheme,
    spans,
    tags_of,
    token_scores,
)
from bactrian.text.features import CONLL, SEMINARS, EntityFeatures, flatten, register_features, word_shape
from bactrian.text.tagged import SEMINAR_FIELDS, parse_seminar, read_seminars, read_tagged, write_tagged
from bactrian.text.tokenizer import register_tokenizer, tokenize

__all__ = [
    "CONLL",
    "SCHEMES",
    "SEMINARS",
    "SEMINAR_FIELDS",
    "Document",
    "Entity",
    "EntityFeatures",
    "Score",
    "Scores",
    "allowed_transitions",
    "column_lines",
    "convert",
    "entity_scores",
    "entity_tags",
    "find_entities",
    "flatten",
    "guess_scheme",
    "joined_text",
    "json_line",
    "parse_seminar",
    "prediction_lines",
    "read_columns",
    "read_seminars",
    "read_tagged",
    "register_features",
    "register_tokenizer",
    "skip_edges",
    "spans",
    "tagged_text",
    "tags_of",
    "token_scores",
    "tokenize",
    "word_shape",
    "write_columns",
    "write_lines",
    "write_tagged",
]
