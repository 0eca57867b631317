"""Cases for ``flashinfer.fp4_quantize``: which calls to make, and their inputs.

Planning is pure and needs no torch. :func:`plan` covers what an installed release supports with a
few hundred cases: each *group*, that is each combination of layout, kind, dtype and memory order,
sees every number of rows, every row length, every kind of values and every way to give the global
scale; each layout and kind sees every number of rows with every row length whose scales need
padding. What a release cannot do, or does wrongly by writing outside its buffers, is left out, with
the reason in :func:`left_out`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

LAYOUTS = ("128x4", "8x4", "linear")
VEC = {"nvfp4": 16, "mxfp4": 32}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8"}
#: Around the tiles of 8, 32 and 128 rows, and where large kernels take over (1024).
ROWS = (1, 5, 31, 32, 33, 128, 130, 300, 1025, 4096)
#: Row lengths. The first three make numbers of scales that are no multiple of 4; 512 and more
#: are for the large kernels of NVFP4, and 8224 and more for rows longer than a block of threads.
LENGTHS = {
    "nvfp4": (16, 48, 96, 64, 256, 512, 1024, 4096, 8256, 16384),
    "mxfp4": (32, 96, 160, 128, 256, 512, 1024, 4096, 8320, 16384),
}
VALUES = ("normal", "zero", "outlier", "tiny", "huge", "signed-zeros", "inf-nan")
#: Batch dimensions that rows are split into, in every other group.
BATCHES: tuple[dict[int, tuple[int, ...]], ...] = (
    {300: (2, 3), 32: (2,)},
    {130: (2,), 4096: (4,)},
)
#: Layout, kind, dtype, and whether column-major.
Group = tuple[str, str, str, bool]
#: Something that a plan must show.
Demand = tuple[object, ...]
#: Elements made at random; larger inputs repeat them.
POOL = 1 << 20


@dataclass(frozen=True)
class Case:
    """One call. ``m`` rows in each of the ``batch`` dimensions, ``k`` elements in a row.

    ``raises`` says that the release answers with an error: see :func:`raises`.
    """

    layout: str
    kind: str
    dtype: str
    column_major: bool
    batch: tuple[int, ...]
    m: int
    k: int
    values: str
    scale: str
    seed: int = 0
    raises: bool = False

    @property
    def vec(self) -> int:
        """Elements to a scale."""
        return VEC[self.kind]

    @property
    def rows(self) -> int:
        """Rows of all batch dimensions."""
        return math.prod(self.batch) * self.m

    @property
    def elements(self) -> int:
        """Elements of the input."""
        return self.rows * self.k

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the input."""
        return (*self.batch, self.k, self.m) if self.column_major else (*self.batch, self.m, self.k)

    @property
    def group(self) -> Group:
        """What the case has in common with others that together see everything."""
        return self.layout, self.kind, self.dtype, self.column_major

    @property
    def name(self) -> str:
        """A readable name, no two alike in a plan."""
        words = [self.layout, f"vec{self.vec}", DTYPES[self.dtype]]
        words += ["column-major"] * self.column_major
        words += [f"M{self.rows}", f"K{self.k}"]
        words += ["batch" + "x".join(map(str, self.batch))] * bool(self.batch)
        words += [self.values] + [f"{self.scale} scale"] * (self.scale != "given")
        return " ".join(words)


# --- what releases support ------------------------------------------------------------------


def groups(parameters: frozenset[str], release: tuple[int, ...]) -> list[Group]:
    """Return the groups that a release supports, in a fixed order.

    8x4 needs its parameter. 0.2.8 has neither blocks of 32 nor column-major input. In all releases
    the kernel raises for UE8M0 scales of 16 elements and for E4M3 scales of 32; all dtypes go with
    both kinds, all layouts and both memory orders.
    """
    layouts = [x for x in LAYOUTS if x != "8x4" or "is_sf_8x4_layout" in parameters]
    old = release < (0, 2, 9)
    kinds, orders = ["nvfp4"] if old else list(VEC), [False] if old else [False, True]
    return list(product(layouts, kinds, DTYPES, orders))


