# SPDX-License-Identifier: BSD-3-Clause
"""A fused chain gives, to the bit, what NumPy gives step by step; its CUDA compiles; its loop is kept on disk."""

import os
import subprocess
import sys

import numpy as np
import pytest
import support_nvrtc

from skydelta.kernels.backend import resolve
from skydelta.kernels.core import fused, source
from skydelta.kernels.core.fused import FusedKernel, Step
from skydelta.kernels.cpu.jit import inline

NO_DATA = 4
CUDA = """
HD void scale_subtract(float a, float b, float factor, float& d) { d = a - factor * b; }
HD void add_variance(float va, float vb, float factor, float& v) { v = va + factor * factor * vb; }
HD void merge_masks(int ma, int mb, int& m) { m = ma | (mb << 8); }
HD void blank(float d, float v, int m, float& d_out, float& v_out, int& m_out)
{
    const bool bad = !is_finite(d) || !(v > 0.0f);
    d_out = bad ? quiet_nan() : d;
    v_out = bad ? quiet_nan() : v;
    m_out = bad ? m | 4 : m;
}
"""


@inline
def scale_subtract(a, b, factor):
    return a - factor * b


@inline
def add_variance(va, vb, factor):
    return va + factor * factor * vb


@inline
def merge_masks(ma, mb):
    return ma | (mb << 8)


@inline
def blank(d, v, m):
    if not np.isfinite(d) or not v > 0:
        return np.float32(np.nan), np.float32(np.nan), m | 4
    return d, v, m


STEPS = (
    Step("subtract", ("a", "b", "factor"), ("d",), scale_subtract, "scale_subtract", "chain.cuh"),
    Step("variance", ("va", "vb", "factor"), ("v",), add_variance, "add_variance", "chain.cuh"),
    Step("masks", ("ma", "mb"), ("m",), merge_masks, "merge_masks", "chain.cuh"),
    Step("blank", ("d", "v", "m"), ("d", "v", "m"), blank, "blank", "chain.cuh"),
)
FLOATS = ("a", "b", "va", "vb", "d", "v", "factor")
TYPES = dict.fromkeys(FLOATS, "float32") | dict.fromkeys(("ma", "mb", "m"), "int32")


@pytest.fixture
def define(monkeypatch):
    """Define kernels that are forgotten after the test, with their device code in a file that only the test has."""
    monkeypatch.setattr(fused, "_chains", {})
    files = source.read
    monkeypatch.setattr(source, "read", lambda file: CUDA if file == "chain.cuh" else files(file))
    return lambda steps=STEPS, **changes: FusedKernel(
        **{
            "name": "chain",
            "steps": steps,
            "types": TYPES,
            "outputs": ("d", "v", "m"),
            "scalars": ("factor",),
            **changes,
        }
    )


def values(rng, shape):
    planes = {name: rng.normal(100, 30, shape).astype(np.float32) for name in ("a", "b", "va", "vb")}
    planes["a"][rng.random(shape) < 0.05] = np.nan
    planes["vb"][rng.random(shape) < 0.05] = np.inf
    planes["va"][rng.random(shape) < 0.05] = -1e9
    masks = {name: rng.integers(0, 4, shape).astype(np.int32) for name in ("ma", "mb")}
    return {**planes, **masks, "factor": 0.7371}


def expected(a, b, va, vb, ma, mb, factor):
    f = np.float32(factor)
    d, v, m = a - f * b, va + f * f * vb, ma | (mb << 8)
    bad = ~np.isfinite(d) | ~(v > 0)
    d[bad] = v[bad] = np.nan
    m[bad] |= NO_DATA
    return {"d": d, "v": v, "m": m}


@pytest.mark.parametrize("shape", [(37, 53), (1, 1), (5, 3, 7), (11,), (0, 4)])
def test_chain_equals_numpy_to_the_bit(define, rng, shape):
    given = values(rng, shape)
    before = {name: np.copy(value) for name, value in given.items()}
    got, want = define()(**given), expected(**given)
    assert list(got) == ["d", "v", "m"]
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], strict=True)
    for name in given:
        np.testing.assert_array_equal(given[name], before[name])


def test_chain_equals_its_steps_one_by_one(define, rng):
    given = values(rng, (31, 17))
    whole = define()(**given)
    have = dict(given)
    for step in STEPS:
        scalars = tuple(n for n in step.inputs if n == "factor")
        one = define((step,), name=f"only_{step.name}", outputs=step.outputs, scalars=scalars)
        have |= one(**{name: have[name] for name in step.inputs})
    for name, plane in whole.items():
        assert plane.tobytes() == have[name].tobytes()


