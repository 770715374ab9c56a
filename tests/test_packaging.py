"""What is built from the tree is whole: every module, the command, the license, the version."""

import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import pyrocrowd

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built offline from a copy so that nothing is written into the tree."""
    tree, place = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("pyrocrowd", "models"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(place),
        str(tree),
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = place.glob("*.whl")
    with zipfile.ZipFile(built) as opened:
        yield opened


def test_a_wheel_holds_every_module_of_the_tree_and_nothing_else(wheel):
    tree = {path.relative_to(ROOT).as_posix() for path in (ROOT / "pyrocrowd").rglob("*.py")}
    tree |= {f"pyrocrowd/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "models").rglob("*.py")}
    assert "pyrocrowd/models/dawid_skene.py" in tree
    assert {name for name in wheel.namelist() if name.endswith(".py")} == tree


def test_a_wheel_installs_the_command(wheel):
    assert "pyrocrowd = pyrocrowd.cli:main" in _metadata(wheel, "entry_points.txt").splitlines()


def test_a_wheel_carries_the_license(wheel):
    assert _metadata(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in _metadata(wheel, "licenses/LICENSE")
    assert Parser().parsestr(_metadata(wheel, "METADATA"))["License-Expression"] == "Apache-2.0"


def test_all_files_that_name_the_version_agree(wheel):
    found = Parser().parsestr(_metadata(wheel, "METADATA"))["Version"]
    assert found == pyrocrowd.__version__
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)[1] == found
    assert re.search(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[1] == found


@pytest.mark.parametrize("module", ["pyrocrowd", "pyrocrowd.cli"])
def test_importing_costs_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def _metadata(wheel, name) -> str:
    (path,) = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()
