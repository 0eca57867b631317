"""The FP4 reference against hand-worked values and a kernel emulated number by number."""

from __future__ import annotations

import ast
import itertools
import math
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from patchkit.probes import fp4_reference as ref

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
INF, NAN = math.inf, math.nan


def fp32(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def up(value: float) -> float:
    return float(torch.nextafter(fp32(value), fp32(INF)))


def down(value: float) -> float:
    return float(torch.nextafter(fp32(value), fp32(-INF)))


def judge(x: Any, gs: Any, codes: Any, scales: Any, kind: str, **options: Any) -> ref.Verdict:
    return ref.judge(x, gs, codes, scales, vec=ref.VEC[kind], kind=kind, **options)


def test_needs_nothing_but_torch():
    for name in ("fp4_reference", "fp4_cases"):
        with open(ref.__file__.replace("fp4_reference", name), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        found = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        found += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        standard = {"__future__", "collections.abc", "dataclasses", "typing", "itertools"}
        assert set(found) <= standard | {"functools", "importlib", "math"}


# E2M1

#: The threshold to the next code, and whether the threshold itself already has it.
THRESHOLDS = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)


@pytest.mark.parametrize(
    ("code", "threshold", "reached"), [(i, *t) for i, t in enumerate(THRESHOLDS)]
)
def test_e2m1_thresholds_and_their_neighbours(code: int, threshold: float, reached: bool):
    values = fp32(down(threshold), threshold, up(threshold))
    want = [code, code + reached, code + 1]
    assert ref.e2m1_encode(values).tolist() == want
    assert ref.e2m1_encode(-values).tolist() == [8 + code for code in want]


def test_e2m1_special_values():
    values = fp32(0.0, -0.0, 6.0, 6.1, 1e38, INF, -INF, NAN, -NAN, 2.0**-149, -(2.0**-149))
    assert ref.e2m1_encode(values).tolist() == [0, 8, 7, 7, 7, 7, 15, 7, 7, 0, 8]


def test_e2m1_codes_come_back():
    codes = torch.arange(16, dtype=torch.uint8)
    values = ref.e2m1_decode(codes)
    assert values.tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert values.tolist()[9:] == [-0.5, -1, -1.5, -2, -3, -4, -6]
    assert math.copysign(1, float(values[8])) == -1
    assert torch.equal(ref.e2m1_encode(values), codes)


# E4M3


def e4m3_value(code: int) -> float:
    """1 sign bit, 4 of exponent with bias 7, 3 of mantissa; only 0x7F and 0xFF are no numbers."""
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return NAN
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_e4m3_codes_come_back():
    codes = [code for code in range(256) if code & 127 != 127]
    values = ref.e4m3_decode(torch.tensor(codes, dtype=torch.uint8))
    assert values.tolist() == [e4m3_value(code) for code in codes]
    assert ref.e4m3_encode(values).tolist() == codes
    assert ref.e4m3_decode(torch.tensor([127, 255], dtype=torch.uint8)).isnan().all()


def test_e4m3_rounds_to_even_between_all_neighbours():
    for code in range(126):
        middle = (e4m3_value(code) + e4m3_value(code + 1)) / 2
        values = fp32(down(middle), middle, up(middle))
        assert ref.e4m3_encode(values).tolist() == [code, code + code % 2, code + 1]


def test_e4m3_saturates_and_has_one_nan():
    values = fp32(448.0, 464.0, 465.0, 1e30, INF, -INF, NAN)
    assert ref.e4m3_encode(values).tolist() == [126, 126, 126, 126, 126, 254, 127]


# UE8M0


def test_ue8m0_rounds_the_exponent_up():
    values = [1.0, up(1.0), 1.5, 2.0, down(2.0), 2.0**-126, 2.0**127, up(2.0**127)]
    assert ref.ue8m0_encode(fp32(*values)).tolist() == [127, 128, 128, 128, 128, 1, 254, 254]


def test_ue8m0_special_values():
    half = 2.0**-127
    values = [0.0, 2.0**-149, half, up(half), down(2.0**-126), INF, 3.4e38, NAN]
    assert ref.ue8m0_encode(fp32(*values)).tolist() == [0, 0, 0, 1, 1, 254, 254, 255]


def test_ue8m0_codes_come_back():
    codes = torch.arange(255, dtype=torch.uint8)
    values = ref.ue8m0_decode(codes)
    assert values.tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert torch.equal(ref.ue8m0_encode(values), codes)
    assert ref.ue8m0_decode(torch.tensor([255], dtype=torch.uint8)).isnan().all()


# Packing and layouts


def test_even_element_is_in_the_low_nibble():
    codes = torch.tensor([[0x1, 0xF, 0x8, 0x7]], dtype=torch.uint8)
    packed = ref.pack(codes)
    assert packed.tolist() == [[0xF1, 0x78]]
    assert torch.equal(ref.unpack(packed), codes)


@pytest.mark.parametrize(
    ("layout", "columns", "row", "column", "offset"),
    [
        ("128x4", 4, 0, 3, 3),
        ("128x4", 4, 1, 0, 16),  # the next row of 32
        ("128x4", 4, 31, 0, 31 * 16),
        ("128x4", 4, 32, 0, 4),  # the next group of 32 rows is beside the first
        ("128x4", 4, 127, 3, 511),
        ("128x4", 8, 0, 4, 512),  # the next tile of columns
        ("128x4", 5, 128, 0, 1024),  # the next tile of rows is after all columns, padded to 8
        ("128x4", 5, 161, 4, 1024 + 512 + 16 + 4),
        ("8x4", 4, 0, 3, 3),
        ("8x4", 4, 7, 3, 31),
        ("8x4", 8, 0, 4, 32),
        ("8x4", 5, 8, 0, 64),
        ("8x4", 5, 9, 4, 64 + 32 + 4),
        ("linear", 5, 3, 2, 17),
    ],
)
def test_offsets(layout: str, columns: int, row: int, column: int, offset: int):
    assert int(ref.offsets(row + 1, columns, layout)[row, column]) == offset


@pytest.mark.parametrize("layout", ["128x4", "8x4", "linear"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (130, 6), (300, 7), (256, 8)])
def test_every_byte_has_one_place(layout: str, rows: int, columns: int):
    full = ref.padded(rows, columns, layout)
    places = ref.offsets(*full, layout).flatten()
    assert sorted(places.tolist()) == list(range(full[0] * full[1]))


@pytest.mark.parametrize("layout", ["128x4", "8x4", "linear"])
def test_unswizzle_undoes_swizzle(layout: str):
    scales = torch.randint(0, 256, (130, 6), dtype=torch.uint8)
    swizzled = ref.swizzle(scales, layout, fill=9)
    found, padding = ref.unswizzle(swizzled, 130, 6, layout)
    assert torch.equal(found, scales)
    assert padding.numel() == swizzled.numel() - scales.numel()
    assert (padding == 9).all()
    with pytest.raises(ValueError, match="bytes of scales"):
        ref.unswizzle(swizzled[1:], 130, 6, layout)


def test_padded_sizes():
    assert ref.padded(130, 6, "128x4") == (256, 8)
    assert ref.padded(130, 6, "8x4") == (136, 8)
    assert ref.padded(130, 6, "linear") == (130, 6)


def test_column_major_and_batches_become_rows():
    x = torch.arange(2 * 3 * 4).reshape(2, 3, 4)
    assert torch.equal(ref.flat_input(x), x.reshape(6, 4))
    assert torch.equal(ref.flat_input(x.transpose(-2, -1), column_major=True), x.reshape(6, 4))
    codes = torch.randint(0, 16, (2, 3, 4), dtype=torch.uint8)
    packed, scales = ref.pack(codes), torch.arange(8, dtype=torch.uint8).reshape(2, 4)
    for column_major in (False, True):
        given = (packed, scales)
        if column_major:
            given = (packed.transpose(-2, -1), scales.transpose(-2, -1))
        found, flat = ref.flat_outputs(*given, column_major)
        assert torch.equal(found, codes.reshape(6, 4))
        assert flat.tolist() == list(range(8))


# What releases do


def test_rule_for_zeros_by_release():
    assert ref.zero_rule((0, 2, 13)) == ref.zero_rule((0, 7, 2)) == "amax"
    assert ref.zero_rule((0, 7, 4)) == "scale"
    with pytest.raises(ValueError, match=r"before 0\.2\.13"):
        ref.zero_rule((0, 2, 12))


# Blocks worked by hand


def test_a_block_of_nvfp4():
    # gs 2, amax 9: scale 2 * (9 / 6) = 3 = 1.5 * 2**1, E4M3 exponent 8, mantissa 4: 8 << 3 | 4.
    # Elements times 1 / (3 * (1 / 2)) = 2 / 3, then to the nearest of 0 .5 1 1.5 2 3 4 6.
    worked = [
        (9.0, 7),  # 6
        (8.0, 7),  # 5.33 to 6
        (7.0, 6),  # 4.67 to 4
        (6.0, 6),  # 4
        (-5.5, 14),  # -3.67 to -4
        (4.5, 5),  # 3
        (-4.0, 13),  # -2.67 to -3
        (3.5, 4),  # 2.33 to 2
        (-2.75, 12),  # -1.83 to -2
        (2.0, 3),  # 1.33 to 1.5
        (1.75, 2),  # 1.17 to 1
        (-1.0, 9),  # -0.67 to -0.5
        (0.5, 1),  # 0.33 to 0.5
        (0.25, 0),  # 0.17 to 0
        (0.0, 0),
        (-0.0, 8),
    ]
    x = torch.tensor([[value for value, _ in worked]], dtype=BF16)
    codes, scales = ref.quantize(x, fp32(2.0), kind="nvfp4")
    assert scales.tolist() == [[8 << 3 | 4]]
    assert codes.tolist() == [[code for _, code in worked]]
    verdict = judge(x, fp32(2.0), codes, scales, "nvfp4")
    assert (verdict.right, verdict.elements, verdict.scales) == (True, 16, 1)
    # Given as its inverse, the same scale gives the same.
    assert judge(x, fp32(0.5), codes, scales, "nvfp4", inverse=True).right
    assert not judge(x, fp32(0.5), codes, scales, "nvfp4").right


def test_a_block_of_mxfp4():
    # amax 20: 20 / 6 = 3.33, up to 2**2, code 127 + 2. Elements times 2**-2, which is exact, so
    # that ties are ties: to the code that is even.
    worked = [
        (1.0, 0),  # 0.25, tie of 0 and 0.5
        (1.0078125, 1),
        (2.984375, 1),
        (3.0, 2),  # 0.75, tie of 0.5 and 1
        (5.0, 2),  # 1.25, tie of 1 and 1.5
        (5.03125, 3),
        (6.96875, 3),
        (7.0, 4),  # 1.75, tie of 1.5 and 2
        (10.0, 4),  # 2.5, tie of 2 and 3
        (10.0625, 5),
        (13.9375, 5),
        (14.0, 6),  # 3.5, tie of 3 and 4
        (20.0, 6),  # 5, tie of 4 and 6
        (19.875, 6),
        (0.0, 0),
        (0.5, 0),  # 0.125
    ]
    both = worked + [(-value, 8 + code) for value, code in worked]
    x = torch.tensor([[value for value, _ in both]], dtype=BF16)
    for gs in (None, fp32(1.0), fp32(77.7)):  # which is ignored
        codes, scales = ref.quantize(x, gs, kind="mxfp4")
        assert scales.tolist() == [[129]]
        assert codes.tolist() == [[code for _, code in both]]
        verdict = judge(x, gs, codes, scales, "mxfp4")
        assert (verdict.right, verdict.ambiguous_codes, verdict.ambiguous_scales) == (True, 0, 0)


def test_a_block_of_float8():
    # gs 3: elements become fp16 of x * (6 / 3) = 2 * x. Largest 7: scale 3 * (7 / 6) = 3.5,
    # 1.75 * 2**1, E4M3 exponent 8, mantissa 6. These times 3 / 3.5 = 0.857.
    worked = [
        (3.5, 7),  # 7, to 6
        (2.5, 6),  # 5, 4.29 to 4
        (-2.0, 13),  # -4, -3.43 to -3
        (1.0, 3),  # 2, 1.71 to 1.5
        (0.5, 2),  # 1, 0.857 to 1
        (0.125, 0),  # 0.25, 0.214 to 0
        (-0.0, 8),
        (0.0, 0),
    ]
    x = torch.tensor([[value for value, _ in worked] * 2]).to(FP8)
    codes, scales = ref.quantize(x, fp32(3.0), kind="nvfp4")
    assert scales.tolist() == [[8 << 3 | 6]]
    assert codes.tolist() == [[code for _, code in worked] * 2]
    # MXFP4 of the same, twice: scale 3.5 up to 4, code 129; elements times 3 / 4, 1.5 * x.
    codes, scales = ref.quantize(torch.cat((x, x), dim=1), fp32(3.0), kind="mxfp4")
    assert scales.tolist() == [[129]]
    assert codes[0, :8].tolist() == [7, 6, 13, 3, 2, 0, 8, 0]  # 5.25 3.75 -3 1.5 0.75 0.19


# Special values


def one_block(values: Sequence[float], kind: str, dtype: Any = BF16) -> torch.Tensor:
    """Give a block that starts with these values, and ends with zeros."""
    rest = [0.0] * (ref.VEC[kind] - len(values))
    return torch.tensor([[*values, *rest]], dtype=torch.float32).to(dtype)


def quantized(values: Sequence[float], kind: str, gs: float = 1.0, **options: Any) -> list[int]:
    """Give the scale and the first codes of a block that starts with these values."""
    x = one_block(values, kind)
    codes, scales = ref.quantize(x, fp32(gs), kind=kind, **options)
    assert judge(x, fp32(gs), codes, scales, kind, **options).right
    return [int(scales), *codes[0, : len(values)].tolist()]


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("rule", ref.ZERO_RULES)
def test_zeros_keep_their_sign(kind: str, rule: str):
    assert quantized([0.0, -0.0], kind, zero_rule=rule) == [0, 0, 8]


def test_nvfp4_infinity_saturates():
    # Scale 448: 1792 / 448 = 4.
    assert quantized([INF, -INF, 1792.0, -0.0], "nvfp4") == [126, 7, 15, 6, 8]


def test_mxfp4_infinity_makes_nan_of_itself_and_zeros_of_the_rest():
    assert quantized([INF, -INF, 1e30, -1e30], "mxfp4") == [254, 7, 7, 0, 8]


def test_nan_is_left_out_of_the_maximum():
    # amax 6: scale 1, elements stay. NaN itself is code 7, also a negative one.
    assert quantized([NAN, 6.0, -NAN, -4.0], "nvfp4") == [0x38, 7, 7, 7, 14]
    assert quantized([NAN, 6.0, -NAN, -4.0], "mxfp4")[1:] == [7, 7, 7, 14]


def test_nan_at_all_odd_places_hides_the_maximum():
    odd = [6.0, NAN] * 8
    assert quantized(odd, "nvfp4") == [127] + [7] * 16
    assert quantized(odd * 2, "mxfp4") == [255] + [0, 7] * 16
    even = [NAN, 6.0] * 8
    assert quantized(even, "nvfp4") == [0x38] + [7, 7] * 8
    x = torch.tensor([odd]).to(FP8)  # where the last step leaves NaN out, too
    assert ref.quantize(x, fp32(6.0), kind="nvfp4")[1].tolist() == [[0x4C]]


def test_scale_that_rounds_to_zero():
    # 0.005 / 6 = 0.00083, less than half of the smallest E4M3 number, 2**-9.
    values = [0.005, -0.001, 0.0, -0.0]
    assert quantized(values, "nvfp4", zero_rule="amax") == [0, 7, 15, 7, 7]
    assert quantized(values, "nvfp4", zero_rule="scale") == [0, 0, 8, 0, 8]


def test_subnormal_inputs_are_flushed_but_for_mxfp4_from_0_7_4():
    low = 2.0**-127  # a subnormal number, also of bf16
    assert quantized([low, -low], "nvfp4", zero_rule="amax") == [0, 0, 8]
    assert quantized([low, -low], "mxfp4", zero_rule="amax") == [0, 0, 8]
    # 6 * 2**-127 is normal; a sixth of it is not. Then 2**-127 is code 0, which means zeros;
    # a little more is code 1, and elements times 2**126.
    block = [6.0 * low, low]
    assert quantized(block, "mxfp4", zero_rule="amax") == [0, 0, 0]
    block = [8.0 * low, -3.0 * low]
    assert quantized(block, "mxfp4", zero_rule="amax") == [0, 0, 8]
    assert quantized(block, "mxfp4", zero_rule="scale") == [1, 6, 8 + 3]


def test_subnormal_inputs_are_zeros_of_a_block_whose_scale_rounds_to_zero():
    # Elements times infinity: zeros become NaN, and flushed ones are zeros.
    assert quantized([0.005, -(2.0**-127), -(2.0**-125)], "nvfp4") == [0, 7, 7, 15]


def test_extreme_global_scales():
    # 1 / (1.5 * 2**127) is flushed to zero: so are scales, and times infinity is not a number.
    x = one_block([6.0, -3.0], "nvfp4")
    codes, scales = ref.quantize(x, fp32(1.5 * 2.0**127), kind="nvfp4", inverse=True)
    assert (int(scales), codes[0, :3].tolist()) == (0, [7, 7, 7])
    # A subnormal one is zero, and its inverse infinite.
    codes, scales = ref.quantize(x, fp32(2.0**-127), kind="nvfp4", inverse=True)
    assert (int(scales), codes[0, :3].tolist()) == (126, [7, 15, 7])


@pytest.mark.parametrize(("off", "ambiguous"), [(18, 0), (21, 1)])
def test_slack_is_no_wider_than_needed(off: int, ambiguous: int):
    # Scale 1, so 0.25 becomes 0.25 * gs: clearly more than the threshold, or too close to it.
    x, gs = one_block([6.0, 0.25], "nvfp4"), fp32(1 + 2.0**-off)
    codes, scales = ref.quantize(x, gs, kind="nvfp4")
    assert (int(scales), codes[0, :2].tolist()) == (0x38, [7, 1])
    assert judge(x, gs, codes, scales, "nvfp4").ambiguous_codes == ambiguous
    # The same for a scale between 1 and 1.125.
    x, gs = one_block([6.0], "nvfp4"), fp32(1.0625 * (1 + 2.0**-off))
    codes, scales = ref.quantize(x, gs, kind="nvfp4")
    assert int(scales) == 0x39
    assert judge(x, gs, codes, scales, "nvfp4").ambiguous_scales == ambiguous


def test_huge_values():
    large = 3.38953139e38  # the largest of bf16
    gs = 2688 / large
    assert quantized([large, -large / 2], "nvfp4", gs) == [126, 7, 13]
    # A sixth is 1.33 * 2**125: code 253, elements times 2**-126: 3.98.
    assert quantized([large, 0.0], "mxfp4") == [253, 6, 0]


def test_scale_of_each_row():
    x = one_block([9.0, 6.0], "nvfp4").repeat(3, 1)
    gs = fp32(1.0, 2.0, 4.0)
    codes, scales = ref.quantize(x, gs, kind="nvfp4")
    assert scales.flatten().tolist() == [0x3C, 0x44, 0x4C]  # 1.5, 3, 6
    assert judge(x, gs, codes, scales, "nvfp4").right
    assert not judge(x, gs.flip(0), codes, scales, "nvfp4").right


def test_no_rows():
    x = torch.empty((0, 32), dtype=BF16)
    codes, scales = ref.quantize(x, None, kind="mxfp4")
    verdict = judge(x, None, codes, scales, "mxfp4")
    assert (verdict.right, verdict.elements, verdict.wrong) == (True, 0, ())


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "mxfp8", "vec": 32},
        {"kind": "nvfp4", "vec": 32},
        {"kind": "nvfp4", "vec": 16, "zero_rule": "none"},
        {"kind": "mxfp4", "vec": 32},
    ],
)
def test_what_does_not_exist_is_an_error(options: dict[str, Any]):
    x = torch.zeros((2, 48), dtype=BF16)
    codes, scales = torch.zeros((2, 48)).byte(), torch.zeros((2, 3)).byte()
    with pytest.raises(ValueError, match=r"no kind|want rows|do not fit"):
        ref.judge(x, fp32(1.0), codes, scales, **options)


