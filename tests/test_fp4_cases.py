"""What the plan of FP4 cases promises, and that all of them go through the reference."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from patchkit.probes import fp4_cases as cases
from patchkit.probes import fp4_reference as ref

FIRST = frozenset({"input", "global_scale", "sf_vec_size", "sf_use_ue8m0", "is_sf_swizzled_layout"})
MIDDLE = FIRST | {"is_sf_8x4_layout", "enable_pdl"}
LATE = MIDDLE | {"is_global_scale_inversed", "backend"}
RELEASES = (
    (FIRST, (0, 2, 8)),
    (MIDDLE, (0, 5, 3)),
    (MIDDLE, (0, 6, 3)),
    (MIDDLE, (0, 6, 7)),
    (LATE, (0, 6, 11)),
    (LATE, (0, 7, 0)),
    (LATE, (0, 7, 4)),
)
PLANS = {release: cases.plan(parameters, release) for parameters, release in RELEASES}

plans = pytest.mark.parametrize(
    ("parameters", "release"), RELEASES, ids=lambda value: value if isinstance(value, str) else ""
)


def case(**changes: Any) -> cases.Case:
    fields: dict[str, Any] = {
        "layout": "128x4",
        "kind": "nvfp4",
        "dtype": "bfloat16",
        "column_major": False,
        "batch": (),
        "m": 128,
        "k": 64,
        "values": "normal",
        "scale": "given",
    }
    return cases.Case(**{**fields, **changes})


# The plan


@plans
def test_groups_are_all_that_the_release_supports(parameters: Any, release: Any):
    found = list(dict.fromkeys(case.group for case in PLANS[release]))
    assert found == cases.groups(parameters, release)
    layouts = 3 if "is_sf_8x4_layout" in parameters else 2
    assert len(found) == layouts * 3 * (1 if release == (0, 2, 8) else 2 * 2)


@plans
def test_every_group_sees_everything(parameters: Any, release: Any):
    given = parameters, release
    for group in cases.groups(parameters, release):
        seen = [case for case in PLANS[release] if case.group == group]
        kind = group[1]
        assert {case.rows for case in seen} == set(cases.ROWS)
        assert {case.k for case in seen} == set(cases.LENGTHS[kind])
        assert {case.values for case in seen} == set(cases.VALUES)
        assert {case.scale for case in seen} == set(cases.scale_ways(kind, parameters))
        assert any(case.batch for case in seen)
        assert any(not case.batch for case in seen)
        large = kind == "nvfp4" and not (group[2] == "float8_e4m3fn" and cases.omitted(*given))
        assert any(cases.uses_tma(case) for case in seen) or not large


@plans
def test_every_layout_and_kind_sees_every_pair_that_needs_padding(parameters: Any, release: Any):
    found = {(case.layout, case.kind, case.rows, case.k) for case in PLANS[release]}
    for layout, kind in {group[:2] for group in cases.groups(parameters, release)}:
        lengths = [k for k in cases.LENGTHS[kind] if k // cases.VEC[kind] % 4]
        assert len(lengths) == 3
        assert {(layout, kind, *pair) for pair in product(cases.ROWS, lengths)} <= found


@plans
def test_names_and_seeds_are_unique_and_the_order_is_fixed(parameters: Any, release: Any):
    plan = PLANS[release]
    assert plan == cases.plan(parameters, release)
    assert len({case.name for case in plan}) == len(plan)
    assert [case.seed for case in plan] == list(range(len(plan)))


@plans
def test_plan_is_of_bounded_size(parameters: Any, release: Any):
    plan = PLANS[release]
    assert len(plan) <= 450
    assert len(plan) >= 250 or release == (0, 2, 8)
    assert sum(case.elements for case in plan) <= 8e8
    assert sum(case.elements > 2e7 for case in plan) <= 12
    assert max(Counter(case.values for case in plan).values()) <= len(plan) / 6


@plans
def test_scales_of_both_sizes_meet_all_values(parameters: Any, release: Any):
    found = {(case.values, case.seed % 2) for case in PLANS[release] if case.kind == "nvfp4"}
    assert found == set(product(cases.VALUES, (0, 1)))


def test_name():
    assert case(m=130, k=96, values="outlier").name == "128x4 vec16 bf16 M130 K96 outlier"
    made = case(kind="mxfp4", column_major=True, batch=(2, 3), m=5, scale="missing")
    assert made.name == "128x4 vec32 bf16 column-major M30 K64 batch2x3 normal missing scale"


def test_shrink():
    plan = PLANS[(0, 7, 0)]
    small = cases.shrink(plan, 100_000)
    assert small == [case for case in plan if case.elements <= 100_000]
    assert 200 < len(small) < len(plan)


# What releases cannot do


def test_old_releases_raise_where_the_view_does_not_fit():
    assert cases.raises(case(m=32, k=48), (0, 6, 7))  # 128 x 4 bytes as rows of 3
    assert not cases.raises(case(m=32, k=48), (0, 6, 8))
    assert not cases.raises(case(m=32, k=48, layout="linear"), (0, 6, 7))
    assert not cases.raises(case(m=300, k=96), (0, 6, 7))  # 384 x 8 bytes as rows of 6
    assert cases.raises(case(m=32, k=96, layout="8x4"), (0, 6, 7))  # 32 x 8 bytes as rows of 6
    assert not cases.raises(case(m=1024, k=96, kind="mxfp4", layout="8x4"), (0, 6, 8))
    assert {case.raises for case in PLANS[(0, 6, 7)]} == {True, False}
    assert {case.raises for case in PLANS[(0, 6, 11)]} == {False}


@pytest.mark.parametrize("release", [(0, 6, 2), (0, 6, 3), (0, 7, 2)])
def test_what_writes_outside_its_buffers_is_left_out(release: Any):
    def reason(**changes: Any) -> str:
        return cases.left_out(case(**{"m": 1025, "k": 1024, **changes}), release)

    assert reason() == reason(m=4096, layout="linear") == reason(m=1000, layout="8x4") == ""
    assert reason(kind="mxfp4", layout="linear") == reason(k=96, layout="linear") == ""
    assert "behind the scales" in reason(layout="linear")
    assert "behind the scales" in reason(layout="8x4")  # 1032 rows in tiles of 16
    for layout in cases.LAYOUTS:
        assert "cannot launch" in reason(layout=layout, k=512, dtype="float8_e4m3fn")
    assert len(cases.omitted(frozenset(["is_sf_8x4_layout"]), release)) == 2
    for other in ((0, 5, 3), (0, 6, 0), (0, 7, 4)):
        assert cases.left_out(case(m=1025, k=1024, layout="linear"), other) == ""
    assert not [made for made in PLANS[(0, 7, 0)] if cases.left_out(made, (0, 7, 0))]


# Calls


def fp4_quantize(  # as 0.7.0 has it
    input: Any,
    global_scale: Any = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: Any = None,
    backend: str = "cuda",
) -> None: ...


@plans
def test_options_are_parameters_of_the_release(parameters: Any, release: Any):
    for made in PLANS[release]:
        options = cases.call_options(made)
        assert set(options) <= parameters
        bound = inspect.signature(fp4_quantize).bind(None, None, **options).arguments
        assert bound["sf_vec_size"] == (32 if bound["sf_use_ue8m0"] else 16) == made.vec
        assert bound["is_sf_swizzled_layout"] == (made.layout != "linear")
        assert bound.get("is_sf_8x4_layout", False) == (made.layout == "8x4")
        assert bound.get("is_global_scale_inversed", False) == (made.scale == "inverse")


# Inputs


@pytest.mark.parametrize("dtype", list(cases.DTYPES))
@pytest.mark.parametrize("column_major", [False, True])
def test_inputs_are_as_the_case_says(dtype: str, column_major: bool):
    made = case(dtype=dtype, column_major=column_major, batch=(2, 3), m=5)
    x, scale = cases.make_input(made, torch, "cpu")
    assert tuple(x.shape) == made.shape == ((2, 3, 64, 5) if column_major else (2, 3, 5, 64))
    assert x.stride() == ((960, 320, 1, 64) if column_major else (960, 320, 64, 1))
    assert x.dtype == getattr(torch, dtype)
    assert (scale.dtype, tuple(scale.shape)) == (torch.float32, (1,))
    assert cases.make_input(case(scale="missing", kind="mxfp4"), torch, "cpu")[1] is None


def values(kind: str, dtype: str, seed: int = 1) -> torch.Tensor:
    made = case(values=kind, dtype=dtype, seed=seed, m=128, k=1024)
    return cases.make_input(made, torch, "cpu")[0].float()


@pytest.mark.parametrize("dtype", list(cases.DTYPES))
def test_values_are_what_their_names_say(dtype: str):
    info = torch.finfo(getattr(torch, dtype))
    normal = values("normal", dtype)
    assert abs(float(normal.mean())) < 0.02
    assert 1 < float(normal.std()) < 1.3
    assert float(normal.abs().max()) < 4
    blocks = values("zero", dtype).reshape(-1, 16)
    assert 0.6 < float((blocks == 0).all(-1).float().mean()) < 0.7
    assert 50 < float(values("outlier", dtype).abs().max()) < 128
    tiny = values("tiny", dtype).abs()
    assert ((tiny > 0) & (tiny < info.tiny)).any()
    assert (tiny > info.tiny).any()
    assert info.max / 2 < float(values("huge", dtype).abs().max()) <= info.max
    zeros = values("signed-zeros", dtype)
    assert {math.copysign(1, z) for z in zeros[zeros == 0].tolist()} == {-1.0, 1.0}
    odd = values("inf-nan", dtype)
    assert bool(odd.isinf().any()) == (dtype != "float8_e4m3fn")
    assert odd.reshape(-1, 16)[:, 1::2].isnan().all(-1).any()
    assert not odd.reshape(-1, 16).isnan().all(-1).any()


def test_inputs_are_the_same_on_every_machine():
    x, scale = cases.make_input(case(seed=5, m=1, k=16), torch, "cpu")
    assert (x[0] * 128).tolist() == [
        *(-77.5, 143.0, -36.75, 282.0, -173.0, 102.5, -114.5, 48.25),
        *(392.0, -174.0, 113.0, 106.5, -149.0, 102.0, -16.5, 107.0),
    ]
    assert float(scale).hex() == "0x1.b421700000000p+9"  # 2671.3 / (392 / 128)


def test_inputs_differ_by_seed_and_large_ones_repeat():
    a, b = (cases.make_input(case(seed=seed), torch, "cpu")[0] for seed in (1, 2))
    assert not torch.equal(a, b)
    large = case(m=1025, k=1024)
    x = cases.make_input(large, torch, "cpu")[0].flatten()
    size = cases.POOL - 32
    assert torch.equal(x[size:], x[: len(x) - size])


def test_global_scales():
    for seed, values in product((1, 2), cases.VALUES):
        made = case(seed=seed, values=values, dtype="bfloat16")
        x, given = cases.make_input(made, torch, "cpu")
        inverse = cases.make_input(replace(made, scale="inverse"), torch, "cpu")[1]
        assert torch.equal(1 / given, inverse)
        assert given.isfinite().all()
        assert 1 / given >= 2.0**-126
        if seed == 1 and values != "tiny":
            amax = x.float()[x.isfinite()].abs().max()
            assert 448 * 5.9 < float(given * amax) < 448 * 6
        elif seed == 2:
            assert 0.5 < float(given) < 1


# All together


def fake_kernel(x: Any, gs: Any, made: cases.Case, rule: str) -> tuple[Any, Any]:
    """Give what the function returns, from the reference."""
    flat = ref.flat_input(x, made.column_major)
    inverse = made.scale == "inverse"
    codes, scales = ref.quantize(flat, gs, kind=made.kind, zero_rule=rule, inverse=inverse)
    packed = ref.pack(codes).reshape(*made.batch, made.m, made.k // 2)
    full = ref.padded(*scales.shape, made.layout)
    swizzled = ref.swizzle(scales, made.layout).reshape(full)
    if made.column_major:
        return packed.transpose(-2, -1), swizzled.transpose(-2, -1)
    return packed, swizzled


@pytest.mark.parametrize("release", [(0, 6, 7), (0, 7, 4)], ids=str)
def test_every_small_case_is_judged_right(release: Any):
    rule = ref.zero_rule(release)
    for made in cases.shrink(PLANS[release], 6_000):
        x, gs = cases.make_input(made, torch, "cpu")
        packed, swizzled = fake_kernel(x, gs, made, rule)
        codes, flat = ref.flat_outputs(packed, swizzled, made.column_major)
        scales, padding = ref.unswizzle(flat, made.rows, made.k // made.vec, made.layout)
        verdict = ref.judge(
            ref.flat_input(x, made.column_major),
            gs,
            codes,
            scales,
            vec=made.vec,
            kind=made.kind,
            zero_rule=rule,
            inverse=made.scale == "inverse",
        )
        assert verdict.right, f"{made.name}: {verdict}"
        assert verdict.elements == made.elements
        assert not padding.any()
