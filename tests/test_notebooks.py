"""Every notebook runs from top to bottom, without an error and without a warning that its reader would see."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_without_errors_and_warnings(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # the kernel's own chatter is no output of the notebook
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error", f"{cell.id}: {output}"
            assert "Warning" not in _text(output), f"{cell.id}: {_text(output)}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_valid_and_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    for cell in notebook.cells:
        assert not cell.get("outputs"), f"{path.name}: strip the outputs of cell {cell.id}"
        assert cell.get("execution_count") is None


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS][:1] == ["01_first_fit"]


def _text(output) -> str:
    """What a reader sees of an output, pictures aside."""
    shown = [output.get("text", "")]
    shown += [str(part) for kind, part in output.get("data", {}).items() if not kind.startswith("image/")]
    return "\n".join(shown)