# A kernel, number by number

Wobble = Callable[[], int]


def single(value: float) -> float:
    """Round to fp32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(INF, value)


def ftz(value: float) -> float:
    return math.copysign(0.0, value) if abs(value) < 2.0**-126 else value


def mul(a: float, b: float, flushing: bool = True) -> float:
    """Multiply two fp32 numbers: exact in double, then rounded once."""
    return ftz(single(ftz(a) * ftz(b))) if flushing else single(a * b)


def rcp(value: float, wobble: Wobble) -> float:
    """Divide, then be off by an ulp or not."""
    value = ftz(value)
    if value == 0:
        return math.copysign(INF, value)
    exact = single(1 / value)
    if not math.isfinite(exact):
        return exact
    (bits,) = struct.unpack("<i", struct.pack("<f", exact))
    moved = struct.unpack("<f", struct.pack("<i", bits + wobble()))[0]
    return ftz(float(moved) if exact else exact)


def to_e2m1(value: float) -> int:
    if math.isnan(value):
        return 7
    size = abs(value)
    code = 7
    for lower, (threshold, reached) in enumerate(THRESHOLDS):
        if size < threshold or (size == threshold and not reached):
            code = lower
            break
    return code + 8 * (math.copysign(1, value) < 0)


def to_e4m3(value: float) -> int:
    if math.isnan(value):
        return 127
    if value >= 448:
        return 126
    lower = max(code for code in range(126) if e4m3_value(code) <= value)
    below, above = value - e4m3_value(lower), e4m3_value(lower + 1) - value
    return lower + (above < below or (above == below and lower % 2 == 1))


def to_ue8m0(value: float) -> int:
    if math.isnan(value):
        return 255
    return next((code for code in range(254) if value <= 2.0 ** (code - 127)), 254)


def from_ue8m0(code: int) -> float:
    return NAN if code == 255 else 2.0 ** (code - 127)


def hmax(a: float, b: float) -> float:
    """Give the maximum as ``max.bf16`` does, which prefers numbers to NaN."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return max(a, b)


