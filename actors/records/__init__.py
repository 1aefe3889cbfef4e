"""Records out of files and data sets, from any place in them on: for the learner's documents and the dispatcher's
tasks. No actor, no order of its own."""

from headrace.actors.records.delimited import JsonLinesRecords, TextRecords
from headrace.actors.records.hub import HubRecords
from headrace.actors.records.parquet import ParquetRecords
from headrace.actors.records.protocol import Paths, Records
from headrace.actors.records.python import PythonRecords

__all__ = ["HubRecords", "JsonLinesRecords", "ParquetRecords", "Paths", "PythonRecords", "Records", "TextRecords"]
