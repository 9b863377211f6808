# SPDX-License-Identifier: BSD-3-Clause
"""The house rules that a machine can hold: layers, lazy heavy imports, names of imports, size and licence of files."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("errors", "kernels", "io", "stages", "pipeline")
FOLDERS = {"kernels", "io", "stages", "pipeline", "workflows"}
# Heavy or optional packages and the one place that may import each, inside a function only.
LAZY = {
    "astroscrappy": "stages/cosmicrays.py",
    "cupy": "kernels/backend.py",
    "cupyx": "kernels/backend.py",
    "fsspec": "io/stores.py",
    "kvikio": "io/direct.py",
    "dask": "pipeline/executors/dask.py",
    "distributed": "pipeline/executors/dask.py",
    "mpi4py": "pipeline/executors/mpi.py",
}
PACKAGE_FILES = sorted(
    path
    for folder in ("skydelta", *FOLDERS)
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
OTHER_FILES = sorted(
    path for folder in ("tests", "benchmarks", "examples", "docs") for path in (ROOT / folder).rglob("*.py")
)
CUDA_FILES = sorted(path for pattern in ("*.cu", "*.cuh") for path in (ROOT / "kernels" / "cuda").glob(pattern))


def name(path):
    return path.relative_to(ROOT).as_posix()


def imports(path):
    """(module, at module level, line) of every import statement and of importlib.import_module with a constant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        top = id(node) not in inside and id(node) not in typing_only
        if isinstance(node, ast.Import):
            yield from ((alias.name, top, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: relative import"
            # ``from skydelta.io import fits`` names a module too.
            yield from ((f"{node.module}.{alias.name}", top, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((a.value, top, node.lineno) for a in node.args[:1] if isinstance(a, ast.Constant))


def layer(module):
    """Height of a skydelta module, None for other packages and for the root."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if parts[0] == "skydelta" and len(parts) > 1 and parts[1] in LAYERS else None


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=name)
def test_imports_go_down(path):
    own = layer(".".join(("skydelta", *path.relative_to(ROOT).with_suffix("").parts)))
    if own is None and path.parent.name == "skydelta":
        own = LAYERS.index("errors") if path.stem == "errors" else len(LAYERS)
    wrong = [f"line {line}: {module}" for module, _, line in imports(path) if (layer(module) or 0) > own]
    assert not wrong, f"{name(path)} imports a higher layer: {'; '.join(wrong)}"


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=name)
def test_heavy_packages_are_imported_lazily_and_in_one_place(path):
    for module, top, line in imports(path):
        place = LAZY.get(module.partition(".")[0])
        if place:
            assert name(path) == place, f"{name(path)}:{line} imports {module}; only {place} may"
            assert not top, f"{name(path)}:{line} imports {module} at module level"


@pytest.mark.parametrize("path", PACKAGE_FILES + OTHER_FILES, ids=name)
def test_nothing_is_imported_by_folder_name(path):
    for module, _, line in imports(path):
        first, _, rest = module.partition(".")
        # The standard library has an ``io`` too, with no sub-modules.
        stdlib = first == "io" and not any((ROOT / "io" / f"{rest or '-'}{end}").exists() for end in ("", ".py"))
        assert first not in FOLDERS or stdlib, f"{name(path)}:{line} imports {module}; write skydelta.{module}"


@pytest.mark.parametrize("path", PACKAGE_FILES + OTHER_FILES + CUDA_FILES, ids=name)
def test_file_has_a_licence_line_and_a_readable_length(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 600
    assert any("SPDX-License-Identifier: BSD-3-Clause" in line for line in lines[:2])


def test_errors_import_nothing_of_the_package():
    assert not [m for m, _, _ in imports(ROOT / "skydelta" / "errors.py") if m.startswith("skydelta")]
