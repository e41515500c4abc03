"""Data sets as arrays, and the catalogue of known ones."""

from fedskew.data.catalogue import Entry, Facts, check, choose, listing, load
from fedskew.data.convert import from_arrays
from fedskew.data.dataset import Dataset, Raw, Reader, Rows, Split, datasets, stratified
from fedskew.data.download import fetch
from fedskew.data.source import root

__all__ = [
    "Dataset",
    "Entry",
    "Facts",
    "Raw",
    "Reader",
    "Rows",
    "Split",
    "check",
    "choose",
    "datasets",
    "fetch",
    "from_arrays",
    "listing",
    "load",
    "root",
    "stratified",
]
