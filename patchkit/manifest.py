"""``patch.toml`` -> :class:`Patch`. Pure: text in, frozen values out, all problems at once."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from patchkit.errors import ManifestError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

SCHEMA = 1
MANIFEST = "patch.toml"
CODE = "codemod.py"
IMPORT, TRACE, KERNEL = "import", "trace", "kernel"
CHECKS = (IMPORT, TRACE, KERNEL)
SCENARIOS = ("fp4_quantize",)
ONE_OPERATOR, MOVES_ON = "one operator", "moves on"
GIVES = (ONE_OPERATOR, MOVES_ON)
ADD_FILE = "add_file"
BARRED = "nobody has allowed the code of its folder"

_LONGEST_NAME, _LONGEST_PATH = 200, 2000  # room for what patchkit adds beside a file
_LARGEST_NUMBER = 2**31 - 1
_MOST_DOTS = 500

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_CODEMOD = re.compile(r"([a-z_][a-z0-9_]*|codemod\.py:[A-Za-z_][A-Za-z0-9_]*)\Z")


@dataclass(frozen=True)
class Edit:
    """One file, for some versions of the distribution, and the codemod that edits it.

    ``file`` is a POSIX path relative to site-packages, as RECORD spells it. ``matches`` is the
    exact number of places the codemod must find.
    """

    file: str
    versions: SpecifierSet
    codemod: str
    params: Mapping[str, Any]
    matches: int


@dataclass(frozen=True)
class Trace:
    """What the trace check of a patch compiles, and what must come of it.

    ``scenario`` names a function the trace probe knows. Unpatched, capture stops with an error
    of class ``kind`` on whose way lies the function ``through``. Patched, it gives
    ``ONE_OPERATOR``, or at least ``MOVES_ON``: capture passes, or stops elsewhere.
    """

    scenario: str
    gives: str
    kind: str
    through: str


@dataclass(frozen=True)
class Patch:
    """A patch folder, read. ``digest`` is the sha256 of the whole folder, line ends normalised.

    ``barred`` says why code of its own may not run; '' lets it.
    """

    id: str
    revision: int
    title: str
    why: str
    links: tuple[str, ...]
    distribution: str
    versions: SpecifierSet
    default: bool
    checks: tuple[str, ...]
    conflicts: tuple[str, ...]
    requires: tuple[str, ...]
    edits: tuple[Edit, ...]
    snippets: Mapping[str, str]
    digest: str
    folder: str = ""
    trace: Trace | None = None
    kernel: str = ""
    barred: str = BARRED

    @property
    def range(self) -> str:
        """The versions as people write them, lowest bound first: ``>=0.2.8rc1,<=0.7.4``."""
        return ",".join(sorted(str(self.versions).split(","), key=lambda s: not s.startswith(">")))

    @property
    def has_code(self) -> bool:
        """True when applying the patch runs Python from its own folder."""
        return any(edit.codemod.startswith(CODE + ":") for edit in self.edits)

    def fits(self, version: Version) -> bool:
        """Say whether ``version`` is in range; pre-releases and local builds count too."""
        return self.versions.contains(version, prereleases=True)

    def edits_for(self, version: Version) -> tuple[Edit, ...]:
        """Return the edits meant for ``version``, in the order of the manifest."""
        return tuple(e for e in self.edits if e.versions.contains(version, prereleases=True))


def folder_digest(files: Mapping[str, str]) -> str:
    """Return the sha256 (hex) over names and texts; CRLF and LF checkouts give the same."""
    digest = hashlib.sha256()
    for name in sorted(files):
        body = normalise_newlines(files[name]).encode("utf-8", "surrogateescape")
        digest.update(f"{name}\0{len(body)}\0".encode("utf-8", "surrogateescape") + body)
    return digest.hexdigest()


def normalise_newlines(text: str) -> str:
    """Return ``text`` with every line end as a line feed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def path_problem(path: str) -> str:
    """Say what is wrong with a path meant to lie inside a distribution, or return ''."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path:
        return "holds a control, invisible or backslash character"
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "is absolute; give it relative to site-packages"
    if any(part in ("", ".", "..") for part in parts):
        return "leaves the distribution or is not in its shortest form"
    top = parts[0].lower()  # some file systems take no notice of case
    if top.endswith((".dist-info", ".egg-info", ".data")) or top == ".patchkit":
        return "is metadata, which patches must not edit"
    if len(path.encode()) > _LONGEST_PATH or any(len(p.encode()) > _LONGEST_NAME for p in parts):
        return "is longer than file systems allow"
    return ""


@dataclass
class _Reader:
    """Reads fields of one TOML table and collects every problem it meets."""

    table: Mapping[str, Any]
    where: str
    problems: list[str]
    seen: set[str] = field(default_factory=set)

    def fail(self, key: str, text: str) -> None:
        shown = key if key.isprintable() else repr(key)
        self.problems.append(f"{self.where}{shown}: {text}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        self.seen.add(key)
        if key not in self.table:
            if default is None:
                self.fail(key, "is missing")
            return kind() if default is None else default
        value = self.table[key]
        if type(value) is not kind:
            found = _TYPE_NAMES.get(type(value), type(value).__name__)
            self.fail(key, f"must be {_TYPE_NAMES[kind]}, not {found}")
            return kind() if default is None else default
        return value

    def text(self, key: str, check: Callable[[str], str] = lambda _: "") -> str:
        value = cast(str, self.get(key, str))
        if isinstance(self.table.get(key), str):
            problem = check(value) if value.strip() else "is empty"
            if problem:
                self.fail(key, problem)
        return value

    def strings(self, key: str, check: Callable[[str], str] = lambda _: "") -> tuple[str, ...]:
        value = self.get(key, list, [])
        if not all(isinstance(item, str) for item in value):
            self.fail(key, "must be a list of strings")
            return ()
        for item in value:
            if problem := check(item):
                self.fail(key, f"{item!r} {problem}")
        return tuple(value)

    def specifier(self, key: str, default: str | None = None) -> SpecifierSet:
        text = self.get(key, str, default)
        try:
            found = SpecifierSet(text, prereleases=True)
            found.contains("1")  # only now are its versions read
            return found
        except ValueError:  # InvalidSpecifier is one; so is a number too long to be read
            self.fail(key, f"{text!r} is not a version specifier such as '>=0.6,<0.7'")
            return SpecifierSet()

    def positive(self, key: str, default: int | None = None) -> int:
        value = cast(int, self.get(key, int, default))
        if key in self.table and type(self.table[key]) is int:
            if value < 1:
                self.fail(key, "must be 1 or more")
            if value > _LARGEST_NUMBER:
                self.fail(key, f"must be {_LARGEST_NUMBER} or less")
        return value if value <= _LARGEST_NUMBER else 1

    def unknown(self) -> None:
        for key in sorted(set(self.table) - self.seen):
            self.fail(key, f"unknown key; known are {', '.join(sorted(self.seen))}")


_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "a table",
    float: "a number",
}


def parse_patch(folder_name: str, files: Mapping[str, str], folder: str = "") -> Patch:
    """Read a patch from the texts of its folder (name relative to the folder -> text).

    Raises ManifestError naming file and field of every problem found.
    """
    source = f"{folder or folder_name}/{MANIFEST}"
    if MANIFEST not in files:
        raise ManifestError(f"{source}: no such file", hint="See docs/writing-a-patch.md.")
    table = parse_toml(files[MANIFEST], source)
    problems: list[str] = []
    if not is_id(folder_name):
        problems.append(f"id: folder name {folder_name!r} must be lower-case words joined by '-'")
    names = sorted(files, key=str.lower)
    problems += [f"{a} and {b}: differ only in case" for a, b in pairwise(names) if _same(a, b)]
    patch = _read_patch(_Reader(table, "", problems), folder_name, files, folder)
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise ManifestError(
            f"{source}: {len(problems)} problem{'s' * (len(problems) > 1)}\n{lines}",
            hint="Fix the fields named above; docs/writing-a-patch.md lists them all.",
        )
    return patch


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML; raises ManifestError that names ``source`` and the place."""
    lines = normalise_newlines(text).split("\n")
    for number, line in enumerate(lines, 1):
        if line.count(".") > _MOST_DOTS:  # a dotted key takes time with the square of its length
            raise ManifestError(
                f"{source}: line {number} holds more than {_MOST_DOTS} dots",
                hint="Break the line, or put the text into a file of its own.",
            )
    try:
        return tomllib.loads("\n".join(lines))
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number too long
        raise ManifestError(f"{source}: not valid TOML: {error}", hint="Fix the file.") from error


