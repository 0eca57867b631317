"""NVFP4 and MXFP4 quantization in plain PyTorch, to judge what a kernel returned.

Written from the formats: E2M1 and UE8M0 of the OCP Microscaling (MX) specification 1.0, E4M3 of
the OCP 8-bit floating point specification 1.0, blocks of 16 elements with E4M3 scales (NVFP4) or of
32 with UE8M0 scales (MXFP4). Where the formats leave the arithmetic open, it is the one that the
CUDA sources of FlashInfer 0.2.13 to 0.7.4 state; *kernel* marks these places. Stands alone, and
imports torch only; tensors may be on any device.

What the kernel computes, all in fp32 and built with ``-use_fast_math``, so that subnormal inputs
and results of a product count as zero of their sign:

- ``amax``, the largest magnitude in a block, with NaN left out (see :func:`block_amax`)
- NVFP4: scale = E4M3 of ``gs * (amax * rcp(6))``; elements times ``rcp(scale * rcp(gs))``
- MXFP4: scale = UE8M0 of ``amax * rcp(6)``, whatever ``gs`` is; elements times ``2**(127 - code)``
- float8 input, both: elements become ``h = fp16(x * (6 * rcp(gs)))``; scale of
  ``gs * (amax(h) * rcp(6))``; ``h`` times ``gs * rcp(scale)``

``rcp`` is ``rcp.approx.ftz.f32``, which is allowed to be off by an ulp. :func:`judge` therefore
allows what a relative :data:`SLACK` allows, and demands equality everywhere else.

From 0.6.12 on, the environment variables ``FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH`` (in 0.6.12
``TRTLLM_...``) and ``FLASHINFER_NVFP4_4OVER6`` choose other arithmetic, which is not modelled.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

torch: Any = importlib.import_module("torch")

#: Magnitudes of the E2M1 codes 0 to 7; bit 3 of a code is the sign (MX specification, table 5).
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_MAX = 448.0
#: Relative error allowed to a chain of approximate reciprocals and roundings: 8 ulp.
SLACK = 2.0**-20
#: The smallest normal fp32 number.
TINY = 2.0**-126
#: Elements to a scale.
VEC = {"nvfp4": 16, "mxfp4": 32}
#: What decides that a block is all zeros: see :func:`zero_rule`.
ZERO_RULES = ("amax", "scale")
#: Rows that one tile of scales has; columns are padded to 4, but not in the linear layout.
TILE_ROWS = {"128x4": 128, "8x4": 8, "linear": 1}
#: Elements judged at once; scratch is about 30 bytes for each.
CHUNK = 1 << 23


# --- number formats -------------------------------------------------------------------------


@functools.lru_cache
def e2m1_edges(device: Any) -> Any:
    """Return the seven largest magnitudes (fp32) that still round to the codes 0 to 6.

    These are the midpoints between neighbours where the lower code is even, because a tie goes to
    the even code, and the fp32 number below the midpoint where it is odd.
    """
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32)
    edges = (values[1:] + values[:-1]) / 2
    edges[1::2] = torch.nextafter(edges, torch.zeros_like(edges))[1::2]
    return edges.to(device)


def e2m1_magnitude(values: Any) -> Any:
    """Return the codes 0 to 7 (int32) of magnitudes (fp32, not negative), NaN as 7."""
    # NaN becomes a large number: where a search puts NaN is not documented.
    return torch.bucketize(values.nan_to_num(nan=8.0), e2m1_edges(values.device), out_int32=True)


def e2m1_encode(values: Any) -> Any:
    """Return E2M1 codes 0 to 15 (uint8) of fp32 values of any shape.

    Rounds to nearest, ties to even, saturates to 6, keeps the sign, of zeros too. NaN gives code 7,
    which is +6, as ``cvt.rn.satfinite.e2m1x2.f32`` does (PTX; the format has no NaN).
    """
    negative = torch.signbit(values) & ~values.isnan()
    return (e2m1_magnitude(values.abs()) + 8 * negative).to(torch.uint8)


def e2m1_decode(codes: Any) -> Any:
    """Return the fp32 values of E2M1 codes 0 to 15, code 8 as -0."""
    signed = [*E2M1_VALUES, *(-value for value in E2M1_VALUES)]
    return torch.tensor(signed, dtype=torch.float32, device=codes.device)[codes.int()]


def e4m3_encode(values: Any) -> Any:
    """Return E4M3 codes (uint8) of fp32 values: nearest, ties to even, saturating, NaN 0x7F.

    Clamps before the cast: more than 448 becomes NaN in torch 2.9 and 448 in torch 2.13.
    """
    cast = values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(values.isnan(), 0x7F, cast)


def e4m3_decode(codes: Any) -> Any:
    """Return the fp32 values of E4M3 codes (uint8)."""
    return codes.contiguous().view(torch.float8_e4m3fn).float()


def ue8m0_encode(values: Any) -> Any:
    """Return UE8M0 codes (uint8) of fp32 values that are not negative, exponent rounded up.

    Code ``c`` is ``2**(c - 127)``. Zero and all up to ``2**-127`` give 0, infinity and all above
    ``2**127`` give 254, NaN gives 255, as ``cvt.rp.satfinite.ue8m0x2.f32`` does (PTX).
    """
    bits = values.contiguous().view(torch.int32)
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    # A subnormal is up to 2**-127 when its top bit is not set, or is alone.
    above = torch.where(exponent == 0, fraction > 0x400000, fraction > 0)
    code = (exponent + above).clamp(max=254)
    return torch.where(values.isnan(), 255, code).to(torch.uint8)


def ue8m0_decode(codes: Any) -> Any:
    """Return the fp32 values of UE8M0 codes (uint8); 255 is NaN."""
    exponent = codes.int()
    bits = torch.where(exponent == 0, 0x400000, exponent << 23)
    bits = torch.where(exponent == 255, 0x7FC00000, bits)
    return bits.int().view(torch.float32)


def pack(codes: Any) -> Any:
    """Put the codes (..., K) of two neighbours in a byte (..., K / 2), the even one low."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: Any) -> Any:
    """Return the codes (..., K) of bytes (..., K / 2)."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def flush(values: Any) -> Any:
    """Return fp32 values with subnormals replaced by zeros of their sign (PTX ``.ftz``)."""
    return torch.where(values.abs() < TINY, values * 0.0, values)


def rcp(values: Any) -> Any:
    """Return reciprocals, correctly rounded, with subnormals flushed before and after."""
    return flush(1.0 / flush(values))


# --- layouts --------------------------------------------------------------------------------


def round_up(value: int, step: int) -> int:
    """Return the next multiple of a step."""
    return -(-value // step) * step


def padded(rows: int, columns: int, layout: str) -> tuple[int, int]:
    """Return rows and columns of scales with their padding."""
    if layout == "linear":
        return rows, columns
    return round_up(rows, TILE_ROWS[layout]), round_up(columns, 4)


def offsets(rows: int, columns: int, layout: str, device: Any = None) -> Any:
    """Return the byte offset of every scale, int64 (rows, columns).

    128x4: tiles of 128 rows and 4 columns, row after row of tiles; in a tile, row ``m`` of 128 is
    at ``(m % 32) * 16 + (m // 32) * 4``. 8x4: tiles of 8 rows and 4 columns, rows first. Rows of
    all batch dimensions are one after another and only the end is padded.
    """
    m = torch.arange(rows, device=device)[:, None]
    k = torch.arange(columns, device=device)[None, :]
    if layout == "linear":
        return m * columns + k
    tile = TILE_ROWS[layout]
    start = ((m // tile) * (round_up(columns, 4) // 4) + k // 4) * tile * 4
    inside = (m % 32) * 16 + (m % 128) // 32 * 4 if layout == "128x4" else (m % 8) * 4
    return start + inside + k % 4


def unswizzle(scales: Any, rows: int, columns: int, layout: str) -> tuple[Any, Any]:
    """Return the scales (rows, columns) and the padding bytes (1-D) in a 1-D tensor of bytes.

    Raises ValueError when the tensor does not have as many bytes as the padded layout.
    """
    full = padded(rows, columns, layout)
    if tuple(scales.shape) != (full[0] * full[1],):
        raise ValueError(f"want {full[0]} x {full[1]} bytes of scales, got {tuple(scales.shape)}")
    grid = scales[offsets(*full, layout, scales.device)]
    padding = torch.cat((grid[:rows, columns:].flatten(), grid[rows:].flatten()))
    return grid[:rows, :columns].contiguous(), padding


def swizzle(scales: Any, layout: str, fill: int = 0) -> Any:
    """Return scales (rows, columns) as 1-D bytes in a layout, with padding filled."""
    rows, columns = scales.shape
    full = padded(rows, columns, layout)
    swizzled = torch.full((full[0] * full[1],), fill, dtype=torch.uint8, device=scales.device)
    swizzled[offsets(rows, columns, layout, scales.device)] = scales
    return swizzled


def flat_input(x: Any, column_major: bool = False) -> Any:
    """Return the input as rows (M, K): batches flattened, column-major (..., K, M) transposed."""
    x = x.transpose(-2, -1) if column_major else x
    return x.reshape(-1, x.shape[-1])


def flat_outputs(packed: Any, scales: Any, column_major: bool = False) -> tuple[Any, Any]:
    """Return the codes (M, K) and the 1-D bytes of scales in what the function returned.

    For column-major input both are transposed views of what the kernel wrote.
    """
    scales = scales.transpose(-2, -1) if column_major else scales
    return unpack(flat_input(packed, column_major)), scales.reshape(-1).view(torch.uint8)


# --- what a release does --------------------------------------------------------------------


def zero_rule(release: tuple[int, ...]) -> str:
    """Return the rule by which a release writes zeros for a block.

    "amax", 0.2.13 to 0.7.2: the block's largest magnitude is zero. A scale that only rounds to
    zero makes elements +-6, and zeros among them NaN, which is code 7. "scale", 0.7.4: the scale's
    code is zero; there MXFP4 also stopped flushing subnormals. float8 input never changed: zeros
    are written where ``gs * (amax * rcp(6))`` is zero, which is where the code is.

    Raises ValueError before 0.2.13, where MXFP4 took the global scale into account.
    """
    if release < (0, 2, 13):
        raise ValueError("the arithmetic of FlashInfer before 0.2.13 is not modelled")
    return "scale" if release >= (0, 7, 4) else "amax"


# --- the arithmetic -------------------------------------------------------------------------


@dataclass(frozen=True)
class Arithmetic:
    """How one call computes: the kind, the rule for zeros, and the relative slack."""

    kind: str
    rule: str
    float8: bool
    slack: float = SLACK

    @property
    def vec(self) -> int:
        """Elements to a scale."""
        return VEC[self.kind]

    @property
    def exact(self) -> bool:
        """Say whether elements are multiplied by a power of two that is known exactly."""
        return self.kind == "mxfp4" and not self.float8

    def flush(self, values: Any) -> Any:
        """Flush subnormals where the kernel does: everywhere but in MXFP4 from 0.7.4 on."""
        return values if self.exact and self.rule == "scale" else flush(values)

    def bounds(self, values: Any) -> tuple[Any, Any]:
        """Return values of smaller and of larger magnitude by the slack."""
        return values * (1 - self.slack), values * (1 + self.slack)

    def encode(self, scales: Any) -> Any:
        """Return the codes of scales."""
        return ue8m0_encode(scales) if self.kind == "mxfp4" else e4m3_encode(scales)

    def decode(self, codes: Any) -> Any:
        """Return the values of codes of scales."""
        return ue8m0_decode(codes) if self.kind == "mxfp4" else e4m3_decode(codes)


@dataclass(frozen=True)
class Rows:
    """Some rows of the input as the kernel sees them.

    ``small`` and ``large`` (rows, blocks, vec) are the elements before the last product, within
    the slack, and the same tensor but for float8 input; ``amax_small`` and ``amax_large`` (rows,
    blocks) their block maxima; ``gs`` (rows or 1, 1) is the global scale.
    """

    how: Arithmetic
    small: Any
    large: Any
    amax_small: Any
    amax_large: Any
    gs: Any

    def scale_bounds(self) -> tuple[Any, Any]:
        """Return the smallest and the largest block scale, in fp32, before rounding."""
        sixth = torch.tensor(1 / 6, dtype=torch.float32, device=self.small.device)
        lower, upper = self.how.bounds(sixth)
        lower = self.how.flush(self.amax_small * lower)
        upper = self.how.flush(self.amax_large * upper)
        if self.how.exact:
            return lower, upper
        return flush(self.gs * lower), flush(self.gs * upper)

    def out_scale(self, codes: Any) -> Any:
        """Return what elements are multiplied with (rows, blocks), given codes of scales."""
        if self.how.exact:
            return power_of_two(codes)
        scales = self.how.decode(codes)
        scaled = flush(scales * rcp(self.gs))
        out = flush(self.gs * rcp(scales)) if self.how.float8 else rcp(scaled)
        by_amax = self.how.rule == "amax" and not self.how.float8
        zero = self.amax_large == 0 if by_amax else codes == 0
        return torch.where(zero, 0.0, out)

    def element_bounds(self, codes: Any) -> tuple[Any, Any]:
        """Return the elements before rounding to E2M1 (rows, blocks, vec), given scales."""
        out = self.out_scale(codes)[..., None]
        if self.how.exact:
            product = self.small * out
            return product, product
        lower, upper = self.how.bounds(out)
        return self.small * lower, self.large * upper


def power_of_two(codes: Any) -> Any:
    """Return ``2**(127 - code)``, and zero for code 0 and where that is not a normal number.

    *kernel*: so does ``ex2.approx.ftz`` up to 0.7.2, which is reached with code 0 for zeros only,
    and a shift of the exponent in 0.7.4. Infinity and NaN in a block of MXFP4 therefore become
    code 7 (NaN), and finite elements beside them zeros.
    """
    exponent = 254 - codes.int()
    exponent = torch.where((exponent < 1) | (exponent == 254), 0, exponent)
    return (exponent << 23).int().view(torch.float32)


def largest(values: Any) -> Any:
    """Return the maximum over the last dimension with NaN left out, NaN when all are NaN."""
    top = torch.where(values.isnan(), -1.0, values).amax(-1)
    return torch.where(top < 0, float("nan"), top)


def block_amax(values: Any, float8: bool = False) -> Any:
    """Return the largest magnitude over the last dimension, an even number of fp32 values.

    *kernel*: NaN is left out (``max.bf16x2``) in the even and in the odd elements, but the last
    step, of the two, is ``even > odd ? even : odd``: it gives NaN when all odd elements are NaN.
    For float8 input the last step leaves NaN out, too.
    """
    if float8:
        return largest(values.abs())
    pairs = values.abs().unflatten(-1, (-1, 2))
    even, odd = largest(pairs[..., 0]), largest(pairs[..., 1])
    return torch.where(even > odd, even, odd)


def scale_in_rows(global_scale: Any, inverse: bool, device: Any) -> Any:
    """Return the global scale that the kernel multiplies with, fp32 (1, 1) or (rows, 1).

    One number, one for each row (from 0.6.11), or None, which is 1. *kernel*: an inverse one
    (``is_global_scale_inversed``, from 0.6.11) is replaced by its ``rcp``.
    """
    if global_scale is None:
        return torch.ones((1, 1), dtype=torch.float32, device=device)
    gs = global_scale.to(device=device, dtype=torch.float32).reshape(-1, 1)
    return rcp(gs) if inverse else gs


def arithmetic(x: Any, kind: str, rule: str, slack: float = SLACK) -> Arithmetic:
    """Return how a call with this input computes. Raises ValueError for what there is not."""
    if kind not in VEC or rule not in ZERO_RULES:
        raise ValueError(f"no kind {kind!r}, or no rule {rule!r}")
    if x.ndim != 2 or x.shape[1] % VEC[kind]:
        raise ValueError(f"want rows of blocks of {VEC[kind]}, got {tuple(x.shape)}")
    return Arithmetic(kind, rule, x.dtype == torch.float8_e4m3fn, slack)


@dataclass(frozen=True)
class Call:
    """The input (rows, K) of one call and its global scale (rows or 1, 1)."""

    x: Any
    gs: Any
    how: Arithmetic

    def parts(self) -> list[slice]:
        """Return slices of rows of about :data:`CHUNK` elements."""
        rows, k = self.x.shape
        step = max(1, CHUNK // max(1, k))
        return [slice(start, start + step) for start in range(0, rows, step)]

    def rows(self, part: slice) -> Rows:
        """Return some rows as the kernel sees them."""
        how, gs = self.how, self.gs[part] if len(self.gs) > 1 else self.gs
        values = self.x[part].float().unflatten(-1, (-1, how.vec))
        if not how.float8:
            values = how.flush(values)
            amax = block_amax(values)
            return Rows(how, values, values, amax, amax, gs)
        bounds = how.bounds(flush(6.0 * rcp(gs))[..., None])
        small, large = (flush(values * factor).half().float() for factor in bounds)
        return Rows(how, small, large, block_amax(small, True), block_amax(large, True), gs)


def quantize(
    x: Any, global_scale: Any, *, kind: str, zero_rule: str = "amax", inverse: bool = False
) -> tuple[Any, Any]:
    """Quantize rows (rows, K) of bf16, fp16 or float8_e4m3fn with correctly rounded reciprocals.

    Returns codes (rows, K) and scales (rows, K / vec), both uint8, of which :func:`judge` finds
    none wrong. For the other arguments and errors see there.
    """
    how = arithmetic(x, kind, zero_rule, slack=0.0)
    call = Call(x, scale_in_rows(global_scale, inverse, x.device), how)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales = codes.new_empty((x.shape[0], x.shape[1] // how.vec))
    for part in call.parts():
        rows = call.rows(part)
        scales[part] = how.encode(rows.scale_bounds()[0])
        codes[part] = e2m1_encode(rows.element_bounds(scales[part])[0]).flatten(-2)
    return codes, scales


# --- the judge ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A code or scale that is not allowed.

    ``x`` is the element, or the largest magnitude of the block; ``column`` counts elements or
    blocks; ``allowed`` are the codes that are.
    """

    what: str
    row: int
    column: int
    x: float
    got: int
    allowed: tuple[int, ...]

    def __str__(self) -> str:
        wanted = " or ".join(f"0x{code:02x}" for code in self.allowed)
        place = f"{self.what} at row {self.row}, column {self.column}"
        return f"{place}: x {self.x!r}, got 0x{self.got:02x}, want {wanted}"


@dataclass(frozen=True)
class Verdict:
    """What was judged: how many, how many had two codes to choose from, how many are wrong."""

    elements: int
    scales: int
    ambiguous_codes: int
    ambiguous_scales: int
    wrong_codes: int
    wrong_scales: int
    wrong: tuple[Wrong, ...]

    @property
    def right(self) -> bool:
        """Say whether nothing is wrong."""
        return self.wrong_codes == self.wrong_scales == 0

    def __str__(self) -> str:
        return (
            f"{self.wrong_codes} of {self.elements} codes and {self.wrong_scales} of {self.scales} "
            f"scales are wrong" + "".join(f"; {wrong}" for wrong in self.wrong[:3])
        )


@dataclass(frozen=True)
class Allowed:
    """The codes that are allowed at each place: from ``low`` to ``high``, plus ``sign``."""

    low: Any
    high: Any
    sign: Any = 0

    def wrong(self, got: Any) -> Any:
        """Return where codes are not allowed."""
        return (got < self.low + self.sign) | (got > self.high + self.sign)

    def ambiguous(self) -> Any:
        """Return where two codes are allowed."""
        return self.low != self.high


def allowed_scales(rows: Rows) -> Allowed:
    """Return the scales that the slack allows."""
    low, high = rows.scale_bounds()
    return Allowed(rows.how.encode(low), rows.how.encode(high))


def allowed_codes(rows: Rows, scales: Any) -> Allowed:
    """Return the element codes (rows, blocks, vec) that the slack allows, given the scales."""
    low, high = rows.element_bounds(scales)
    negative = torch.signbit(low) & ~low.isnan()
    low_code = e2m1_magnitude(low.abs())
    high_code = low_code if high is low else e2m1_magnitude(high.abs())
    return Allowed(low_code, high_code, 8 * negative.int())


def judge(
    x: Any,
    global_scale: Any,
    codes: Any,
    scales: Any,
    *,
    vec: int,
    kind: str,
    zero_rule: str = "amax",
    inverse: bool = False,
    details: int = 8,
) -> Verdict:
    """Compare what the kernel gave with what the formats and its arithmetic allow.

    ``x`` (rows, K) is bf16, fp16 or float8_e4m3fn as given to the kernel; ``global_scale`` is as
    given, positive: one number, one a row, or None; ``codes`` (rows, K) are 0 to 15 and ``scales``
    (rows, K / vec) bytes, both uint8. ``inverse`` is ``is_global_scale_inversed``. A scale must be
    one of the codes, at most two, that :data:`SLACK` allows; element codes likewise, given the
    scale that the kernel wrote, right or not. At most ``details`` wrong places are described.

    Raises ValueError for a kind, rule or shape that does not exist.
    """
    how = arithmetic(x, kind, zero_rule)
    shapes = (tuple(codes.shape), tuple(scales.shape))
    if vec != how.vec or shapes != (tuple(x.shape), (x.shape[0], x.shape[1] // vec)):
        raise ValueError(f"vec {vec} and shapes {shapes} do not fit {kind} of {tuple(x.shape)}")
    call = Call(x, scale_in_rows(global_scale, inverse, x.device), how)
    parts = call.parts()
    counts = [count(call.rows(part), codes[part], scales[part]) for part in parts]
    totals = torch.stack(counts).tolist() if counts else []
    wrong: list[Wrong] = []
    for part, (_, _, *bad) in zip(parts, totals, strict=True):
        if any(bad) and len(wrong) < details:
            left = details - len(wrong)
            wrong += describe(call.rows(part), part.start, codes[part], scales[part], left)
    sums = [sum(row[i] for row in totals) for i in range(4)]
    return Verdict(codes.numel(), scales.numel(), sums[0], sums[1], sums[2], sums[3], tuple(wrong))


def count(rows: Rows, codes: Any, scales: Any) -> Any:
    """Return four counts (int64): ambiguous codes and scales, wrong codes and scales."""
    blocks = allowed_scales(rows)
    elements = allowed_codes(rows, scales)
    got = codes.unflatten(-1, (-1, rows.how.vec))
    masks = (elements.ambiguous(), blocks.ambiguous(), elements.wrong(got), blocks.wrong(scales))
    return torch.stack([mask.sum() for mask in masks])


def describe(rows: Rows, first: int, codes: Any, scales: Any, limit: int) -> list[Wrong]:
    """Return the first wrong places of some rows, scales first."""
    found = list(places("scale", rows.amax_small, scales, allowed_scales(rows), first, limit))
    allowed = allowed_codes(rows, scales)
    flat = Allowed(*(bound.flatten(-2) for bound in (allowed.low, allowed.high, allowed.sign)))
    elements = rows.small.flatten(-2)
    found += places("code", elements, codes, flat, first, limit - len(found))
    return found


def places(
    what: str, x: Any, got: Any, allowed: Allowed, first: int, limit: int
) -> Iterator[Wrong]:
    """Give the first places (2-D) where codes are wrong."""
    low, high = allowed.low + allowed.sign, allowed.high + allowed.sign
    for row, column in allowed.wrong(got).nonzero()[:limit].tolist():
        at = (row, column)
        codes = tuple(range(int(low[at]), int(high[at]) + 1))
        yield Wrong(what, first + row, column, float(x[at]), int(got[at]), codes)