def lanes(values: Sequence[float]) -> tuple[float, float]:
    even, odd = abs(values[0]), abs(values[1])
    for a, b in zip(values[2::2], values[3::2], strict=True):
        even, odd = hmax(even, abs(a)), hmax(odd, abs(b))
    return even, odd


def half_block(xs: Sequence[float], gs: float, kind: str, rule: str, off: Wobble) -> list[int]:
    """Quantize a block of bf16 or fp16 as the kernel does; the scale comes first."""
    even, odd = lanes(xs)
    amax = even if even > odd else odd
    flushing = kind == "nvfp4" or rule == "amax"
    sixth = mul(amax, rcp(6.0, off), flushing)
    if kind == "mxfp4":
        code = to_ue8m0(sixth)
        factor = 0.0 if code in (0, 254, 255) else 2.0 ** (127 - code)
    else:
        code = to_e4m3(mul(gs, sixth))
        factor = rcp(mul(e4m3_value(code), rcp(gs, off)), off)
        if (ftz(amax) if rule == "amax" else code) == 0:
            factor = 0.0
    return [code, *(to_e2m1(mul(x, factor, flushing)) for x in xs)]


def float8_block(xs: Sequence[float], gs: float, kind: str, off: Wobble) -> list[int]:
    """Quantize a block of float8 as the kernel does; the scale comes first."""
    factor = mul(6.0, rcp(gs, off))
    xs = [float(fp32(mul(x, factor)).half()) for x in xs]
    scale = mul(gs, mul(hmax(*lanes(xs)), rcp(6.0, off)))
    code = to_ue8m0(scale) if kind == "mxfp4" else to_e4m3(scale)
    narrow = from_ue8m0(code) if kind == "mxfp4" else e4m3_value(code)
    out = 0.0 if scale == 0 else mul(gs, rcp(narrow, off))
    return [code, *(to_e2m1(mul(x, out)) for x in xs)]


