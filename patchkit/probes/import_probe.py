"""Probe: whether patched modules import, and whether the code that runs is the code in the file.

Runs in the target interpreter without patchkit. Argument: a JSON object with ``prepend`` (folders
to put first on ``sys.path``), ``modules`` (objects with ``name`` and ``path``) and ``load``
(false: only compare bytecode, import nothing). Prints ``{"python", "optimize", "modules"}``, each
module with ``error``, '' when all is well, and ``missing``, the module that was not found, or ''.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
from typing import Any


def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Check every module and return the answer."""
    sys.path[:1] = argument["prepend"]
    results = []
    for module in argument["modules"]:
        missing = ""
        try:
            error = check(module["name"], module["path"], argument["load"])
        except BaseException as problem:
            error = describe(problem)
            if isinstance(problem, ModuleNotFoundError):
                missing = problem.name or ""
        results.append({"name": module["name"], "error": error, "missing": missing})
    return {
        "python": sys.version.split()[0],
        "optimize": sys.flags.optimize,
        "modules": results,
    }


def check(name: str, path: str, load: bool) -> str:
    """Return what is wrong with a module, or ''."""
    if load:
        module = importlib.import_module(name)
        found = getattr(module, "__file__", None)
        if not found or not os.path.samefile(found, path):
            return f"import takes it from {found}, not from {path}"
    loader = importlib.machinery.SourceFileLoader(name, path)
    with open(path, "rb") as file:
        source = file.read()
    expected = compile(source, path, "exec", dont_inherit=True)
    if loader.get_code(name) != expected:
        return f"its cached bytecode is not the code in {path}"
    return ""


def describe(problem: BaseException) -> str:
    """Return an exception in one line."""
    if isinstance(problem, (KeyboardInterrupt, GeneratorExit)):
        raise problem
    return f"{type(problem).__name__}: {problem}"


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    document = json.dumps(main(json.loads(sys.argv[1])))
    out.write(f"\n<patchkit>{document}</patchkit>\n")
    out.flush()
    os._exit(0)  # what the library left running, threads and exit handlers, is not waited for
