"""Where a model's name leads: `dawid_skene`, `my_model.py`, `my_model.py:story`, `package.module:attribute`, an object.

Other packages add models through the entry-point group `pyrocrowd.models`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import textwrap
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from pyrocrowd.errors import PyrocrowdError, did_you_mean, listed

ENTRY_POINTS = "pyrocrowd.models"
TAKEN = ("model", "crowd", "engine", "seed", "device")


@dataclass(repr=False)
class Model:
    """A model and what is known about it before it runs.

    Attributes
    ----------
    name : str
        What to call it.
    reference : str
        What finds it again: a zoo name, `package.module:attribute`, or empty for an object of this session.
    target : callable
        A function of one crowd, a class whose instances are one, or such an instance.
    m_step : callable or None
        The closed-form M-step that enables the EM engine.
    """

    name: str
    reference: str
    target: Callable
    m_step: Callable | None = None
    hyper_parameters: dict = field(init=False)

    def __post_init__(self):
        signature = inspect.signature(self.target.__init__ if inspect.isclass(self.target) else self.target)
        names = list(signature.parameters.values())
        names = names[1:] if inspect.isclass(self.target) else names
        if not names or names[0].kind not in (names[0].POSITIONAL_ONLY, names[0].POSITIONAL_OR_KEYWORD):
            raise PyrocrowdError(f"The model {self.name} takes no crowd: a model is a function of one crowd.")
        self.hyper_parameters = {
            parameter.name: parameter.default
            for parameter in names[1:]
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        }
        taken = [name for name in self.hyper_parameters if name in TAKEN]
        if taken:
            raise PyrocrowdError(f"{self.name}: `{taken[0]}` is an argument of fit itself; name the keyword otherwise.")

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.target) or "").split("\n")[0]

    @property
    def page(self) -> str:
        """The whole docstring: of the file where it is one paper, else of the model."""
        module = inspect.getmodule(self.target)
        return (module.__doc__ if module and module.__doc__ else inspect.getdoc(self.target)) or ""

    def __repr__(self) -> str:
        keywords = ", ".join(f"{name}={default!r}" for name, default in self.hyper_parameters.items())
        return f"{self.name}({keywords}): {self.summary}"

    @property
    def has_networks(self) -> bool:
        return inspect.isclass(self.target) or hasattr(self.target, "parameters")

    def settle(self, given: dict) -> dict:
        """The hyper-parameters of a run: the defaults with the given values in their place."""
        problems = []
        settled = dict(self.hyper_parameters)
        for name, value in given.items():
            if name not in settled:
                known = listed(settled, 12) or "none"
                problems.append(
                    f"{self.name} has no hyper-parameter {name!r} (it has {known}).{did_you_mean(name, settled)}"
                )
                continue
            settled[name] = value
        missing = [name for name, value in settled.items() if value is inspect.Parameter.empty]
        problems += [f"{self.name} needs a value for {name}." for name in missing]
        if problems:
            raise PyrocrowdError(problems)
        return settled

    def bind(self, crowd, hyper_parameters: dict) -> Callable:
        """The model as a function of one batch. Classes are built here, once per fit."""
        if inspect.isclass(self.target):
            return self.target(crowd, **hyper_parameters)
        return partial(self.target, **hyper_parameters) if hyper_parameters else self.target

    def bind_m_step(self, bound, hyper_parameters: dict) -> Callable | None:
        """The M-step: a method of the bound model, or a function with the hyper-parameters that it asks for by name."""
        if self.m_step is None or inspect.isclass(self.target):
            return getattr(bound, "m_step", None)
        asked = inspect.signature(self.m_step).parameters
        return partial(self.m_step, **{name: value for name, value in hyper_parameters.items() if name in asked})


def find(model) -> Model:
    """The model that a name, a path or an object stands for."""
    if isinstance(model, Model):
        return model
    if hasattr(model, "look_up"):  # the model of a saved run, which looks itself up
        return model.look_up()
    if not isinstance(model, (str, Path)):
        return _from_object(model)
    name = str(model)
    if name in builtin_names():
        return _from_module(importlib.import_module(f"pyrocrowd.models.{name}"), name, name)
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            return _from_object(point.load(), name, name)
    if name.endswith(".py"):
        return _from_file(Path(name), "")
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        return _from_file(Path(place), attribute)
    if place:
        return _from_object(_attribute(_import(place, name), attribute, place), attribute, name)
    hint = did_you_mean(name, names())
    raise PyrocrowdError(f"There is no model {name!r} (there are {listed(names(), 30)}).{hint}")


def names() -> list[str]:
    """All models that can be named by one word."""
    return builtin_names() + sorted(point.name for point in entry_points(group=ENTRY_POINTS))


def builtin_names() -> list[str]:
    """The models that come with pyrocrowd: the files in `models/`."""
    package = importlib.import_module("pyrocrowd.models")
    return sorted(entry.name for entry in pkgutil.iter_modules(package.__path__) if not entry.name.startswith("_"))


def _from_module(module, name, reference, file=None) -> Model:
    """One paper = one file: the attribute with the file's name is the model (or its class, in CamelCase)."""
    wanted = {name, "".join(word.title() for word in name.split("_"))}
    found = [getattr(module, candidate) for candidate in wanted if hasattr(module, candidate)]
    if not found:
        here = [attribute for attribute in vars(module).values() if _is_story(attribute, module)]
        if len(here) != 1:
            stories = listed(attribute.__name__ for attribute in here) or "none"
            raise PyrocrowdError(
                f"{name} should hold one model, a function or class whose first argument is `crowd`; it has {stories}: "
                f"say which with {file or reference}:NAME."
            )
        found = here
    return Model(reference or found[0].__name__, reference, found[0], _m_step_of(found[0], module))


