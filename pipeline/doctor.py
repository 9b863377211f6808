# SPDX-License-Identifier: BSD-3-Clause
"""What this machine offers, what would be used and why."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from skydelta.errors import ConfigError, DeviceError
from skydelta.kernels.backend import cuda_device_count, cupy, resolve

PROBE = 1 << 20
"""Bytes of the file that is written and read again to see the route."""


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    name: str
    value: str
    verdict: str
    refused: bool = False


def examine(device: str = "auto") -> list[Finding]:
    """Look at the machine: device, CUDA, storage, MPI, threads, versions, caches."""
    machine = [_device(device), _cuda(), _reading(), _to_devices(), *_optional()]
    return [*machine, _threads(), _blas(), *_versions(), _cache()]


def _device(asked: str) -> Finding:
    count, why = cuda_device_count()
    try:
        used = resolve(asked).name
    except DeviceError as e:
        return Finding("device", asked, str(e), refused=True)
    reason = why if used == "cpu" and asked == "auto" else f"asked for {asked}; CUDA devices: {count}"
    return Finding("device", used, reason)


def _cuda() -> Finding:
    count, why = cuda_device_count()
    if not count:
        return Finding("CUDA", "none", why)
    runtime = cupy().cuda.runtime
    names = []
    for i in range(count):
        p = runtime.getDeviceProperties(i)
        names.append(f"{p['name'].decode()} sm_{p['major']}{p['minor']} {p['totalGlobalMem'] / 2**30:.0f} GiB")
    return Finding(
        "CUDA", "; ".join(names), f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}"
    )


def _reading() -> Finding:
    """The route that a local file takes, shown by reading one."""
    from skydelta.io.routes import ROUTES, open_source
    from skydelta.io.stores import STORES

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe"
        path.write_bytes(bytes(PROBE))
        content, counted, _ = open_source(path)
        try:
            content.read(0, PROBE)
        finally:
            content.close()
    return Finding(
        "reading",
        f"{counted.route}: {ROUTES[counted.route]} (a probe: {counted.reads} reads, {counted.bytes} bytes); "
        f"URLs: {', '.join(('http', *STORES))}",
        "files are read into host memory",
    )


def _to_devices() -> Finding:
    """How bytes of files would come into device memory, shown by what KvikIO and its driver have counted in a probe."""
    from skydelta.io import direct

    driver = f"nvidia-fs driver: {'loaded' if direct.NVIDIA_FS.exists() else 'not loaded'}"
    try:
        found = direct.probe()
    except ConfigError as e:
        return Finding("reading to devices", "", str(e), refused=True)
    if not found.usable:
        return Finding("reading to devices", "page-locked host memory", f"{found.why}; {driver}")
    seen = found.seen
    counted = [f"{name} {size} bytes" for name, size in seen["by_backend"].items()]
    counted += [f"nvidia-fs {key} +{n}" for key, n in seen["nvidia_fs"].items() if n]
    mode = "compatibility mode" if seen["compatibility_mode"] else "cuFile"
    said = f"{driver}; a probe: {', '.join(counted) or 'no counters in this release'}"
    return Finding("reading to devices", f"KvikIO {seen['version']}, {mode}", said)


def _optional() -> list[Finding]:
    out = []
    for module, package, use in (
        ("cupy", "cupy-cuda13x", "GPU kernels"),
        ("kvikio", "kvikio-cu13", "GPUDirect Storage"),
        ("mpi4py", "mpi4py", "the executor mpi"),
        ("s3fs", "s3fs", "s3 URLs"),
    ):
        found = importlib.util.find_spec(module) is not None
        out.append(Finding(module, _version(package) if found else "not installed", use))
    return out


def _threads() -> Finding:
    """The threading layer numba will use: ``workqueue`` ends a process that runs parallel kernels from two threads."""
    from numba import config

    available = [layer for layer in ("tbb", "omp") if _importable(f"numba.np.ufunc.{layer}pool")]
    forced = str(config.THREADING_LAYER)
    used = forced if forced in ("tbb", "omp", "workqueue") else (available[0] if available else "workqueue")
    if used == "workqueue":
        verdict = "not thread-safe: it kills a process that runs parallel kernels from several threads; install tbb"
        return Finding("numba threads", used, verdict, refused=True)
    return Finding("numba threads", used, f"thread-safe; {config.NUMBA_NUM_THREADS} threads")


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _blas() -> Finding:
    import numpy  # noqa: F401  (loads the BLAS that is examined)
    from threadpoolctl import threadpool_info

    blas = [f"{i['internal_api']} {i.get('version', '')}" for i in threadpool_info() if i["user_api"] == "blas"]
    return Finding(
        "BLAS", ", ".join(blas) or "none seen", "one thread inside a run: small problems gain nothing from more"
    )


def _versions() -> list[Finding]:
    names = ("skydelta", "numpy", "scipy", "astropy", "numba", "pyarrow", "pydantic", "dask")
    text = ", ".join(f"{n} {_version(n)}" for n in names)
    return [Finding("versions", f"python {platform.python_version()}", text)]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def _cache() -> Finding:
    numba = os.environ.get("NUMBA_CACHE_DIR", "beside the package, or the user's cache folder")
    cuda = os.environ.get("CUPY_CACHE_DIR", str(Path.home() / ".cupy" / "kernel_cache"))
    return Finding("kernel caches", f"numba: {numba}", f"cupy: {cuda}")
