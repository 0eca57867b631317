"""Reusable edits. Each finds its places with LibCST or by exact text and returns splices. Pure.

Every edit leaves a marker comment that names the patch, its revision and where to read about it,
in file types that have comments. No codemod makes the patched library import patchkit.
"""

from __future__ import annotations

import ast
import codecs
import hashlib
import io
import re
import textwrap
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from patchkit.errors import PatchError
from patchkit.source import Match
from patchkit.splice import Splice

if TYPE_CHECKING:
    import libcst as cst

    from patchkit.manifest import Patch
    from patchkit.source import Codemod, SourceFile

_LINE_END = re.compile(rb"\r\n|\r|\n")
_COMMENT = {
    **dict.fromkeys(
        (".py", ".pyi", ".pyx", ".toml", ".cfg", ".yaml", ".yml", ".sh", ".cmake"), "#"
    ),
    **dict.fromkeys((".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".inl"), "//"),
}


# --- what every codemod needs ---------------------------------------------------------------


@dataclass(frozen=True)
class _Params:
    """The ``params`` table of one edit, read with clear errors; unknown keys are refused."""

    patch: Patch
    table: Mapping[str, Any]

    @classmethod
    def read(cls, patch: Patch, table: Mapping[str, Any], known: str) -> _Params:
        names = known.split()
        if unknown := sorted(set(table) - set(names)):
            raise PatchError(
                f"params has no key {unknown[0]!r}", hint=f"Known are {', '.join(names)}."
            )
        return cls(patch, table)

    def _get(self, key: str, kind: type, default: Any) -> Any:
        value = self.table.get(key, default)
        if value is None:
            raise PatchError(f"params.{key} is missing", hint=self.hint)
        if type(value) is not kind:
            raise PatchError(
                f"params.{key} must be {_KINDS[kind]}, not {type(value).__name__}",
                hint=self.hint,
            )
        return value

    def text(self, key: str, default: str | None = None) -> str:
        return cast(str, self._get(key, str, default))

    def names(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        value = self._get(key, list, None if default is None else list(default))
        if not all(isinstance(item, str) for item in value):
            raise PatchError(f"params.{key} must be a list of strings", hint=self.hint)
        return tuple(value)

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        value = self.text(key, allowed[0])
        if value not in allowed:
            raise PatchError(
                f"params.{key} is {value!r}, must be one of {', '.join(allowed)}",
                hint=self.hint,
            )
        return value

    def snippet(self, key: str) -> str:
        return self.file(self.text(key))

    def file(self, name: str) -> str:
        if name not in self.patch.snippets:
            raise PatchError(f"no file {name!r} beside patch.toml", hint=self.hint)
        return self.patch.snippets[name]

    def either(self, key: str) -> str:
        """Return the text given inline as ``key`` or in the file named by ``key_file``."""
        given = [name for name in (key, f"{key}_file") if name in self.table]
        if len(given) != 1:
            problem = "are both there" if given else "is missing"
            raise PatchError(f"params.{key} or params.{key}_file {problem}", hint=self.hint)
        return self.text(key) if key in self.table else self.snippet(f"{key}_file")

    @property
    def hint(self) -> str:
        return f"See {self.patch.folder or self.patch.id}/patch.toml."


_KINDS = {str: "a string", list: "a list of strings", bool: "true or false"}


def marker(patch: Patch) -> str:
    """Return the words of the marker comment: patch, revision, where to read about it."""
    where = f", see {patch.links[0]}" if patch.links else ""
    return f"patchkit: {patch.id} revision {patch.revision}{where}"


def _comment(source: SourceFile, patch: Patch) -> str:
    """Return the marker as a comment for this file type, or '' where there are no comments."""
    sign = _COMMENT.get(PurePosixPath(source.path).suffix)
    return f"{sign} {marker(patch)}" if sign else ""


def _match(where: str, *splices: Splice) -> Match:
    return Match(where, splices)


def _where(source: SourceFile, node: cst.FunctionDef, name: str) -> str:
    return f"function {name} (line {source.line_of(source.span(node)[0])})"


def _insert(source: SourceFile, offset: int, text: str) -> Splice:
    return Splice(offset, offset, source.encode(text, offset))


def _indent(text: str, prefix: str) -> str:
    """Indent code, but not the inside of multi-line strings other than docstrings."""
    inside = _string_rows(text)
    lines = text.split("\n")
    return "\n".join(
        prefix + line if line.strip() and row not in inside else line
        for row, line in enumerate(lines, 1)
    )


def _string_rows(text: str) -> set[int]:
    """Return the rows, from 1, that start inside a string which is not a statement of its own."""
    rows: set[int] = set()
    opened: list[int] = []
    fresh = True  # nothing of the current statement seen yet
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):  # f-strings, from Python 3.12 on
            opened.append(token.start[0])
        elif kind.endswith("STRING_END"):
            rows.update(range(opened.pop() + 1, token.end[0] + 1))
        elif kind == "STRING" and not fresh:
            rows.update(range(token.start[0] + 1, token.end[0] + 1))
        fresh = kind == "NEWLINE" or (fresh and kind in _LAYOUT)
    return rows


_LAYOUT = ("NL", "COMMENT", "INDENT", "DEDENT", "ENCODING")


def _parameters(node: cst.FunctionDef) -> tuple[str, ...]:
    """Return the parameter names as written: ``("a", "/", "b", "*", "c", "**rest")``."""
    import libcst as cst

    found = node.params
    names = [p.name.value for p in found.posonly_params]
    names += ["/"] if found.posonly_params else []
    names += [p.name.value for p in found.params]
    if isinstance(found.star_arg, cst.Param):
        names.append(f"*{found.star_arg.name.value}")
    elif found.kwonly_params:
        names.append("*")
    names += [p.name.value for p in found.kwonly_params]
    return (*names, f"**{found.star_kwarg.name.value}") if found.star_kwarg else tuple(names)


def _functions(source: SourceFile, params: _Params) -> list[cst.FunctionDef]:
    """Return the definitions named by ``function``.

    Raises PatchError naming both signatures when one takes other than the ``parameters`` given.
    """
    name = params.text("function")
    found = source.functions(name)
    if "parameters" in params.table:
        expected = params.names("parameters")
        for node in found:
            if _parameters(node) != expected:
                raise PatchError(
                    f"{source.path}: {name} takes ({', '.join(_parameters(node))}), "
                    f"the patch is for ({', '.join(expected)})",
                    hint="The installed release differs from those the patch was written for.",
                )
    return found


def _definition_start(source: SourceFile, node: cst.CSTNode) -> int:
    """Return the start of the line of a statement's first decorator, or of the statement."""
    first = next(iter(getattr(node, "decorators", ())), node)
    return source.line_start(source.span(first)[0])


# --- decorators -----------------------------------------------------------------------------


def add_decorator(source: SourceFile, patch: Patch, table: Mapping[str, Any]) -> list[Match]:
    """Add an outermost decorator. ``params``: function, decorator, snippet, parameters.

    ``decorator`` is the text after ``@``. The optional ``snippet`` names a file whose text goes
    right above, for a decorator that must be defined first. Raises PatchError on other keys and
    when ``parameters`` is given and the function takes others.
    """
    params = _Params.read(patch, table, "function decorator snippet parameters")
    decorator = params.text("decorator")
    above = params.snippet("snippet") if "snippet" in table else ""
    return [
        _decorate(source, patch, params.text("function"), node, decorator, above)
        for node in _functions(source, params)
    ]


def _decorate(
    source: SourceFile, patch: Patch, name: str, node: cst.FunctionDef, decorator: str, above: str
) -> Match:
    start = _definition_start(source, node)
    indent = source.indentation(start)
    note = f"# {marker(patch)}"
    text = f"{indent}@{decorator}  {note}\n"
    if above:
        text = _indent(f"{note}\n{above.strip()}", indent) + f"\n\n\n{indent}@{decorator}\n"
    return _match(_where(source, node, name), _insert(source, start, text))


# --- one operator for torch.compile ---------------------------------------------------------

_WRAPPER = '''\
def _patchkit_{name}(function):
    """Make {name} one operator where torch.compile traces; other calls go straight to it."""
    import functools

    import torch
    from torch._subclasses import FakeTensor

{helpers}
    parameters = ({parameters})

    def call_fake(*values, **keywords):
        return fake(**dict(zip(parameters, values), **keywords))

    def call_function(*values, **keywords):
        arguments = dict(zip(parameters, values), **keywords)
        return current["function"](**{from_operator})

    # The operator's name holds a digest of its schema and fake, because compile caches know an
    # operator by name alone. Its library lives as long as the process; a module that is loaded
    # again finds it and takes its place, so that old and new references stay usable.
    operators = vars(torch.ops.{namespace}).setdefault("_patchkit_operators", {{}})
    if "{op}" not in operators:
        library = torch.library.Library("{namespace}", "FRAGMENT")
        library.define(
            "{op}"
{schema},
            tags=({tags}),
        )
        current = {{}}
        library.impl("{op}", call_function, "CompositeExplicitAutograd")
        name = "{namespace}::{op}"
        torch.library.register_fake(name, call_fake, lib=library)
        operators["{op}"] = (library, current)
    current = operators["{op}"][1]
    current["function"] = function
    operator = torch.ops.{namespace}.{op}.default

    def {name}{signature}:
        return operator(
            **{to_operator}(
{arguments}
            )
        )

    call_operator = {name}

    @functools.wraps(function)
    def {name}(*args, **kwargs):
        # A FakeTensor outside torch.compile has no data for the kernel to read: same way.
        if torch.compiler.is_compiling() or isinstance(
            args[0] if args else kwargs.get("{first}"), FakeTensor
        ):
            return call_operator(*args, **kwargs)
        return function(*args, **kwargs)

    return {name}
'''

# Strides are part of what most such functions mean, so Inductor must not change them.
_TAGS = ("needs_exact_strides|needs_fixed_stride_order", "pt2_compliant_tag")


def wrap_custom_op(source: SourceFile, patch: Patch, table: Mapping[str, Any]) -> list[Match]:
    """Make a function one operator for torch.compile; eager calls stay as they are.

    ``params``: function; parameters, the exact names it must take, with ``"*"`` before
    keyword-only ones; namespace and op, the operator's; schema, for the same names without
    defaults; snippets, files that together define ``fake(**arguments)`` and may define
    ``to_operator(**arguments)`` and ``from_operator(**arguments)``, which turn what a schema
    cannot carry into primitives and back; tags, ``"a|b"`` meaning b where torch has no a.

    Raises PatchError when the function takes other parameters or the schema does not fit them.
    """
    params = _Params.read(patch, table, "function parameters namespace op schema snippets tags")
    params.names("parameters")
    return [_wrap(source, params, node) for node in _functions(source, params)]


def _wrap(source: SourceFile, params: _Params, node: cst.FunctionDef) -> Match:
    block = _wrapper_text(params, _signature(source, node))
    name = node.name.value
    start = _definition_start(source, node)
    indent = source.indentation(start)
    text = _indent(f"# {marker(params.patch)}\n{block}", indent)
    text += f"\n\n{indent}@_patchkit_{name}\n"
    return _match(_where(source, node, params.text("function")), _insert(source, start, text))


def _wrapper_text(params: _Params, signature: str) -> str:
    helpers = "\n\n".join(params.file(n).strip() for n in params.names("snippets"))
    helpers = re.sub(r"\n{3,}", "\n\n", helpers)
    defined = _defined(helpers, params)
    names = tuple(n for n in params.names("parameters") if n != "*")
    schema = " ".join(params.text("schema").split())
    _check_schema(schema, names)
    tags = params.names("tags", _TAGS)
    return _WRAPPER.format(
        name=params.text("function").rpartition(".")[2],
        namespace=_namespace(params),
        op=f"{params.text('op')}_{_op_digest(schema, helpers, tags)}",
        schema="\n".join(f'            "{line}"' for line in textwrap.wrap(schema, 80, **_WHOLE)),
        helpers=_indent(helpers, "    ") + "\n",
        parameters=_lines(f'"{n}",' for n in names),
        arguments="\n".join(f"                {n}={n}," for n in names),
        first=names[0],
        signature=signature,
        tags=_lines((f"{_tag(tag)}," for tag in tags), 16),
        to_operator="to_operator" if "to_operator" in defined else "dict",
        from_operator="from_operator(**arguments)" if "from_operator" in defined else "arguments",
    )


_WHOLE: dict[str, Any] = {"drop_whitespace": False, "break_on_hyphens": False}


def _lines(items: Iterable[str], indent: int = 8) -> str:
    """Return each item on a line of its own, for use between brackets."""
    return "".join("\n" + " " * indent + item for item in items) + "\n" + " " * (indent - 4)


def _signature(source: SourceFile, node: cst.FunctionDef) -> str:
    """Return ``(...)`` as the function has it, defaults and annotations included."""
    names = _parameters(node)
    if not names or any(name == "/" or name[0] == "*" != name for name in names):
        raise PatchError(
            f"{source.path}: {node.name.value}({', '.join(names)}) cannot be an operator",
            hint="wrap_custom_op needs at least one parameter, all of them with a name to call by.",
        )
    code = source.module.code_for_node(node.params)
    lines = [line.strip() for line in re.split(r"\r\n|\r|\n", code) if line.strip()]
    return "(" + _lines(lines) + ")"


def _namespace(params: _Params) -> str:
    name = params.text("namespace")
    if not name.isidentifier() or name in (params.patch.distribution, "aten", "prim", "prims"):
        raise PatchError(
            f"params.namespace {name!r} is not a namespace of its own", hint=params.hint
        )
    return name


def _defined(helpers: str, params: _Params) -> set[str]:
    try:
        body = ast.parse(helpers).body
    except SyntaxError as error:
        raise PatchError(f"params.snippets: not Python: {error}", hint=params.hint) from error
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    if "fake" not in names:
        raise PatchError("params.snippets define no function 'fake'", hint=params.hint)
    return names


def _check_schema(schema: str, names: Sequence[str]) -> None:
    found = re.fullmatch(r"\((.*?)\) -> .+", schema)
    words = [part.split() for part in (found.group(1).split(",") if found else [])]
    in_schema = [w[-1] for w in words if w and w != ["*"]]
    if taken := {"operator", "to_operator"} & set(names):
        raise PatchError(
            f"a parameter named {min(taken)!r} is in the wrapper's way",
            hint="wrap_custom_op cannot wrap this function; write a codemod.py for it.",
        )
    if in_schema != list(names) or "=" in schema or '"' in schema:
        raise PatchError(
            f"params.schema names ({', '.join(in_schema)}), the parameters are "
            f"({', '.join(names)})",
            hint='Write "(Tensor x, int n, ...) -> ..." with every parameter and no defaults.',
        )


def _op_digest(schema: str, helpers: str, tags: Sequence[str]) -> str:
    parts = (_WRAPPER, schema, helpers, *tags)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _tag(tag: str) -> str:
    first, _, other = tag.partition("|")
    return f'getattr(torch.Tag, "{first}", torch.Tag.{other})' if other else f"torch.Tag.{first}"


# --- function bodies ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where code first in a body goes: ``start:end`` becomes opening + code + closing.

    ``lead`` holds what must be done besides, for a docstring on the line of ``def``.
    """

    start: int
    end: int
    indent: str
    opening: str
    closing: str
    lead: tuple[Splice, ...] = ()


def replace_function(source: SourceFile, patch: Patch, table: Mapping[str, Any]) -> list[Match]:
    """Replace a function, or only what follows its docstring.

    ``params``: function; parameters, the exact names it must take; new or new_file, code written
    at column 0; part, ``"function"`` (the default; decorators stay) or ``"body"``. Raises
    PatchError when the function takes other parameters or the new code is not Python.
    """
    params = _Params.read(patch, table, "function parameters new new_file part")
    params.names("parameters")
    code = f"# {marker(patch)}\n" + _python(params, params.either("new"))
    replaced = _whole if params.choice("part", ("function", "body")) == "function" else _body
    return [
        _match(_where(source, node, params.text("function")), *replaced(source, node, code))
        for node in _functions(source, params)
    ]


def insert_in_function(source: SourceFile, patch: Patch, table: Mapping[str, Any]) -> list[Match]:
    """Insert statements first in a function, after its docstring, also in ``def f(): return 1``.

    ``params``: function; new or new_file, code written at column 0; parameters, optional, the
    exact names it must take. Raises PatchError when they differ or the code is not Python.
    """
    params = _Params.read(patch, table, "function parameters new new_file")
    code = f"# {marker(patch)}\n" + _python(params, params.either("new"))
    return [
        _match(_where(source, node, params.text("function")), *_first(source, node, code))
        for node in _functions(source, params)
    ]


def _python(params: _Params, code: str) -> str:
    try:
        ast.parse(code)
    except SyntaxError as error:
        raise PatchError(f"the new code is not Python: {error}", hint=params.hint) from error
    return code.strip("\n")


def _whole(source: SourceFile, node: cst.FunctionDef, code: str) -> list[Splice]:
    start, end = source.span(node)
    start = source.line_start(start)
    text = _indent(code, source.indentation(start))
    return [Splice(start, _line_end(source, end), source.encode(text, start))]


def _body(source: SourceFile, node: cst.FunctionDef, code: str) -> list[Splice]:
    place = _place(source, node)
    end = max(_line_end(source, source.span(node)[1]), place.start)
    text = place.opening + _indent(code, place.indent)
    return [*place.lead, Splice(place.start, end, source.encode(text, place.start))]


def _first(source: SourceFile, node: cst.FunctionDef, code: str) -> list[Splice]:
    place = _place(source, node)
    text = place.opening + _indent(code, place.indent) + place.closing
    return [*place.lead, Splice(place.start, place.end, source.encode(text, place.start))]


def _place(source: SourceFile, node: cst.FunctionDef) -> _Place:
    import libcst as cst

    first = node.body.body[0]
    if isinstance(node.body, cst.IndentedBlock):
        indent = source.indentation(source.span(first)[0])
        line: list[cst.CSTNode] = []
        if isinstance(first, cst.SimpleStatementLine):
            line = list(first.body)
        lead: tuple[Splice, ...] = ()
    else:
        indent = source.indentation(source.span(node)[0]) + source.module.default_indent
        line = list(node.body.body)
        lead = (_new_line(source, node, indent),)
    if not (line and _is_docstring(line[0])):
        return _before(source, first, indent, lead)
    return _behind(source, line, indent, lead)


def _before(
    source: SourceFile, first: cst.CSTNode, indent: str, lead: tuple[Splice, ...]
) -> _Place:
    if lead:
        return _Place(lead[0].start, lead[0].end, indent, "\n", "\n" + indent)
    start = _definition_start(source, first)
    return _Place(start, start, indent, "", "\n")


def _behind(
    source: SourceFile, line: Sequence[cst.CSTNode], indent: str, lead: tuple[Splice, ...]
) -> _Place:
    end = source.span(line[0])[1]
    if len(line) > 1:
        return _Place(end, source.span(line[1])[0], indent, "\n", "\n" + indent, lead)
    end = _line_end(source, end)
    return _Place(end, end, indent, "\n", "", lead)


def _new_line(source: SourceFile, node: cst.FunctionDef, indent: str) -> Splice:
    """Move the code behind ``def f():`` to a line of its own."""
    start = source.span(node.body.body[0])[0]
    colon = len(source.data[:start].rstrip(b" \t"))
    if source.data[colon - 1 : colon] != b":":
        raise PatchError(
            f"{source.path}: {node.name.value} has a broken line behind its colon",
            hint="Use replace_block for it.",
        )
    return Splice(colon, start, source.encode("\n" + indent, start))


def _is_docstring(node: cst.CSTNode) -> bool:
    import libcst as cst

    strings = (cst.SimpleString, cst.ConcatenatedString)
    return isinstance(node, cst.Expr) and isinstance(node.value, strings)


def _line_end(source: SourceFile, offset: int) -> int:
    """Return the offset where the line that holds ``offset`` ends, before its line end.

    An ``offset`` right behind a line end belongs to the line before it.
    """
    offset = len(source.data[:offset].rstrip(b"\r\n"))
    found = _LINE_END.search(source.data, offset)
    return found.start() if found else len(source.data)


# --- exact text -----------------------------------------------------------------------------


def replace_block(source: SourceFile, patch: Patch, table: Mapping[str, Any]) -> list[Match]:
    """Replace every occurrence of an exact text, in Python or any other text file.

    ``params``: old or old_file, new or new_file; inside, a Python function to look in. A line
    feed in the text stands for the file's own line end. Raises PatchError when ``old`` is empty.
    """
    params = _Params.read(patch, table, "old old_file new new_file inside")
    old, new = params.either("old"), params.either("new")
    if not old.strip():
        raise PatchError("params.old is empty", hint=params.hint)
    if old.endswith("\n") and new.endswith("\n"):
        old, new = old[:-1], new[:-1]  # so that it is found in a last line without line end too
    inside = params.text("inside", "")
    return [
        _replace_found(source, patch, start, end, new)
        for start, end in _occurrences(source, old, inside)
    ]


def _occurrences(source: SourceFile, old: str, inside: str) -> Iterator[tuple[int, int]]:
    lines = [re.escape(line.encode(source.encoding)) for line in old.split("\n")]
    pattern = re.compile(rb"(?:\r\n|\r|\n)".join(lines))
    areas = [(0, len(source.data))]
    if inside:
        areas = [source.span(node) for node in source.functions(inside)]
    for area in areas:
        for found in pattern.finditer(source.data, *area):
            yield found.span()


def _replace_found(source: SourceFile, patch: Patch, start: int, end: int, new: str) -> Match:
    replaced = Splice(start, end, source.encode(new, start))
    note = _comment(source, patch)
    at = _statement_start(source, start)
    where = f"block in line {source.line_of(start)}"
    if not note or replaced.text == source.data[start:end]:  # a comment alone is no change
        return _match(where, replaced)
    comment = source.indentation(at).replace("\f", "") + f"{note}\n"
    if at == start:
        return _match(where, Splice(start, end, source.encode(comment + new, start)))
    return _match(where, _insert(source, at, comment), replaced)


def _statement_start(source: SourceFile, offset: int) -> int:
    """Return the start of the line of the statement that holds ``offset``: a comment fits there."""
    if source.path.endswith((".py", ".pyi")):
        return _logical_line(source, offset)
    starts = _line_starts(source.data)
    row = bisect_right(starts, offset) - 1
    while row and source.data[starts[row - 1] : starts[row]].rstrip(b"\r\n").endswith(b"\\"):
        row -= 1
    return starts[row]


def _line_starts(data: bytes) -> list[int]:
    first = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    return [first, *(found.end() for found in _LINE_END.finditer(data))]


def _logical_line(source: SourceFile, offset: int) -> int:
    starts = _line_starts(source.data)
    row = bisect_right(starts, offset)  # from 1, as tokenize counts
    for first, last in _logical_lines(source.text):
        if first <= row <= last:
            return starts[first - 1]
    return starts[row - 1]


def _logical_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield first and last row of every statement; stops where the text is not Python."""
    first = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.NEWLINE:
                yield first, token.start[0]
                first = 0
            elif tokenize.tok_name[token.type] not in _LAYOUT and not first:
                first = token.start[0]
    except (SyntaxError, tokenize.TokenError):
        return


# --- whole files ----------------------------------------------------------------------------


def append(source: SourceFile, patch: Patch, table: Mapping[str, Any]) -> list[Match]:
    """Add text at the end of a file, on lines of its own. ``params``: new or new_file.

    A last line without line end stays without one.
    """
    params = _Params.read(patch, table, "new new_file")
    note = _comment(source, patch)
    text = f"{note}\n" * bool(note) + params.either("new").strip("\n")
    end = len(source.data)
    closed = not end or source.data.endswith((b"\n", b"\r"))
    return [_match("end of file", _insert(source, end, f"{text}\n" if closed else f"\n{text}"))]


def add_file(source: SourceFile, patch: Patch, table: Mapping[str, Any]) -> list[Match]:
    """Make a new file. ``params``: new or new_file, its text.

    Raises PatchError when the file exists.
    """
    params = _Params.read(patch, table, "new new_file")
    if source.data:
        raise PatchError(
            f"{source.path} exists, add_file makes new files only",
            hint="The installed release has this file already.",
        )
    text = params.either("new")
    first, shebang, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    note = _comment(source, patch)
    return [
        _match("new file", _insert(source, 0, first + shebang + f"{note}\n" * bool(note) + rest))
    ]


CODEMODS: dict[str, Codemod] = {
    "add_decorator": add_decorator,
    "add_file": add_file,
    "append": append,
    "insert_in_function": insert_in_function,
    "replace_block": replace_block,
    "replace_function": replace_function,
    "wrap_custom_op": wrap_custom_op,
}