def _from_object(model, name=None, reference="") -> Model:
    if not callable(model):
        raise PyrocrowdError(f"A model is a function of one crowd, or its name, not {type(model).__name__}.")
    name = name or getattr(model, "__name__", type(model).__name__)
    module = inspect.getmodule(model if hasattr(model, "__name__") else type(model))
    return Model(name, reference or _reference_of(model, module), model, _m_step_of(model, module))


def _from_file(path: Path, attribute: str) -> Model:
    if not path.exists():
        raise PyrocrowdError(f"The model file {path} does not exist.")
    module_name = f"pyrocrowd_user_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that inspect finds the source and dataclasses find their module
    try:
        spec.loader.exec_module(module)
    except PyrocrowdError:
        raise
    except Exception as error:
        raise PyrocrowdError(f"{path} does not run: {type(error).__name__}: {error}") from error
    if attribute:
        target = _attribute(module, attribute, path)
        return Model(attribute, "", target, _m_step_of(target, module))
    return _from_module(module, path.stem, "", file=path)


def _import(place, name):
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise PyrocrowdError(f"The model {name} cannot be imported: {error}.") from error


def _attribute(module, attribute, place):
    if not hasattr(module, attribute):
        raise PyrocrowdError(f"{place} has no {attribute!r}.{did_you_mean(attribute, vars(module))}")
    return getattr(module, attribute)


def _is_story(attribute, module) -> bool:
    """Defined in this file, and its first argument is called crowd."""
    if not callable(attribute) or getattr(attribute, "__module__", None) != module.__name__:
        return False
    if attribute.__name__.startswith("_") or attribute.__name__ == "m_step":
        return False
    signature = inspect.signature(attribute.__init__ if inspect.isclass(attribute) else attribute)
    first = [name for name in signature.parameters if name != "self"][:1]
    return first == ["crowd"]


def _m_step_of(model, module):
    """An attribute of the model, or the file's own `m_step` (a notebook may hold many models: there, attach it)."""
    if hasattr(model, "m_step"):
        return model.m_step
    in_file = module is not None and module.__name__ != "__main__"
    return getattr(module, "m_step", None) if in_file else None


def _reference_of(model, module) -> str:
    """`package.module:attribute` where another process can import it, else empty."""
    name = getattr(model, "__qualname__", "")
    importable = module is not None and module.__name__ != "__main__" and "<locals>" not in name and name
    if not importable or module.__name__.startswith("pyrocrowd_user_"):
        return ""
    if module.__name__.startswith("pyrocrowd.models."):
        return module.__name__.rsplit(".", 1)[1]
    return f"{module.__name__}:{name}"


def source_of(model: Model) -> str | None:
    """Source text that defines the model in a file of its own, or None where Python does not know it.

    A model from a file takes its whole file along; one from a notebook takes its own lines, those of the functions and
    classes it uses, and imports for the modules and names it mentions.
    """
    target = model.target if hasattr(model.target, "__name__") else type(model.target)
    module = inspect.getmodule(target)
    try:
        if module is not None and module.__name__ != "__main__":
            return inspect.getsource(module)
        pieces = _gather_source(target, vars(module) if module else target.__globals__, {})
        if model.m_step is not None and hasattr(target, "m_step") and not inspect.isclass(target):
            _gather_source(model.m_step, model.m_step.__globals__, pieces)
            pieces[f"{target.__name__}.m_step"] = f"{target.__name__}.m_step = {model.m_step.__name__}\n"
        return "\n\n".join(pieces.values())
    except (OSError, TypeError, AttributeError):
        return None


def _gather_source(target, names_around: dict, pieces: dict) -> dict:
    """Collect, depth first, the source of `target` and of everything global that it mentions."""
    source = textwrap.dedent(inspect.getsource(target))
    pieces.setdefault(target.__name__, "")  # seen: mutual references end here
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "id", None)
        if not isinstance(node, ast.Name) or name in pieces or name not in names_around:
            continue
        value = names_around[name]
        if inspect.ismodule(value):
            pieces[name] = f"import {value.__name__} as {name}"
        elif callable(value) and getattr(value, "__module__", "__main__") != "__main__":
            pieces[name] = f"from {value.__module__} import {value.__name__} as {name}"
        elif callable(value) and hasattr(value, "__name__"):
            _gather_source(value, names_around, pieces)
        elif isinstance(value, (int, float, str, bool, tuple, list, dict, type(None))):
            pieces[name] = f"{name} = {value!r}"
    pieces[target.__name__] = pieces.pop(target.__name__) + source  # after all that it needs
    return pieces
