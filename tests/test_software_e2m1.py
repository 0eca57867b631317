"""flashinfer-fp4-software-e2m1: the conversion is exact, and the edits are what they must be."""

from __future__ import annotations

import ast
import ctypes
import functools
import re
import shutil
import subprocess
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

from patchkit.catalog import read_patch, shipped_folder
from patchkit.manifest import Edit
from patchkit.splice import apply_splices
from patchkit.transform import rewrite
from tests.conftest import invoke, tree
from tests.test_shipped_patches import BY_VERSION, OPERATOR, RELEASES, Release, source

NAME = "flashinfer-fp4-software-e2m1"
PATCH = read_patch(shipped_folder() / NAME)
HEADER = PATCH.snippets["software_e2m1.cuh"]
DEFINE = "PATCHKIT_SOFTWARE_E2M1"
GUARD = "__CUDA_ARCH__ >= 1000"
CSRC = "flashinfer/data/csrc/nv_internal/"
KERNELS = CSRC + "tensorrt_llm/kernels/"
ADDED = KERNELS + "patchkit_software_e2m1.cuh"
OLDER = ("80", "86", "87", "89", "90")
SAMPLE = ("0.5.3", "0.6.3", "0.6.7.post3", "0.6.11", "0.7.0", "0.7.4")


# --- the conversion -------------------------------------------------------------------------

# Where the code of |x| changes, and whether the bound itself has the higher code.
BOUNDS = ((0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0))


def by_thresholds(x: np.ndarray) -> np.ndarray:
    """The E2M1 codes of cvt.rn.satfinite.e2m1x2.f32, from its definition."""
    a = np.abs(x.astype(np.float64))
    code = sum(((a >= b) if closed else (a > b)).astype(np.uint8) for b, closed in BOUNDS)
    return np.where(np.isnan(x), 7, code | np.where(np.signbit(x), 8, 0)).astype(np.uint8)


def by_arithmetic(x: np.ndarray) -> np.ndarray:
    """What the header computes; 2a and a / 2 are exact, so each sum rounds once, as an fma does."""
    whole = np.float32(2**23)
    a = np.abs(x)
    with np.errstate(over="ignore"):
        code = np.fmin(np.float32(2) * a + whole, a + (whole + np.float32(2)))
        code = np.fmin(code, np.float32(0.5) * a + (whole + np.float32(4)))
    code = np.fmin(code, whole + np.float32(7))
    sign = np.where(np.isnan(x), 0, np.signbit(x) * 8)
    return ((code.view(np.uint32) & 7) | sign).astype(np.uint8)


def bf16() -> np.ndarray:
    return (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)


def fp16() -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def e4m3() -> np.ndarray:
    """Every finite E4M3 value."""
    code = np.arange(127)
    low, high = code % 8 * 2.0**-9, (8 + code % 8) * 2.0 ** (code // 8 - 10)
    return np.where(code < 8, low, high).astype(np.float32)


def near_bounds() -> np.ndarray:
    """All floats within 4096 steps of every bound, zero, infinity and the smallest normal."""
    at = np.array([b for b, _ in BOUNDS] + [0.0, 0.5, 1, 2, 3, 4, 6, 2**-126, 2**23], np.float32)
    steps = np.arange(-4096, 4097, dtype=np.int64)
    bits = (at.view(np.uint32).astype(np.int64)[:, None] + steps).ravel()
    bits = np.concatenate([bits[bits >= 0], np.arange(0x7F7FF000, 0x7F801000)]).astype(np.uint32)
    values = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), values)


def products() -> typing.Iterator[np.ndarray]:
    """Every bf16 and fp16 value times reciprocals of E4M3 scales, and times powers of two."""
    scales = np.concatenate([1 / e4m3()[1:], np.float32(2.0) ** np.arange(-126, 128, 7)])
    for scale in scales.astype(np.float32):
        for values in (bf16(), fp16()):
            with np.errstate(over="ignore", invalid="ignore"):
                product = values * scale
            yield np.where(np.isnan(product), np.float32(np.nan), product)


def test_rounding_once_and_taking_the_least_is_the_conversion() -> None:
    assert list(by_thresholds(np.array([0.25, 0.75, -5, -0.0, np.nan, np.inf], np.float32))) == [
        0, 2, 14, 8, 7, 7,
    ]  # fmt: skip
    for values in (near_bounds(), *products()):
        np.testing.assert_array_equal(by_arithmetic(values), by_thresholds(values))


