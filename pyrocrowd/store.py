"""A run on disk, without pickle: tables as CSV, the posterior as NetCDF, weights as safetensors, the rest as JSON.

A run is written whole or not at all (see `folders`), so that a failure leaves no half a run and costs no older one.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyro
import torch
import xarray as xr
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pyrocrowd import zoo
from pyrocrowd.check import Anatomy
from pyrocrowd.data import Crowd
from pyrocrowd.errors import PyrocrowdError
from pyrocrowd.folders import Kind
from pyrocrowd.infer.run import Learned
from pyrocrowd.infer.settings import ENGINES
from pyrocrowd.result import Fit

TABLES = "labels.csv", "annotators.csv", "annotations.csv"
RUN = Kind("run", "run.json", ("run.json", *TABLES, "posterior.nc", "weights.safetensors", "model.py"))
IN_RECORD = {"model", "engine", "seed", "data", "metrics", "notes", "wall_time_seconds", "anatomy", "losses"}


def save(fit: Fit, folder, force=False, extra=None) -> Path:
    """Write everything that `load` needs, and the tables that people read."""
    with RUN.written(folder, force) as place:
        _write(fit, place, extra or {})
    return Path(folder)


def _write(fit: Fit, place: Path, extra: dict) -> None:
    fit.labels().to_csv(place / "labels.csv", index=False)
    fit.annotators().to_csv(place / "annotators.csv", index=False)
    if "annotations" in [*fit.anatomy.noted.values(), *fit.anatomy.enumerated.values()]:
        fit.annotations().to_csv(place / "annotations.csv", index=False)
    fit.to_arviz().to_netcdf(str(place / "posterior.nc"), engine="h5netcdf")
    save_file({name: value.contiguous() for name, value in fit.weights.items()}, place / "weights.safetensors")
    model = {"name": fit.model.name, "reference": fit.model.reference, "file": None}
    if not fit.model.reference:  # nothing that another machine could import: the source goes along
        source = fit.model.source() if isinstance(fit.model, _SavedModel) else zoo.source_of(fit.model)
        if source is not None:
            model["file"] = "model.py"
            (place / "model.py").write_text(source, encoding="utf-8")
    record = {
        "pyrocrowd": version("pyrocrowd"),
        "model": model,
        "hyper_parameters": fit.hyper_parameters,
        "engine": {"name": fit.engine.name, **fit.engine.settings()},
        "seed": fit.seed,
        "data": {"fingerprint": fingerprint(fit.crowd), **_sizes(fit.crowd)},
        "metrics": fit.metrics(),
        "notes": fit.notes,
        "wall_time_seconds": fit.wall_time,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "anatomy": asdict(fit.anatomy),
        "history": fit.history,
        "log_likelihoods": np.asarray(fit.log_likelihoods).tolist(),
        "losses": fit.losses,
        **extra,
    }
    (place / "run.json").write_text(json.dumps(record, indent=1, default=_plain), encoding="utf-8")


def load(folder) -> Fit:
    """Read a run back; nothing else is needed. The model itself is looked up when new items are to be labelled."""
    folder = Path(folder)
    record = read_record(folder)
    try:
        return _fit_from(folder, record)
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        what = " ".join(str(error).split())
        raise PyrocrowdError(f"The run in {folder} is not whole ({type(error).__name__}: {what}): fit again.") from None


def _fit_from(folder, record) -> Fit:
    groups = {}
    for name in ("posterior", "log_likelihood", "observed_data", "constant_data", "sample_stats"):
        try:
            with xr.open_dataset(folder / "posterior.nc", group=name, engine="h5netcdf") as group:
                groups[name] = group.load()
        except OSError:
            if name not in ("posterior", "sample_stats"):  # these two are written only where there is something in them
                raise
    anatomy = Anatomy(**record["anatomy"])
    crowd = _crowd_from(groups, record["data"])
    draws = {name: draws.values for name, draws in groups.get("posterior", {}).items()}
    settings = dict(record["engine"])
    engine = ENGINES[settings.pop("name")](**settings)
    constant = groups["constant_data"]
    return Fit(
        model=_SavedModel(folder, record["model"]),
        hyper_parameters=record["hyper_parameters"],
        engine=engine,
        seed=record["seed"],
        crowd=crowd,
        anatomy=anatomy,
        weights=load_file(folder / "weights.safetensors"),
        learned=Learned(
            {name: draws[name] for name in anatomy.latent},
            record["losses"],
            record["history"],
            {name: stat.values for name, stat in groups.get("sample_stats", {}).items()},
            record["notes"],
        ),
        truth=constant["truth_probability"].values,
        marginals={
            name: constant[f"{name}_probability"].values
            for name in anatomy.enumerated
            if f"{name}_probability" in constant and name != "truth"
        },
        pointwise=groups["log_likelihood"]["label"].values,
        log_likelihood=np.asarray(record["log_likelihoods"]),
        noted={name: constant[name].values for name in anatomy.noted},
        recorded={name: values for name, values in draws.items() if name not in anatomy.latent},
        wall_time=record["wall_time_seconds"],
    )


def read_record(folder) -> dict:
    """What `run.json` says."""
    path = Path(folder) / "run.json"
    if not path.exists():
        raise PyrocrowdError(f"{folder} holds no run: there is no run.json in it.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise PyrocrowdError(f"{path} cannot be read: {error}") from None
    missing = IN_RECORD - set(record) if isinstance(record, dict) else IN_RECORD
    if missing:
        raise PyrocrowdError(f"{path} is not the record of a run: it has no {', '.join(sorted(missing))}.")
    return record


def fingerprint(crowd: Crowd) -> str:
    """The same for the same table, whatever order its rows come in."""
    order = np.lexsort((crowd.label, crowd.annotator, crowd.item))
    digest = hashlib.sha256()
    for column in (crowd.item, crowd.annotator, crowd.label):
        digest.update(np.ascontiguousarray(column[order]).tobytes())
    for names in (crowd.item_names, crowd.annotator_names, crowd.class_names):
        digest.update("\n".join(names.astype(str).tolist()).encode())
    return digest.hexdigest()


class _SavedModel:
    """The model of a saved run: its name at once, the thing itself when somebody asks for it."""

    def __init__(self, folder, entry):
        self.folder, self.name, self.reference, self.file = folder, entry["name"], entry["reference"], entry["file"]

    def source(self) -> str | None:
        return (self.folder / self.file).read_text(encoding="utf-8") if self.file else None

    def look_up(self) -> zoo.Model:
        if self.file:
            return zoo.find(f"{self.folder / self.file}:{self.name}")
        if self.reference:
            return zoo.find(self.reference)
        raise PyrocrowdError(
            f"The run holds no source of its model {self.name}, so it cannot label new items, only its own."
        )


def _sizes(crowd) -> dict:
    sizes = {name: getattr(crowd, f"n_{name}") for name in ("items", "annotators", "classes", "annotations")}
    return sizes | {"feature_shape": crowd.feature_shape}


def _crowd_from(groups, data) -> Crowd:
    """The crowd of a saved run. Features are not kept: zeros that take no memory stand in for their shape."""
    constant, observed = groups["constant_data"], groups["observed_data"]
    shape, known, described = data["feature_shape"], constant.get("known_truth"), constant.get("annotator_features")
    features = None if shape is None else np.broadcast_to(np.zeros((), np.float32), (data["items"], *shape))
    return Crowd(
        constant["item_index"].values,
        constant["annotator_index"].values,
        observed["label"].values,
        item_names=_names(constant["item"]),
        annotator_names=_names(constant["annotator"]),
        class_names=_names(constant["class"]),
        features=features,
        annotator_features=None if described is None else described.values,
        truth=None if known is None else known.values,
    )


def _names(coordinate) -> np.ndarray:
    values = coordinate.values
    return values if values.dtype.kind == "i" else values.astype(str).astype(object)


def _versions() -> dict:
    packages = {name: version(name) for name in ("numpy", "pandas", "arviz", "xarray")}
    return {"python": platform.python_version(), "torch": torch.__version__, "pyro": pyro.__version__, **packages}


def _plain(value):
    """Numbers of numpy and torch as plain ones; what JSON cannot hold, as its text."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return value.item()
    return value.tolist() if hasattr(value, "tolist") else str(value)
