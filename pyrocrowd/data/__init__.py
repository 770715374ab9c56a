"""The way in: the annotation table, its readers, named data sets and simulated crowds."""

from pyrocrowd.data.batch import Batch
from pyrocrowd.data.crowd import Crowd

__all__ = ["Batch", "Crowd"]
