"""pyrocrowd: from noisy labels to true labels, annotator skills and a classifier, each with honest uncertainty.

Everything public is here and is imported when it is first used, so that `import pyrocrowd` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version

__version__ = version("pyrocrowd")

_HOMES = {
    "Crowd": "pyrocrowd.data",
    "fit": "pyrocrowd.infer.run",
    "load": "pyrocrowd.store",
    "EM": "pyrocrowd.infer.settings",
    "MAP": "pyrocrowd.infer.settings",
    "SVI": "pyrocrowd.infer.settings",
    "NUTS": "pyrocrowd.infer.settings",
    "Fit": "pyrocrowd.result",
    "Confused": "pyrocrowd.distributions",
    "CrowdClassifier": "pyrocrowd.estimator",
    "PyrocrowdError": "pyrocrowd.errors",
    "PyrocrowdWarning": "pyrocrowd.errors",
    "metrics": "pyrocrowd",
    "plots": "pyrocrowd",
    "zoo": "pyrocrowd",
    "check": "pyrocrowd",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'pyrocrowd' has no attribute {name!r}")
    home = _HOMES[name]
    return import_module(f"{home}.{name}") if home == "pyrocrowd" else getattr(import_module(home), name)


def __dir__():
    return sorted([*globals(), *_HOMES])
