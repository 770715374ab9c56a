"""The way in: the annotation table, its readers, named data sets and simulated crowds.

What needs torch is imported when it is first used, so that the flags of the simulators can be listed without it.
"""

from importlib import import_module

_HOMES = {"Batch": "pyrocrowd.data.batch", "Crowd": "pyrocrowd.data.crowd"}

__all__ = ["Batch", "Crowd"]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'pyrocrowd.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__():
    return sorted([*globals(), *_HOMES])