def scale_ways(kind: str, parameters: frozenset[str]) -> list[str]:
    """Return the ways to give the global scale: NVFP4 raises when it is missing."""
    inverse = ["inverse"] * ("is_global_scale_inversed" in parameters)
    return ["given", *inverse, *["missing"] * (kind == "mxfp4")]


def uses_tma(case: Case) -> bool:
    """Say whether the kernels for large NVFP4 inputs are used, from 0.6.2 on."""
    return case.kind == "nvfp4" and case.rows >= 1024 and case.k % 512 == 0


def left_out(case: Case, release: tuple[int, ...]) -> str:
    """Return why a release cannot do a case, or an empty string.

    The kernels for large inputs, 0.6.2 to 0.7.2, write zeros for whole tiles of rows. For float8
    they cannot be launched: their tensor map asks for NaN beyond the end of a tensor of bytes, and
    ``cuTensorMapEncodeTiled`` refuses (seen with 0.6.3; the sources up to 0.7.2 say the same).
    """
    if not uses_tma(case) or release < (0, 6, 2) or release >= (0, 7, 4):
        return ""
    if case.dtype == "float8_e4m3fn":
        return (
            "float8 with 1024 rows or more and K % 512 == 0: the library cannot launch its kernel"
        )
    rows = case.rows if case.layout == "linear" else -(-case.rows // 8) * 8
    if case.layout != "128x4" and rows % 16:
        return (
            "1024 rows or more, not a multiple of 16, and K % 512 == 0, in 8x4 and linear: "
            "the library writes zeros behind the scales"
        )
    return ""


def omitted(parameters: frozenset[str], release: tuple[int, ...]) -> list[str]:
    """Return what a release cannot do of what there are cases for."""
    given = product(groups(parameters, release), ROWS, LENGTHS["nvfp4"])
    made = (Case(*group, (), rows, k, "normal", "given") for group, rows, k in given)
    return sorted({left_out(case, release) for case in made} - {""})


def raises(case: Case, release: tuple[int, ...]) -> bool:
    """Say whether a release raises: up to 0.6.7 it views padded scales as rows of ``k / vec``."""
    if case.layout == "linear" or release >= (0, 6, 8):
        return False
    tile, columns = 128 if case.layout == "128x4" else 8, case.k // case.vec
    return (-(-case.rows // tile) * tile * -(-columns // 4) * 4) % columns != 0


# --- the plan -------------------------------------------------------------------------------


def plan(parameters: frozenset[str], release: tuple[int, ...]) -> list[Case]:
    """Return cases for a release, in a fixed order, given the names of the function's parameters.

    First the fewest shapes that show each group all numbers of rows and all lengths; then what
    pairs of rows and a length that needs padding are left, to the groups by turns.
    """
    chosen = {group: Shapes(group, turn) for turn, group in enumerate(groups(parameters, release))}
    pairs: set[Demand] = set()
    for shapes in chosen.values():
        shapes.cover(release, pairs)
    for layout, kind in product(LAYOUTS, VEC):
        same = [shapes for group, shapes in chosen.items() if group[:2] == (layout, kind)]
        left = [case for case in (same[0].candidates(release) if same else ()) if padding(case)]
        left = [case for case in left if padding(case).isdisjoint(pairs)]
        for turn, case in enumerate(left):
            same[turn % len(same)].add(case)
    cases: list[Case] = []
    for shapes in chosen.values():
        cases += dressed(shapes, scale_ways(shapes.group[1], parameters), release, len(cases))
    return cases


@dataclass
class Shapes:
    """The shapes of one group, of which there are ``turn`` before it."""

    group: Group
    turn: int
    cases: list[Case] = field(default_factory=list)

    def candidates(self, release: tuple[int, ...]) -> list[Case]:
        """Return every shape that a release can do, in an order that is another by turns."""
        layout, kind, dtype, column_major = self.group
        made = []
        for shift, (index, rows) in product(range(len(LENGTHS[kind])), enumerate(ROWS)):
            k = LENGTHS[kind][(index + self.turn + shift) % len(LENGTHS[kind])]
            made.append(Case(layout, kind, dtype, column_major, (), rows, k, "normal", "given"))
        return [case for case in made if not left_out(case, release)]

    def add(self, case: Case) -> None:
        """Take a shape of another group."""
        layout, kind, dtype, column_major = self.group
        self.cases.append(
            replace(case, layout=layout, kind=kind, dtype=dtype, column_major=column_major)
        )

    def cover(self, release: tuple[int, ...], pairs: set[Demand]) -> None:
        """Take shapes until none has anything new; those first that have most, and new pairs."""
        candidates = self.candidates(release)
        wanted: set[Demand] = set().union(*map(demands, candidates))
        while wanted:
            best = max(
                candidates, key=lambda c: (len(demands(c) & wanted), len(padding(c) - pairs))
            )
            self.cases.append(best)
            wanted -= demands(best)
            pairs |= padding(best)


def demands(case: Case) -> set[Demand]:
    """Return what a shape shows its group."""
    large = {("large",)} if uses_tma(case) else set[Demand]()
    return {("rows", case.rows), ("length", case.k), *large}


def padding(case: Case) -> set[Demand]:
    """Return rows and length if the scales of a row need padding, for all of layout and kind."""
    padded = case.k // case.vec % 4 != 0
    return {(case.layout, case.kind, case.rows, case.k)} if padded else set()


def dressed(
    shapes: Shapes, ways: Sequence[str], release: tuple[int, ...], first: int
) -> Iterator[Case]:
    """Give the shapes of one group their batches, values, scales and seeds, by turns."""
    batches = BATCHES[shapes.turn % 2]
    for index, case in enumerate(shapes.cases):
        batch = batches.get(case.rows, ())
        made = replace(
            case,
            batch=batch,
            m=case.rows // math.prod(batch),
            values=VALUES[(first + index) % len(VALUES)],
            scale=ways[index % len(ways)],
            seed=first + index,
        )
        yield replace(made, raises=raises(made, release))


def shrink(cases: Iterable[Case], max_elements: int) -> list[Case]:
    """Return the cases that have at most so many elements, for a device with little memory."""
    return [case for case in cases if case.elements <= max_elements]


# --- calls ----------------------------------------------------------------------------------


def call_options(case: Case) -> dict[str, Any]:
    """Return the keyword arguments, beside the input and the global scale."""
    options: dict[str, Any] = {
        "sf_vec_size": case.vec,
        "sf_use_ue8m0": case.kind == "mxfp4",
        "is_sf_swizzled_layout": case.layout != "linear",
    }
    if case.layout == "8x4":
        options["is_sf_8x4_layout"] = True
    if case.scale == "inverse":
        options["is_global_scale_inversed"] = True
    return options


def make_input(case: Case, torch: Any, device: Any) -> tuple[Any, Any]:
    """Return the input (:attr:`Case.shape`) and the global scale (fp32, (1,)), or None for it.

    The same bits on every machine: integers from torch's generator on the CPU, and arithmetic that
    is exact or correctly rounded. Column-major input has stride 1 in the last but one dimension.
    """
    pool = VALUES_OF[case.values](Random.of(case, torch)).to(getattr(torch, case.dtype))
    scale = make_scale(case, pool.float(), torch)
    x = pool.to(device).repeat(-(-case.elements // len(pool)))[: case.elements]
    x = x.reshape(*case.batch, case.m, case.k)
    x = x.transpose(-2, -1) if case.column_major else x
    return x, None if case.scale == "missing" else scale.to(device)


@dataclass(frozen=True)
class Random:
    """Up to :data:`POOL` random numbers: ``bell`` nearly normal in (-4, 4), ``dice`` 0 to 127.

    ``block`` is the block of elements that each is in, ``place`` its place.
    """

    case: Case
    torch: Any
    bell: Any
    dice: Any
    place: Any

    @classmethod
    def of(cls, case: Case, torch: Any) -> Random:
        """Draw the numbers of a case."""
        generator = torch.Generator().manual_seed(case.seed)
        # An odd number of blocks, so that repeated values do not fall in step with tiles.
        size = min(case.elements, POOL - 32)
        bits = torch.empty(size, dtype=torch.int64).random_(generator=generator)
        # The sum of four uniform numbers of 15 bits is nearly normal.
        total = sum(bits >> shift & 0x7FFF for shift in (0, 15, 30, 45))
        bell = (total - 65534).float() * 2.0**-14
        return cls(case, torch, bell, bits & 127, torch.arange(size))

    @property
    def block(self) -> Any:
        """The number of the block of elements that share a scale."""
        return self.place // self.case.vec

    def instead(self, where: Any, value: Any) -> Any:
        """Return the bell with a value in some places."""
        return self.torch.where(where, value, self.bell)


def normal(random: Random) -> Any:
    """Return values in (-4, 4), most near zero."""
    return random.bell


def blocks_of_zeros(random: Random) -> Any:
    """Return values of which two of three blocks are zeros."""
    return random.instead(random.block % 3 != random.case.seed % 3, 0.0)


def outlier(random: Random) -> Any:
    """Return values of which one in about 64 is 32 times larger."""
    return random.instead(random.dice < 2, random.bell * 32)


def tiny(random: Random) -> Any:
    """Return values around the smallest normal number of the dtype, subnormals among them."""
    exponents = {"bfloat16": -124, "float16": -15, "float8_e4m3fn": -7}
    return random.bell * 2.0 ** exponents[random.case.dtype]


def huge(random: Random) -> Any:
    """Return values up to the largest of the dtype."""
    exponents = {"bfloat16": 126, "float16": 14, "float8_e4m3fn": 7}
    largest = random.torch.finfo(getattr(random.torch, random.case.dtype)).max
    return (random.bell * 2.0 ** exponents[random.case.dtype]).clamp(-largest, largest)


def signed_zeros(random: Random) -> Any:
    """Return values of which half are zeros of either sign; every other block has no others."""
    return random.instead((random.block % 2 == 0) | (random.dice % 2 == 0), random.bell * 0.0)


def inf_nan(random: Random) -> Any:
    """Return values with infinities and NaN; each 16th block has only NaN at odd places.

    E4M3 has no infinity: it has NaN there.
    """
    nan, float8 = float("nan"), random.case.dtype == "float8_e4m3fn"
    odd = (random.block % 16 == 7) & (random.place % 2 == 1)
    x = random.instead(odd | (random.dice == 2), nan)
    infinity = random.bell.sign() * (nan if float8 else float("inf"))
    return random.torch.where((random.dice == 1) & ~odd, infinity, x)


VALUES_OF = dict(
    zip(
        VALUES,
        (normal, blocks_of_zeros, outlier, tiny, huge, signed_zeros, inf_nan),
        strict=True,
    )
)


def make_scale(case: Case, values: Any, torch: Any) -> Any:
    """Return the global scale (fp32, (1,)): by turns about 448 * 6 / amax, as users have it, or 1.

    A scale near 1 makes scales of tiny values round to zero, and those of huge ones saturate. None
    is round, because ties would leave two codes to choose from; the upper limit keeps its
    reciprocal times a scale away from where that is flushed to zero.
    """
    amax = torch.where(values.isfinite(), values.abs(), 0.0).max()
    usual = (2671.3 / amax).clamp(max=1.3 * 2.0**117).reshape(1)
    scale = usual if case.seed % 2 else torch.full((1,), 0.9371)
    return 1.0 / scale if case.scale == "inverse" else scale
