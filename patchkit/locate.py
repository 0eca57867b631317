"""Finding definitions in a LibCST tree by dotted name. Imported only when a tree is there."""

from __future__ import annotations

import libcst as cst


class _Finder(cst.CSTVisitor):
    def __init__(self, qualname: str) -> None:
        self.wanted = qualname.split(".")
        self.path: list[str] = []
        self.found: list[cst.FunctionDef] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return self._enter(node.name.value)

    def leave_ClassDef(self, _original_node: cst.ClassDef) -> None:
        self.path.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        if [*self.path, node.name.value] == self.wanted:
            self.found.append(node)
        return self._enter(node.name.value)

    def leave_FunctionDef(self, _original_node: cst.FunctionDef) -> None:
        self.path.pop()

    def _enter(self, name: str) -> bool:
        self.path.append(name)
        return self.wanted[: len(self.path)] == self.path


def find_functions(module: cst.Module, qualname: str) -> list[cst.FunctionDef]:
    """Return every definition of a dotted name in ``module``, in source order."""
    finder = _Finder(qualname)
    module.visit(finder)
    return finder.found
