"""Codemods as text pairs: what must be refused or left alone first, then what must change."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from patchkit.codemods import CODEMODS, marker
from patchkit.errors import PatchError
from patchkit.manifest import Edit, Patch
from patchkit.splice import apply_splices
from patchkit.transform import rewrite

NOTE = "patchkit: p revision 3, see https://example.org/7"


def make_patch(**snippets: str) -> Patch:
    return Patch(
        id="p",
        revision=3,
        title="t",
        why="w",
        links=("https://example.org/7", "https://example.org/8"),
        distribution="demo-pkg",
        versions=SpecifierSet(),
        default=False,
        checks=(),
        conflicts=(),
        requires=(),
        edits=(),
        snippets={name.replace("__", "."): text for name, text in snippets.items()},
        digest="",
    )


def edit(
    codemod: str,
    before: str | bytes,
    params: Mapping[str, Any],
    *,
    path: str = "demo/a.py",
    matches: int = 1,
    **snippets: str,
) -> str | bytes:
    data = before.encode() if isinstance(before, str) else before
    wanted = Edit(path, SpecifierSet(), codemod, params, matches)
    after = apply_splices(data, rewrite(path, data, make_patch(**snippets), [wanted]))
    return after.decode() if isinstance(before, str) else after


def refused(codemod: str, before: str, params: Mapping[str, Any], **more: Any) -> str:
    with pytest.raises(PatchError) as caught:
        edit(codemod, before, params, **more)
    return caught.value.message


def test_marker_names_patch_revision_and_where_to_read() -> None:
    assert marker(make_patch()) == NOTE


@pytest.mark.parametrize("codemod", sorted(CODEMODS))
def test_unknown_key_is_refused_by_name(codemod: str) -> None:
    assert "params has no key 'colour'" in refused(codemod, "x = 1\n", {"colour": "red"})


@pytest.mark.parametrize("codemod", sorted(set(CODEMODS) - {"add_file", "append", "replace_block"}))
def test_missing_and_mistyped_keys_are_named(codemod: str) -> None:
    assert "is missing" in refused(codemod, "def f(): pass\n", {})
    params = {"function": 1, **needed(codemod)}
    message = refused(codemod, "def f(): pass\n", params)
    assert "params.function must be a string, not int" in message


def needed(codemod: str) -> dict[str, Any]:
    return {
        "add_decorator": {"decorator": "d"},
        "insert_in_function": {"new": "pass"},
        "replace_function": {"new": "pass", "parameters": []},
        "wrap_custom_op": {"parameters": []},
    }[codemod]


# --- add_decorator --------------------------------------------------------------------------

DECORATE = {"function": "f", "decorator": "d.e"}


def test_add_decorator_refuses_what_is_not_there_once() -> None:
    assert "matched 0 places" in refused("add_decorator", "def g(): pass\n", DECORATE)
    twice = "if x:\n    def f(): pass\nelse:\n    def f(): pass\n"
    message = refused("add_decorator", twice, DECORATE)
    assert "matched 2 places" in message
    assert "function f (line 2)" in message
    assert "function f (line 4)" in message


def test_add_decorator_refuses_another_signature() -> None:
    params = {**DECORATE, "parameters": ["a", "*", "b"]}
    assert "f takes (a, b), the patch is for (a, *, b)" in refused(
        "add_decorator", "def f(a, b): pass\n", params
    )
    assert edit("add_decorator", "def f(a, *, b=1): pass\n", params)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f():\n    pass\n", f"@d.e  # {NOTE}\ndef f():\n    pass\n"),
        (
            "# about f\n@first\n@second(\n    1,\n)\nasync def f(): pass",
            f"# about f\n@d.e  # {NOTE}\n@first\n@second(\n    1,\n)\nasync def f(): pass",
        ),
        (
            "try:\n\timport x\nexcept E:\n\tdef f():\n\t\tpass\n",
            f"try:\n\timport x\nexcept E:\n\t@d.e  # {NOTE}\n\tdef f():\n\t\tpass\n",
        ),
    ],
)
def test_add_decorator(before: str, after: str) -> None:
    assert edit("add_decorator", before, DECORATE) == after


def test_add_decorator_to_a_method_only() -> None:
    before = "def m(self): pass\nclass C:\n    def m(self): pass\n"
    after = f"def m(self): pass\nclass C:\n    @d  # {NOTE}\n    def m(self): pass\n"
    assert edit("add_decorator", before, {"function": "C.m", "decorator": "d"}) == after


def test_add_decorator_with_its_definition_above() -> None:
    helper = 'def d(f):\n    """One\n    two."""\n    return """a\nb"""\n'
    before = "class C:\n    def m(self): pass\n"
    after = (
        f"class C:\n    # {NOTE}\n    def d(f):\n"
        '        """One\n        two."""\n        return """a\nb"""\n\n\n'
        "    @d\n    def m(self): pass\n"
    )
    params = {"function": "C.m", "decorator": "d", "snippet": "d.py"}
    assert edit("add_decorator", before, params, d__py=helper) == after
    assert "no file 'd.py'" in refused("add_decorator", before, params)


# --- insert_in_function ---------------------------------------------------------------------

INSERT = {"function": "f", "new": "log(1)"}


LOG = f"    # {NOTE}\n    log(1)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f():\n    return 1\n", f"def f():\n{LOG}    return 1\n"),
        ("def f(): return 1\n", f"def f():\n{LOG}    return 1\n"),
        ("def f(): x = 1; return x  # c", f"def f():\n{LOG}    x = 1; return x  # c"),
        ("def f():\n    'D'\n\n    return 1\n", f"def f():\n    'D'\n{LOG}\n    return 1\n"),
        ('def f():\n    """D\n    E"""  # c\n', f'def f():\n    """D\n    E"""  # c\n{LOG}'),
        ('def f():\n    "D"', f'def f():\n    "D"\n{LOG}'.rstrip("\n")),
        ('def f(): "D"\n', f'def f():\n    "D"\n{LOG}'),
        ('def f(): "D"; return 1\n', f'def f():\n    "D"\n{LOG}    return 1\n'),
        ('def f():\n    "D"; return 1\n', f'def f():\n    "D"\n{LOG}    return 1\n'),
        (
            "def f():\n    # why\n    @d\n    def g(): pass\n",
            f"def f():\n    # why\n{LOG}    @d\n    def g(): pass\n",
        ),
        ("class C:\n\tdef f(self):\n\t\treturn 1\n", None),
    ],
)
def test_insert_in_function(before: str, after: str | None) -> None:
    if after is None:
        assert "matched 0 places" in refused("insert_in_function", before, INSERT)
    else:
        assert edit("insert_in_function", before, INSERT) == after


def test_insert_keeps_crlf_and_tabs() -> None:
    before = b"class C:\r\n\tdef f(self):\r\n\t\treturn 1\r\n"
    after = f"class C:\r\n\tdef f(self):\r\n\t\t# {NOTE}\r\n\t\tlog(1)\r\n\t\treturn 1\r\n".encode()
    assert edit("insert_in_function", before, {"function": "C.f", "new": "log(1)"}) == after


def test_insert_refuses_what_is_not_python() -> None:
    assert "not Python" in refused(
        "insert_in_function", "def f(): pass\n", {"function": "f", "new": "log("}
    )
    both = {"function": "f", "new": "x", "new_file": "x.py"}
    assert "are both there" in refused("insert_in_function", "def f(): pass\n", both)


# --- replace_function -----------------------------------------------------------------------


def replace(new: str, *parameters: str, **more: Any) -> dict[str, Any]:
    return {"function": "f", "new": new, "parameters": list(parameters), **more}


def test_replace_function_refuses_another_signature() -> None:
    message = refused("replace_function", "def f(a, b=1, *c, **d): pass\n", replace("pass", "a"))
    assert "f takes (a, b, *c, **d), the patch is for (a)" in message
    assert "params.part is 'half', must be one of function, body" in refused(
        "replace_function", "def f(): pass\n", replace("pass", part="half")
    )


def test_replace_function_leaves_decorators_comments_and_neighbours() -> None:
    before = "# a\n@d\ndef f(x):  # b\n    return 1  # c\n# d\n\ndef g(): pass\n"
    new = "def f(x):\n    return '''\nq'''\n"
    after = f"# a\n@d\n# {NOTE}\ndef f(x):\n    return '''\nq'''\n# d\n\ndef g(): pass\n"
    assert edit("replace_function", before, replace(new, "x")) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x):\n    a\n    b\n", f"def f(x):\n    # {NOTE}\n    return 2\n"),
        ("def f(x): return 1", f"def f(x):\n    # {NOTE}\n    return 2"),
        (
            'def f(x):\n    "Doc"\n\n    b\nc\n',
            f'def f(x):\n    "Doc"\n    # {NOTE}\n    return 2\nc\n',
        ),
        ('def f(x): "Doc"; return 1\n', f'def f(x):\n    "Doc"\n    # {NOTE}\n    return 2\n'),
        ('def f(x):\n    "Doc"\n', f'def f(x):\n    "Doc"\n    # {NOTE}\n    return 2\n'),
    ],
)
def test_replace_body(before: str, after: str) -> None:
    assert edit("replace_function", before, replace("return 2", "x", part="body")) == after


# --- replace_block --------------------------------------------------------------------------

GUARD = "def enc(x):\n    if x is None:\n        return 0\n    return s(x)\n\n\n"
TWO = GUARD + GUARD.replace("enc", "dec")


def test_replace_block_refuses_too_many_too_few_and_nothing() -> None:
    block = {"old": "return 0", "new": "return -1"}
    assert "matched 2 places" in refused("replace_block", TWO, block)
    assert "matched 0 places" in refused("replace_block", TWO, {**block, "inside": "other"})
    assert "params.old is empty" in refused("replace_block", TWO, {"old": " ", "new": "x"})


def test_replace_block_inside_one_function() -> None:
    block = {"old": "return 0", "new": "return -1", "inside": "enc"}
    after = TWO.replace("        return 0", f"        # {NOTE}\n        return -1", 1)
    assert edit("replace_block", TWO, block) == after


def test_replace_block_reads_its_files_and_keeps_crlf() -> None:
    before = TWO.replace("\n", "\r\n").encode()
    block = {"old_file": "old.txt", "new_file": "new.txt"}
    texts = {
        "old__txt": "def dec(x):\n    if x is None:\n",
        "new__txt": "def dec(x):\n    if not x:\n",
    }
    after = TWO.replace("def dec(x):\n    if x is None:", f"# {NOTE}\ndef dec(x):\n    if not x:")
    assert edit("replace_block", before, block, **texts) == after.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The marker never lands inside a string, a bracket or a broken line.
        ("x = '''\nold\n'''\n", f"# {NOTE}\nx = '''\nnew\n'''\n"),
        ("f(\n    1,\n    old,\n)\n", f"# {NOTE}\nf(\n    1,\n    new,\n)\n"),
        ("if x and \\\n   old:\n    pass\n", f"# {NOTE}\nif x and \\\n   new:\n    pass\n"),
        ("# old\n", f"# {NOTE}\n# new\n"),
    ],
)
def test_marker_stands_above_the_statement(before: str, after: str) -> None:
    assert edit("replace_block", before, {"old": "old", "new": "new"}) == after


def test_replace_block_in_cuda_and_json() -> None:
    macro = "#define A(x) \\\n  if (old) \\\n    y\nz\n"
    block = {"old": "old", "new": "new"}
    after = f"// {NOTE}\n#define A(x) \\\n  if (new) \\\n    y\nz\n"
    assert edit("replace_block", macro, block, path="demo/k.cuh") == after
    assert edit("replace_block", '{"old": 1}', block, path="demo/c.json") == '{"new": 1}'


def test_replace_block_edits_what_libcst_does_not_reproduce() -> None:
    after = f"x=1\n# {NOTE}\n\x0cy = new\n".encode()
    assert edit("replace_block", b"x=1\n\x0cy = old\n", {"old": "old", "new": "new"}) == after


# --- append, add_file -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"x = 1\n", f"x = 1\n# {NOTE}\ny = 2\n".encode()),
        (b"x = 1", f"x = 1\n# {NOTE}\ny = 2".encode()),
        (b"x = 1\r\n", f"x = 1\r\n# {NOTE}\r\ny = 2\r\n".encode()),
        (b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbf" + f"x = 1\n# {NOTE}\ny = 2\n".encode()),
    ],
)
def test_append(before: bytes, after: bytes) -> None:
    assert edit("append", before, {"new": "y = 2\n"}) == after


def test_add_file() -> None:
    params = {"new_file": "n.txt"}
    assert edit("add_file", "", params, n__txt="x = 1\n") == f"# {NOTE}\nx = 1\n"
    assert edit("add_file", "", params, n__txt="#!/bin/sh\nx\n", path="demo/a.sh") == (
        f"#!/bin/sh\n# {NOTE}\nx\n"
    )
    assert edit("add_file", "", params, n__txt="{}\n", path="demo/a.json") == "{}\n"
    assert "demo/a.py exists" in refused("add_file", "y = 1\n", params, n__txt="x")


# --- wrap_custom_op -------------------------------------------------------------------------

MODULE = '''\
import torch


def keep(function):
    function.kept = True
    return function


class Mode:
    def __init__(self, code):
        self.code = code


UNSET = Mode(-1)


@keep
def halve(x, scale=None, times: int = 2, *, mode=UNSET):
    """Halve the columns."""
    if times not in (2, 4):
        raise NotImplementedError("times can only be 2 or 4")
    assert x.shape[-1] % times == 0
    out = x[..., ::times].contiguous()
    out = out if scale is None else out * scale
    return out, torch.full((1,), mode.code)
'''

FAKE = """\
def fake(x, scale, times, mode):
    if times not in (2, 4):
        raise NotImplementedError("times can only be 2 or 4")
    assert x.shape[-1] % times == 0
    out = x.new_empty((*x.shape[:-1], x.shape[-1] // times))
    return out, torch.empty((1,), dtype=torch.int64)


def to_operator(mode, **arguments):
    return dict(arguments, mode=mode.code)


def from_operator(mode, **arguments):
    return dict(arguments, mode=UNSET if mode < 0 else Mode(mode))
"""

WRAP: dict[str, Any] = {
    "function": "halve",
    "parameters": ["x", "scale", "times", "*", "mode"],
    "namespace": "patchkit_tests",
    "op": "halve",
    "schema": "(Tensor x, Tensor? scale, int times, int mode) -> (Tensor, Tensor)",
    "snippets": ["fake.py"],
}


def wrapped(fake: str = FAKE, before: str = MODULE, **params: Any) -> str:
    after = edit("wrap_custom_op", before, {**WRAP, **params}, fake__py=fake)
    assert isinstance(after, str)
    return after


def operator_name(text: str) -> str:
    return text.split('name = "patchkit_tests::')[1].split('"')[0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"parameters": ["x", "scale", "times", "mode"]}, "halve takes (x, scale, times, *, mode)"),
        ({"schema": "(Tensor x, int times) -> Tensor"}, "params.schema names (x, times)"),
        ({"schema": "(Tensor x, Tensor? scale, int times=2, int mode) -> Tensor"}, "params.schema"),
        ({"namespace": "demo-pkg"}, "not a namespace of its own"),
        ({"namespace": "aten"}, "not a namespace of its own"),
        ({"snippets": ["no.py"]}, "no file 'no.py'"),
        ({"snippets": []}, "define no function 'fake'"),
        ({"snippets": "fake.py"}, "params.snippets must be a list of strings"),
        ({"function": "double"}, "matched 0 places"),
    ],
)
def test_wrap_refuses(params: dict[str, Any], message: str) -> None:
    assert message in refused("wrap_custom_op", MODULE, {**WRAP, **params}, fake__py=FAKE)


@pytest.mark.parametrize("signature", ["()", "(x, /, y)", "(x, *y)", "(x, **y)"])
def test_wrap_refuses_what_cannot_be_called_by_name(signature: str) -> None:
    names = [n.strip() for n in signature[1:-1].split(",") if n.strip()]
    params = {**WRAP, "parameters": names, "schema": "(Tensor x, Tensor y) -> Tensor"}
    assert "cannot be an operator" in refused(
        "wrap_custom_op", f"def halve{signature}: pass\n", params, fake__py=FAKE
    )


def test_wrap_only_inserts_and_stands_outermost() -> None:
    after = wrapped()
    head, _, tail = after.partition(f"# {NOTE}\n")
    assert MODULE.startswith(head)
    assert tail.endswith("@_patchkit_halve\n" + MODULE[len(head) :])
    assert "import patchkit" not in after


def test_name_changes_with_fake_schema_and_tags_only() -> None:
    name = operator_name(wrapped())
    assert name.startswith("halve_")
    assert operator_name(wrapped(before=MODULE + "\n\nx = 1\n")) == name
    assert operator_name(wrapped(FAKE.replace("1,", "2,"))) != name
    assert operator_name(wrapped(schema=WRAP["schema"].replace("int mode", "SymInt mode"))) != name
    assert operator_name(wrapped(tags=["pt2_compliant_tag"])) != name


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The patched module, imported by a torch that has compiled nothing."""
    torch = pytest.importorskip("torch")
    (tmp_path / "halves.py").write_text(wrapped())
    monkeypatch.syspath_prepend(tmp_path)
    torch.compiler.reset()
    yield importlib.import_module("halves")
    sys.modules.pop("halves", None)


def capture(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
    import torch

    targets: list[str] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        targets.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(
        lambda *a, **k: function(*a, **k), fullgraph=True, backend=backend, dynamic=False
    )
    return compiled(*args, **kwargs), [t for t in targets if "getitem" not in t]


def test_wrapper_keeps_name_docstring_signature_and_attributes(halves: ModuleType) -> None:
    import inspect

    assert halves.halve.__name__ == "halve"
    assert halves.halve.__doc__ == "Halve the columns."
    assert halves.halve.kept
    parameters = inspect.signature(halves.halve).parameters
    assert list(parameters) == ["x", "scale", "times", "mode"]
    assert parameters["times"].default == 2


def test_one_node_with_the_eager_result(halves: ModuleType) -> None:
    import torch

    x, scale = torch.arange(24.0).reshape(3, 8), torch.full((1,), 3.0)
    for args, kwargs in [
        ((x,), {}),
        ((x, scale, 4), {}),
        ((x,), {"times": 4, "mode": halves.Mode(5)}),
    ]:
        eager = halves.halve(*args, **kwargs)
        traced, targets = capture(halves.halve, *args, **kwargs)
        assert len(targets) == 1
        assert targets[0].startswith("patchkit_tests.halve_")
        assert all(map(torch.equal, eager, traced))
    assert traced[1].item() == 5


def test_operator_passes_torch_own_checks(halves: ModuleType) -> None:
    import torch

    name = operator_name(wrapped())
    operator = getattr(torch.ops.patchkit_tests, name).default
    torch.library.opcheck(operator, (torch.ones(3, 8), None, 2, -1))
    assert torch.Tag.pt2_compliant_tag in operator.tags
    assert getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order) in (
        operator.tags
    )


def test_eager_calls_do_not_go_through_the_operator(
    halves: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def explode(*_: Any, **__: Any) -> None:
        raise AssertionError("the operator was called")

    monkeypatch.setattr(torch._ops.OpOverload, "__call__", explode)
    assert halves.halve(torch.nn.Parameter(torch.ones(2, 4)))[0].shape == (2, 2)


def test_fake_tensor_without_compile_gets_the_fake(halves: ModuleType) -> None:
    import torch
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        for result in (halves.halve(torch.ones(2, 8)), halves.halve(x=torch.ones(2, 8))):
            assert result[0].shape == (2, 4)
        with pytest.raises(NotImplementedError, match="times can only be 2 or 4"):
            halves.halve(torch.ones(2, 8), times=3)


def test_error_in_a_compiled_call_names_the_eager_one(halves: ModuleType) -> None:
    import torch

    with pytest.raises(Exception, match="times can only be 2 or 4"):
        capture(halves.halve, torch.ones(2, 8), times=3)


def test_reload_and_new_import_keep_old_and_new_references_usable(halves: ModuleType) -> None:
    import torch

    old, x = halves.halve, torch.ones(2, 8)
    reloaded = importlib.reload(halves).halve
    del sys.modules["halves"]
    anew = importlib.import_module("halves").halve
    assert len({id(old), id(reloaded), id(anew)}) == 3
    targets = [capture(function, x)[1] for function in (old, reloaded, anew)]
    assert targets[0] == targets[1] == targets[2]
    assert len(targets[0]) == 1


def test_another_fake_is_another_operator(halves: ModuleType, tmp_path: Path) -> None:
    import torch

    _, first = capture(halves.halve, torch.ones(2, 8))
    (tmp_path / "halves2.py").write_text(wrapped(FAKE + "\n# another\n"))
    _, second = capture(importlib.import_module("halves2").halve, torch.ones(2, 8))
    sys.modules.pop("halves2")
    assert first != second


def test_block_in_the_first_line_behind_a_byte_order_mark() -> None:
    before = b"\xef\xbb\xbfx = 1\ny = 2\n"
    after = edit("replace_block", before, {"old": "x = 1", "new": "x = 3"})
    assert after == b"\xef\xbb\xbf# " + NOTE.encode() + b"\nx = 3\ny = 2\n"