def _read_patch(read: _Reader, patch_id: str, files: Mapping[str, str], folder: str) -> Patch:
    schema = read.positive("schema")
    if schema > SCHEMA:
        read.fail("schema", f"is {schema}, this patchkit reads up to {SCHEMA}; upgrade patchkit")
    versions = read.specifier("versions")
    patch = Patch(
        id=patch_id,
        revision=read.positive("revision"),
        title=read.text("title", _line_problem),
        why=read.text("why").strip(),
        links=read.strings("links", _link_problem),
        distribution=canonicalize_name(read.text("distribution", _name_problem)),
        versions=versions,
        default=read.get("default", bool, False),
        checks=read.strings("checks", _check_problem),
        conflicts=read.strings("conflicts", _id_problem),
        requires=read.strings("requires", _id_problem),
        edits=_read_edits(read, files),
        snippets={n: normalise_newlines(t) for n, t in files.items() if n != MANIFEST},
        digest=folder_digest(files),
        folder=folder,
        trace=_read_trace(read),
        kernel=_read_kernel(read),
    )
    read.unknown()
    return patch


def _read_edits(read: _Reader, files: Mapping[str, str]) -> tuple[Edit, ...]:
    tables = read.get("edit", list)
    edits = []
    for index, table in enumerate(tables):
        if not isinstance(table, dict):
            read.fail(f"edit[{index}]", "must be a table")
            continue
        edits.append(_read_edit(_Reader(table, f"edit[{index}].", read.problems), files))
    names = sorted({edit.file for edit in edits})
    if clash := [f"{a} and {b}" for a, b in pairwise(sorted(names, key=str.lower)) if _same(a, b)]:
        read.fail("edit", f"the files {clash[0]} differ only in case")
    if read.table.get("edit") == []:
        read.fail("edit", "is empty; a patch edits at least one file")
    return tuple(edits)