def emulate(
    x: torch.Tensor, gs: float, kind: str, rule: str, off: Wobble, inverse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give codes and scales of rows, each block by itself."""
    gs = rcp(gs, off) if inverse else gs
    rows = []
    for row in x.float().unflatten(-1, (-1, ref.VEC[kind])).tolist():
        if x.dtype == FP8:
            rows.append([float8_block(block, gs, kind, off) for block in row])
        else:
            rows.append([half_block(block, gs, kind, rule, off) for block in row])
    made = torch.tensor(rows, dtype=torch.uint8)
    return made[..., 1:].flatten(-2), made[..., 0].contiguous()


def values_of(bits: Sequence[int], dtype: torch.dtype, kind: str) -> torch.Tensor:
    """Give rows of a block each with numbers of these bits."""
    flat = torch.tensor(bits, dtype=torch.int32)
    raw = flat.to(torch.uint8) if dtype == FP8 else flat.to(torch.int16)
    return raw.view(dtype).reshape(-1, ref.VEC[kind])


def wobbling(seed: int) -> Wobble:
    """Be off by an ulp at random, but for 6 always by the same."""
    dice = random.Random(seed)
    return lambda: dice.randrange(-1, 2)


kinds = st.sampled_from(["nvfp4", "mxfp4"])
dtypes = st.sampled_from([BF16, FP16, FP8])
scales_given = st.floats(-126, 127).map(lambda power: single(2.0**power))


@st.composite
def calls(draw: st.DrawFn) -> tuple[torch.Tensor, float, str, str]:
    kind, dtype = draw(kinds), draw(dtypes)
    count = 2 * ref.VEC[kind]
    span = 256 if dtype == FP8 else 65536
    if draw(st.booleans()):  # all numbers there are
        bits = draw(st.lists(st.integers(0, span - 1), min_size=count, max_size=count))
        x = values_of(bits, dtype, kind)
    else:  # numbers of about the same size
        dice = torch.Generator().manual_seed(draw(st.integers(0, 10**9)))
        x = torch.randn((2, ref.VEC[kind]), generator=dice).to(dtype)
    return x, draw(scales_given), kind, draw(st.sampled_from(ref.ZERO_RULES))


@settings(max_examples=150, deadline=None)
@given(calls(), st.integers(0, 10**9), st.booleans())
def test_judge_accepts_the_emulated_kernel(call: Any, seed: int, inverse: bool):
    x, gs, kind, rule = call
    codes, scales = emulate(x, gs, kind, rule, wobbling(seed), inverse)
    verdict = judge(x, fp32(gs), codes, scales, kind, zero_rule=rule, inverse=inverse)
    assert verdict.right, str(verdict)


@settings(max_examples=60, deadline=None)
@given(calls(), st.booleans())
def test_reference_is_the_emulated_kernel_with_exact_reciprocals(call: Any, inverse: bool):
    x, gs, kind, rule = call
    codes, scales = emulate(x, gs, kind, rule, lambda: 0, inverse)
    got = ref.quantize(x, fp32(gs), kind=kind, zero_rule=rule, inverse=inverse)
    assert torch.equal(got[1], scales)
    assert torch.equal(got[0], codes)


@settings(max_examples=15, deadline=None)
@given(calls())
def test_judge_rejects_every_other_code(call: Any):
    x, gs, kind, rule = call
    codes, scales = ref.quantize(x, fp32(gs), kind=kind, zero_rule=rule)
    base = judge(x, fp32(gs), codes, scales, kind, zero_rule=rule)
    for other in range(1, 16):
        verdict = judge(x, fp32(gs), codes ^ other, scales, kind, zero_rule=rule)
        assert verdict.wrong_codes >= codes.numel() - base.ambiguous_codes
    changed = [codes ^ other for other in range(16)]
    wrong = [judge(x, fp32(gs), c, scales, kind, zero_rule=rule).wrong_codes for c in changed]
    assert sum(wrong) == 15 * codes.numel() - base.ambiguous_codes


@settings(max_examples=10, deadline=None)
@given(calls())
def test_judge_rejects_every_other_scale(call: Any):
    x, gs, kind, rule = call
    codes, scales = ref.quantize(x, fp32(gs), kind=kind, zero_rule=rule)
    base = judge(x, fp32(gs), codes, scales, kind, zero_rule=rule)
    others = torch.arange(256).to(torch.uint8)[:, None]
    wrong = [
        judge(
            x[row].expand(256, -1),
            fp32(gs),
            codes[row].expand(256, -1),
            others,
            kind,
            zero_rule=rule,
        ).wrong_scales
        for row in range(len(x))
    ]
    assert sum(wrong) == 255 * len(x) - base.ambiguous_scales


def test_few_positions_have_two_codes_to_choose_from():
    dice = torch.Generator().manual_seed(5)
    x = torch.randn((64, 4096), generator=dice)
    for dtype, kind in itertools.product((BF16, FP16), ref.VEC):
        given = x.to(dtype)
        gs = 2671.3 / given.float().abs().max()  # not round, or ties would be common
        verdict = judge(given, gs, *ref.quantize(given, gs, kind=kind), kind)
        assert verdict.right
        assert verdict.ambiguous_codes <= verdict.elements / 1500
        assert verdict.ambiguous_codes == 0 or kind == "nvfp4"


def test_large_inputs_are_judged_in_parts(monkeypatch: pytest.MonkeyPatch):
    x = torch.randn((50, 64)).to(BF16)
    codes, scales = ref.quantize(x, fp32(1.3), kind="nvfp4")
    wrong = codes.clone()
    wrong[[3, 20, 49], [5, 6, 7]] ^= 8
    whole = judge(x, fp32(1.3), wrong, scales, "nvfp4")
    monkeypatch.setattr(ref, "CHUNK", 640)
    assert judge(x, fp32(1.3), wrong, scales, "nvfp4") == whole
    assert [(w.what, w.row, w.column) for w in whole.wrong] == [
        ("code", 3, 5),
        ("code", 20, 6),
        ("code", 49, 7),
    ]
    assert whole.wrong[0].x == float(x[3, 5])
    assert whole.wrong[0].allowed[0] ^ 8 == whole.wrong[0].got == int(wrong[3, 5])
    again = ref.quantize(x, fp32(1.3), kind="nvfp4")
    assert torch.equal(again[0], codes)
    assert torch.equal(again[1], scales)
    gs = torch.linspace(1, 2, 50)
    assert judge(x, gs, *ref.quantize(x, gs, kind="nvfp4"), "nvfp4").right
    assert len(judge(x, fp32(1.3), codes ^ 8, scales, "nvfp4", details=4).wrong) == 4
    assert "3 of 3200 codes and 0 of 200 scales are wrong; code at row 3, column 5: x" in str(whole)


# Sabotage


def sample(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(1)
    x = torch.randn((130, 6 * ref.VEC[kind]), generator=dice).to(BF16)
    return x, 2688 / x.float().abs().max()


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_swapped_nibbles_are_noticed(kind: str):
    x, gs = sample(kind)
    codes, scales = ref.quantize(x, gs, kind=kind)
    packed = ref.pack(codes)
    swapped = ref.unpack(packed << 4 | packed >> 4)
    assert not judge(x, gs, swapped, scales, kind).right


@pytest.mark.parametrize("broken", range(7))
def test_a_threshold_that_is_off_is_noticed(broken: int, monkeypatch: pytest.MonkeyPatch):
    # All multiples of 1/8 up to 6: with 6 in the block and a scale of 1, every tie there is.
    x = (torch.arange(-48, 48) / 8).reshape(3, 32).to(BF16)
    x[:, 0] = 6.0 * 0.9  # below 6: so that the scale is 1, whichever way rcp(6) is off
    good = emulate(x, 1.0, "mxfp4", "amax", lambda: 0)
    assert judge(x, None, *good, "mxfp4").right
    threshold, reached = THRESHOLDS[broken]
    other = [*THRESHOLDS[:broken], (threshold, not reached), *THRESHOLDS[broken + 1 :]]
    monkeypatch.setitem(globals(), "THRESHOLDS", other)
    bad = emulate(x, 1.0, "mxfp4", "amax", lambda: 0)
    verdict = judge(x, None, *bad, "mxfp4")
    assert (verdict.wrong_codes, verdict.wrong_scales) == (2, 0)
    assert not verdict.right


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_another_layout_is_noticed(kind: str):
    x, gs = sample(kind)
    codes, scales = ref.quantize(x, gs, kind=kind)
    swizzled = ref.swizzle(scales, "8x4")
    grown = torch.cat((swizzled, torch.zeros(256 * 8 - len(swizzled), dtype=torch.uint8)))
    found, padding = ref.unswizzle(grown, 130, 6, "128x4")
    assert not judge(x, gs, codes, found, kind).right
    assert padding.any()


def test_padding_that_is_not_zero_is_noticed():
    _, padding = ref.unswizzle(
        ref.swizzle(torch.zeros((130, 6)).byte(), "128x4", fill=1), 130, 6, "128x4"
    )
    assert padding.all()
    _, padding = ref.unswizzle(ref.swizzle(torch.ones((130, 6)).byte(), "128x4"), 130, 6, "128x4")
    assert not padding.any()


def test_a_scale_taken_for_its_inverse_is_noticed():
    x, gs = sample("nvfp4")
    codes, scales = ref.quantize(x, gs, kind="nvfp4", inverse=True)
    assert not judge(x, gs, codes, scales, "nvfp4").right
    float8 = x.to(FP8)
    codes, scales = ref.quantize(float8, gs, kind="mxfp4", inverse=True)
    assert not judge(float8, gs, codes, scales, "mxfp4").right


def test_the_other_rule_for_zeros_is_noticed():
    x = one_block([0.005, 0.001], "nvfp4")
    for rule, other in (ref.ZERO_RULES, ref.ZERO_RULES[::-1]):
        codes, scales = ref.quantize(x, fp32(1.0), kind="nvfp4", zero_rule=rule)
        assert judge(x, fp32(1.0), codes, scales, "nvfp4", zero_rule=rule).right
        assert not judge(x, fp32(1.0), codes, scales, "nvfp4", zero_rule=other).right


def test_memory_that_was_never_written_is_noticed():
    x, gs = sample("nvfp4")
    poison = torch.full((130, 96), 0xA5, dtype=torch.uint8)
    verdict = judge(x, gs, poison & 15, poison[:, :6], "nvfp4")
    assert verdict.wrong_codes > 0.9 * verdict.elements
    assert verdict.wrong_scales == verdict.scales
