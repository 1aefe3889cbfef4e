"""Where the documents of `pretrain` and `sft` come from: files, data sets, functions, our own trajectories. A source of
one's own is a class with `documents`, named by `_target_`."""

from headrace.actors.learner.documents.corpora import Corpus, HubDataset, JsonLines, Parquet, TextFiles
from headrace.actors.learner.documents.cursor import Replayed, cursor_of
from headrace.actors.learner.documents.generated import GeneratedDocuments
from headrace.actors.learner.documents.protocol import Document, DocumentCursor, DocumentSource, TokenDocument
from headrace.actors.learner.documents.trajectories import TrajectoryDocuments

__all__ = [
    "Corpus",
    "Document",
    "DocumentCursor",
    "DocumentSource",
    "GeneratedDocuments",
    "HubDataset",
    "JsonLines",
    "Parquet",
    "Replayed",
    "TextFiles",
    "TokenDocument",
    "TrajectoryDocuments",
    "cursor_of",
]