SHIM = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#define __device__
#define __forceinline__ inline
struct float2 { float x, y; };
struct uint4 { uint32_t x, y, z, w; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static float __fadd_rn(float a, float b) { return a + b; }
static uint32_t __float_as_uint(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
static uint32_t __funnelshift_l(uint32_t low, uint32_t high, int n) {
  return high << n | low >> (32 - n);
}
static float minifloat(uint32_t bits, int mantissa, int bias) {
  uint32_t m = bits & ((1u << mantissa) - 1), e = bits >> mantissa;
  return std::ldexp(float(e ? m + (1u << mantissa) : m), int(e ? e : 1) - bias - mantissa);
}
struct half { uint16_t bits; };
static half __ushort_as_half(unsigned short u) { return {u}; }
static float __half2float(half h) {
  return std::copysign(minifloat(h.bits & 0x7FFF, 10, 15), h.bits & 0x8000 ? -1.0f : 1.0f);
}
struct __nv_fp8_e4m3 {
  uint8_t __x;
  explicit operator float() const { return minifloat(__x & 0x7F, 3, 7); }
};
#include "software_e2m1.cuh"
using namespace tensorrt_llm::kernels;
extern "C" void eights(float* x, uint32_t* codes, long n) {
  for (long i = 0; i < n; ++i)
    codes[i] = fp32_vec_to_e2m1(*reinterpret_cast<float(*)[8]>(x + 8 * i));
}
extern "C" void fours(float2* x, uint32_t* codes, long n) {
  for (long i = 0; i < n; ++i)
    codes[i] = fp32_vec_to_e2m1(*reinterpret_cast<float2(*)[4]>(x + 4 * i));
}
extern "C" void pairs(float2* x, uint64_t* codes, long n) {
  for (long i = 0; i < n; ++i)
    codes[i] = fp32_vec_to_e2m1(*reinterpret_cast<float2(*)[8]>(x + 8 * i));
}
extern "C" void values(float2* plain, float2* scaled, int scale) {
  for (int byte = 0; byte < 256; ++byte) {
    plain[byte] = e2m1x2_byte_to_float2(byte);
    scaled[byte] = e2m1x2_byte_scaled_e4m3_to_float2(byte, scale);
  }
}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The header that the patch adds, compiled for the CPU."""
    folder = tmp_path_factory.mktemp("e2m1")
    (folder / "software_e2m1.cuh").write_text(HEADER)
    (folder / "shim.cpp").write_text(SHIM)
    for name in ("cuda_fp16.h", "cuda_fp8.h"):
        (folder / name).touch()
    flags = ["-O2", "-ffp-contract=off", "-std=c++17", "-shared", "-fPIC", "-I", folder]
    library = folder / "shim.so"
    subprocess.run([compiler(), *flags, folder / "shim.cpp", "-o", library], check=True)
    return ctypes.CDLL(str(library))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize(("function", "wide"), [("eights", 8), ("fours", 8), ("pairs", 16)])
def test_header_gives_the_same_codes_first_value_lowest(
    header: ctypes.CDLL, function: str, wide: int
) -> None:
    everything = [near_bounds(), bf16(), fp16(), *list(products())[:40]]
    x = np.ascontiguousarray(np.concatenate(everything))
    x = np.where(np.isnan(x), np.float32(np.nan), x)[: len(x) // 16 * 16].copy()
    packed = np.zeros(len(x) // wide, {8: np.uint32, 16: np.uint64}[wide])
    getattr(header, function)(pointer(x), pointer(packed), ctypes.c_long(len(packed)))
    shifts = np.arange(wide, dtype=packed.dtype) * packed.dtype.type(4)
    codes = (packed[:, None] >> shifts & packed.dtype.type(15)).astype(np.uint8)
    np.testing.assert_array_equal(codes.ravel(), by_thresholds(x))


def test_header_gives_the_values_of_codes(header: ctypes.CDLL) -> None:
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([magnitudes, -magnitudes])
    byte = np.arange(256)
    expected = np.stack([table[byte % 16], table[byte // 16]], -1)
    plain, scaled = np.zeros((2, 256, 2), np.float32)
    for code, scale in enumerate(e4m3()):
        header.values(pointer(plain), pointer(scaled), code)
        for found, wanted in ((plain, expected), (scaled, expected * scale)):
            np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


# --- the edits ------------------------------------------------------------------------------


def edits(version: str, file: str) -> tuple[Edit, ...]:
    return tuple(e for e in PATCH.edits_for(Version(version)) if e.file == file)


@functools.cache
def patched(version: str, file: str) -> str:
    data = b"" if file == ADDED else source(version, file)
    return apply_splices(data, rewrite(file, data, PATCH, edits(version, file))).decode()


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.version)
def test_every_release_gets_kernels_and_a_module_of_its_own(release: Release) -> None:
    version = Version(release.version)
    files = {edit.file for edit in PATCH.edits_for(version)}
    assert {ADDED, KERNELS + "quantization.cuh", release.fp4_file} <= files
    assert (KERNELS + "quantization_utils.cuh" in files) == (version >= Version("0.6.2"))
    assert (CSRC + "cpp/kernels/quantization.cu" in files) == (version >= Version("0.6.2"))
    guards = [e for e in PATCH.edits_for(version) if e.params.get("old", "").endswith(f"({GUARD})")]
    assert len(guards) == 1 + (version >= Version("0.6.2"))


def test_manifest() -> None:
    assert not PATCH.default
    assert not PATCH.conflicts
    for version in ("0.2.7.post1", "0.7.4.post1", "0.7.5rc1"):
        assert not PATCH.fits(Version(version))
    for version in ("0.6.8rc2", "0.7.3", "0.7.4rc1", "0.6.3+cu130"):
        assert edits(version, KERNELS + "quantization.cuh")


def test_every_snippet_is_used_and_modules_name_the_revision() -> None:
    used = {value for e in PATCH.edits for key, value in e.params.items() if key.endswith("_file")}
    assert used == set(PATCH.snippets)
    for name in ("module.py", "module_0_2_8.py"):
        assert f"_patchkit_e2m1_r{PATCH.revision}" in PATCH.snippets[name]


# --- what the compiler sees -----------------------------------------------------------------


def compiler() -> str:
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return found or pytest.skip("no C++ compiler")


def preprocessed(text: str, *defines: str) -> str:
    """The text as the compiler sees it, without what it includes, in one line."""
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("#include"))
    command = [compiler(), "-E", "-P", "-x", "c++", *(f"-D{define}" for define in defines), "-"]
    done = subprocess.run(command, input=bare, capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split())


def cuda_files(version: str) -> set[str]:
    files = {edit.file for edit in PATCH.edits_for(Version(version))}
    return {file for file in files if not file.endswith(".py")} - {ADDED}


@pytest.mark.slow
@pytest.mark.parametrize("version", SAMPLE)
@pytest.mark.parametrize("arch", [None, 800, 900, 1000, 1200])
def test_nothing_changes_without_the_define(version: str, arch: int | None) -> None:
    defines = [f"__CUDA_ARCH__={arch}"] if arch else []
    for file in cuda_files(version):
        after = preprocessed(patched(version, file), *defines, *PLAIN)
        after = after.replace("constexpr auto kind = BlockScaleQuantizationType::FP16_TO_FP4; ", "")
        after = re.sub(
            r"\(\*\((reinterpret_cast<\w+ const\*>\(in\)) \+ inOffset\)\)", r"\1[inOffset]", after
        )
        before = preprocessed(source(version, file).decode(), *defines)
        if not arch or arch < 900:
            before, after = without_elect(before), without_elect(after)
        assert after == before, file


# As quantization_utils.cuh, which the others include, defines them without the define.
PLAIN = (
    "PATCHKIT_LOAD(from)=(*(from))",
    "PATCHKIT_ELTS_PER_THREAD(kind)=CVT_ELTS_PER_THREAD",
    "PATCHKIT_OUT=uint32_t",
)


def without_elect(text: str) -> str:
    """Take out the one function that a GPU below SM90 cannot have, and that nothing there calls."""
    return re.sub(r"inline __device__ uint32_t elect_one_sync.*?(?=inline )", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("version", SAMPLE)
@pytest.mark.parametrize("arch", [800, 900])
def test_every_kernel_has_a_body_that_the_gpu_can_run(version: str, arch: int) -> None:
    for file in cuda_files(version):
        defines = (f"__CUDA_ARCH__={arch}", DEFINE)
        mine = preprocessed(patched(version, file), *defines)
        assert "e2m1x2.f32" not in mine
        assert "e2m1x2 " not in mine
        if arch < 900:
            assert "griddepcontrol" not in mine
            assert "elect.sync" not in mine
        hardware = preprocessed(source(version, file).decode(), "__CUDA_ARCH__=1000")
        for word in ("cvt_warp_fp16_to_fp4", "cvt_quant_get_sf_out_offset", "cvt_warp_fp8_to_fp4"):
            assert mine.count(word) == hardware.count(word)


# --- which module is built ------------------------------------------------------------------


class Built(Exception):
    """What would be built: name and flags."""


def loader(version: str, capability: tuple[int, int] = (9, 0)) -> dict[str, Any]:
    """The functions of the patched fp4_quantization.py that choose the module, and run them."""
    file = BY_VERSION[version].fp4_file
    module = ast.parse(patched(version, file))
    wanted = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith(("gen_fp4_quantization", "get_fp4_quantization"))
    ]

    def gen_jit_spec(name: str, sources: object, **given: Sequence[str]) -> object:
        def build_and_load() -> None:
            raise Built(name, given["extra_cuda_cflags"])

        return types.SimpleNamespace(build_and_load=build_and_load)

    flags = {
        f"sm{arch}_nvcc_flags": [f"-gencode=arch=compute_{arch},code=sm_{arch}", "-DERA"]
        for arch in ("90a", "100a", "100f", "103a", "107a", "110a", "120a", "120f", "121a")
    }
    cuda = types.SimpleNamespace(
        is_available=lambda: True, get_device_capability=lambda *device: capability
    )
    names: dict[str, Any] = {
        **{name: getattr(typing, name) for name in typing.__all__},
        **flags,
        "functools": functools,
        "torch": types.SimpleNamespace(cuda=cuda, version=types.SimpleNamespace(cuda="12.8")),
        "JitSpec": object,
        "gen_jit_spec": gen_jit_spec,
        "jit_env": types.SimpleNamespace(FLASHINFER_CSRC_DIR=Path("csrc")),
        "is_cuda_version_at_least": lambda version: True,
    }
    exec(compile(ast.Module(wanted, []), file, "exec"), names)
    return names


def built(version: str, arch: str) -> tuple[str, list[str]]:
    with pytest.raises(Built) as caught:
        loader(version)["get_fp4_quantization_module"](arch)
    name, flags = caught.value.args
    return name, flags


@pytest.mark.slow
@pytest.mark.parametrize("version", SAMPLE)
def test_older_gpus_get_a_module_of_their_own(version: str) -> None:
    for arch in OLDER:
        name, flags = built(version, arch)
        assert name == f"fp4_quantization_{arch}_patchkit_e2m1_r{PATCH.revision}"
        assert f"-D{DEFINE}" in flags
        target = "90a" if arch == "90" else arch
        gencode = [flag for flag in flags if "gencode" in flag]
        assert gencode == [f"-gencode=arch=compute_{target},code=sm_{target}"]
        assert "-DERA" in flags


@pytest.mark.slow
@pytest.mark.parametrize("version", SAMPLE)
@pytest.mark.parametrize("arch", ["100", "103", "110"])
def test_newer_gpus_get_what_they_had(version: str, arch: str) -> None:
    name, flags = built(version, arch)
    assert name == f"fp4_quantization_{arch}"
    assert f"-D{DEFINE}" not in flags


# --- apply and revert -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "names"),
    [("0.6.3", (NAME, OPERATOR)), ("0.6.3", (OPERATOR, NAME)), ("0.7.4", (NAME, OPERATOR))],
)
def test_stands_beside_the_operator_in_either_order(
    flashinfer_tree: Callable[[str], Path], version: str, names: tuple[str, str]
) -> None:
    site = flashinfer_tree(version)
    before = tree(site)
    options = ("--site-packages", str(site))
    edited = site / BY_VERSION[version].fp4_file
    for name in names:
        assert invoke("apply", name, *options).code == 0
    both = edited.read_bytes()
    assert (site / ADDED).is_file()
    assert invoke("verify", "--check", "bytes", *options).code == 0
    assert invoke("revert", names[0], *options).code == 0
    assert invoke("apply", names[0], *options).code == 0
    assert edited.read_bytes() == both
    assert invoke("revert", "--all", *options).code == 0
    assert tree(site) == before
