"""The arguments of a simulator: the limits they keep, the record of a call, and the flags that they become."""

from __future__ import annotations

import inspect
import re
from functools import wraps
from numbers import Integral, Real

import numpy as np

PLAIN = (bool, int, float, str)


def whole(least, **values) -> list[str]:
    """A sentence for each value that is no whole number of at least `least`."""
    return [
        f"{name} must be a whole number of at least {least}, not {value!r}."
        for name, value in values.items()
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least
    ]


def between(low, high, **values) -> list[str]:
    """A sentence for each value that is no number from `low` to `high`."""
    return [
        f"{name} must be a number from {low:g} to {high:g}, not {value!r}."
        for name, value in values.items()
        if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high
    ]


def recorded(simulator):
    """What the function returns remembers who made it and from which arguments."""
    signature = inspect.signature(simulator)

    @wraps(simulator)
    def remembered(*values, **keywords):
        call = signature.bind(*values, **keywords)
        call.apply_defaults()
        made = simulator(*values, **keywords)
        made.simulator = simulator.__name__
        made.arguments = {name: _noted(value) for name, value in call.arguments.items()}
        return made

    return remembered


def _noted(value):
    """A setting as it is; of data handed in only the shape."""
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else f"an array of shape {np.shape(value)}"


def summary(simulator) -> str:
    """First line of the docstring."""
    return inspect.getdoc(simulator).split("\n")[0]


def flags(simulator) -> list[tuple]:
    """Name, default and sentence of help of every argument that a word can say; arrays have no default and no flag."""
    help_of = _sentences(simulator)
    parameters = inspect.signature(simulator).parameters.values()
    return [(one.name, one.default, help_of[one.name]) for one in parameters if isinstance(one.default, PLAIN)]


def _sentences(simulator) -> dict[str, str]:
    """The first sentence on each argument in a numpydoc docstring."""
    entries = inspect.getdoc(simulator).partition("Parameters\n----------\n")[2]
    found = {}
    for entry in re.split(r"\n(?=\S)", entries):
        names, _, about = entry.partition("\n")
        sentence = re.split(r"(?<=\.)\s", " ".join(about.split()))[0]
        found.update(dict.fromkeys(re.split(r",\s*", names.split(" : ")[0]), sentence))
    return found