def test_planes_are_what_no_step_makes(define):
    assert define().planes == ("a", "b", "va", "vb", "ma", "mb")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": ("nothing",)}, "no type"),
        ({"outputs": ("a",)}, "no step makes the output a"),
        ({"scalars": ("factor", "d")}, "a step writes the scalar d"),
        ({"types": TYPES | {"m": "int16"}}, "no type in float32, float64, int32, bool, complex64 for m"),
    ],
)
def test_a_wrong_definition_says_what_is_wrong(define, changes, message):
    with pytest.raises(ValueError, match=message):
        define(**changes)


@inline
def clipped(a, least):
    return a if a > least else least


CLIP = {
    "steps": (Step("clip", ("a", "least"), ("d",), clipped, "clipped", "chain.cuh"),),
    "types": dict.fromkeys(("a", "least", "d"), "float32"),
    "outputs": ("d",),
    "scalars": (),
    "per_tile": ("least",),
}


@pytest.mark.parametrize("shape", [(5, 3, 7), (4, 6)])
def test_one_number_for_each_image_of_a_stack(define, rng, shape):
    a, least = (rng.normal(size=s).astype(np.float32) for s in (shape, shape[:1]))
    got = define(**CLIP)(a=a, least=least)["d"]
    np.testing.assert_array_equal(got, np.maximum(a, least.reshape(-1, *[1] * (len(shape) - 1))), strict=True)
    with pytest.raises(ValueError, match=r"least is float32 \(1,\), expected float32 \("):
        define(**CLIP, name="other")(a=a, least=least[:1])


def test_outputs_go_where_they_are_sent(define, rng):
    a, least = (rng.normal(size=s).astype(np.float32) for s in ((5, 3, 7), 5))
    chain, stack = define(**CLIP), np.empty((2, 5, 3, 7), np.float32)
    assert np.shares_memory(chain(out={"d": stack[1]}, a=a, least=least)["d"], stack)
    np.testing.assert_array_equal(stack[1], chain(a=a, least=least)["d"])
    with pytest.raises(ValueError, match="d to write to is not C-contiguous"):
        chain(out={"d": np.empty((5, 7, 3), np.float32).transpose(0, 2, 1)}, a=a, least=least)


def test_a_name_is_used_once(define):
    define()
    with pytest.raises(ValueError, match="defined twice"):
        define()


def test_wrong_values_are_refused(define, rng):
    chain, given = define(), values(rng, (4, 5))
    with pytest.raises(ValueError, match="takes a, b, va, vb, ma, mb, factor"):
        chain(**{name: given[name] for name in list(given)[1:]})
    with pytest.raises(ValueError, match=r"b is float64 \(4, 5\), expected float32"):
        chain(**given | {"b": given["b"].astype(np.float64)})
    with pytest.raises(ValueError, match=r"mb is int32 \(4, 4\), expected int32 \(4, 5\)"):
        chain(**given | {"mb": given["mb"][:, 1:]})


def test_cuda_source_compiles_without_spills(define):
    chain = define()
    for made in support_nvrtc.compile_for(chain.source.text, [chain.entry]):
        assert made.spill == 0, made


def test_compiled_loop_is_kept_on_disk(tmp_path):
    (tmp_path / "kept.py").write_text(
        "import numpy as np\n"
        "from skydelta.kernels.core.fused import FusedKernel, Step\n"
        "from skydelta.kernels.cpu.jit import inline\n"
        "@inline\n"
        "def twice(a):\n"
        "    return 2 * a\n"
        "chain = FusedKernel('kept', (Step('twice', ('a',), ('b',), twice, '', ''),),\n"
        "                    {'a': 'float32', 'b': 'float32'}, ('b',))\n"
        "assert chain(a=np.ones((2, 3), np.float32))['b'].sum() == 12\n"
        "print(sum(chain.loop.stats.cache_hits.values()))\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "kept.py")]
    hits = [
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]


@pytest.mark.gpu
def test_cuda_equals_cpu_to_the_bit(define, rng):
    given, chain, cuda = values(rng, (511, 1023)), define(), resolve("cuda")
    on_cpu = chain(**given)
    on_device = chain(**{n: cuda.asarray(v) if isinstance(v, np.ndarray) else v for n, v in given.items()})
    for name, plane in on_cpu.items():
        np.testing.assert_array_equal(on_device[name].get(), plane)