def _read_edit(read: _Reader, files: Mapping[str, str]) -> Edit:
    edit = Edit(
        file=read.text("file", _file_problem),
        versions=read.specifier("versions", ""),
        codemod=read.text("codemod"),
        params=read.get("params", dict, {}),
        matches=read.positive("matches", 1),
    )
    if edit.codemod and not _CODEMOD.match(edit.codemod):
        read.fail("codemod", f"{edit.codemod!r} must be a name or 'codemod.py:function'")
    if edit.codemod.startswith(CODE + ":") and CODE not in files:
        read.fail("codemod", f"{edit.codemod!r} needs a {CODE} beside {MANIFEST}")
    read.unknown()
    return edit


def _read_table(read: _Reader, check: str) -> _Reader | None:
    """Return the table of a check, which goes with naming the check."""
    table = read.get(check, dict, {})
    checks = read.table.get("checks")
    if (check in read.table) != (isinstance(checks, list) and check in checks):
        read.fail(check, f"the table goes with checks = [{check!r}], each needs the other")
    return _Reader(table, f"{check}.", read.problems) if table else None


def _read_kernel(read: _Reader) -> str:
    inner = _read_table(read, KERNEL)
    if inner is None:
        return ""
    scenario = inner.text("scenario", _scenario_problem)
    inner.unknown()
    return scenario


def _read_trace(read: _Reader) -> Trace | None:
    inner = _read_table(read, TRACE)
    if inner is None:
        return None
    trace = Trace(
        scenario=inner.text("scenario", _scenario_problem),
        gives=inner.text("gives", _gives_problem),
        kind=inner.text("kind", _line_problem),
        through=inner.text("through", _line_problem),
    )
    inner.unknown()
    return trace


def _scenario_problem(name: str) -> str:
    return "" if name in SCENARIOS else f"{name!r} is not one of {', '.join(SCENARIOS)}"


def _gives_problem(name: str) -> str:
    return "" if name in GIVES else f"{name!r} is not one of {', '.join(map(repr, GIVES))}"


def _same(one: str, other: str) -> bool:
    """Say whether two different names are one where case does not count."""
    return one != other and one.lower() == other.lower()


def _file_problem(path: str) -> str:
    problem = path_problem(path)
    if "__pycache__" in path.lower().split("/") or path.lower().endswith((".pyc", ".pyo")):
        problem = problem or "is bytecode, which Python writes"
    return problem and f"{path!r} {problem}"


def _line_problem(text: str) -> str:
    return "" if text.isprintable() else "holds a line end or an invisible character"


def _link_problem(link: str) -> str:
    return "" if link.isprintable() and link and " " not in link else "is not a link"


def _name_problem(name: str) -> str:
    return "" if _NAME.match(name) else f"{name!r} is not the name of a distribution"


def _check_problem(name: str) -> str:
    return "" if name in CHECKS else f"is not a check; known are {', '.join(CHECKS)}"


def is_id(name: str) -> bool:
    """Say whether a text is the id of a patch: lower-case words joined by ``-``."""
    return bool(_ID.match(name))


def _id_problem(name: str) -> str:
    return "" if is_id(name) else "is not a patch id"
