"""The checks of patches: run probes in the target interpreter and turn their answers into results.

Nothing is written to site-packages: probes write no bytecode, and unpatched source is tried in an
overlay, a temporary folder of links in which only the patched files are real.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from patchkit.environment import Distribution, Target
from patchkit.manifest import IMPORT, KERNEL, MOVES_ON, TRACE, Trace
from patchkit.probing import Limits, ProbeOutcome, run_probe
from patchkit.results import (
    BROKEN,
    FAILED,
    NO_LONGER_NEEDED,
    PASSED,
    PROVEN,
    SKIPPED,
    UNPROVEN,
    Case,
    Check,
    Group,
    Notify,
)

_NO_GPU = "no GPU in the target"  # as the trace probe says it
BYTES = "bytes"
NAMES = (BYTES, IMPORT, TRACE, KERNEL)
# Capability 10.0 first: 0.7.4 refuses 9.0, and a proof cites the first.
ARCHITECTURES = ("10.0", "9.0", "12.0", "12.1")
_IMPORT_FLAGS: tuple[tuple[str, ...], ...] = (("-O",), ("-OO",))


@dataclass(frozen=True)
class Options:
    """Which checks to run and how. ``architectures`` are compute capabilities, as "10.0".

    ``gpu`` lets the kernel check run, ``bench`` lets it measure; ``trace_on_gpu`` is for the trace.
    """

    names: tuple[str, ...] = NAMES
    prove: bool = False
    strict: bool = False
    architectures: tuple[str, ...] = ARCHITECTURES
    cuda: str = "13.0"
    trace_on_gpu: bool = False
    gpu: bool = False
    bench: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Subject:
    """A patch to check: its files' bytes alone on the pristine ones, and what it promises.

    ``patched`` and ``pristine`` map paths relative to site-packages to bytes (None: no such
    file). ``applied`` is False for a patch that is asked for but not applied; ``alone`` is False
    when other patches changed the same distribution, ``in_place`` is False when the installed
    files are the pristine ones: the patched bytes are tried in an overlay then.
    """

    patch: str
    distribution: Distribution
    checks: tuple[str, ...]
    trace: Trace | None
    patched: Mapping[str, bytes | None]
    pristine: Mapping[str, bytes | None]
    kernel: str = ""
    applied: bool = True
    alone: bool = True
    in_place: bool = True

    @property
    def modules(self) -> list[str]:
        """The Python files of the patch."""
        return sorted(p for p, data in self.patched.items() if p.endswith(".py") and data)


def run_checks(
    target: Target, subjects: Sequence[Subject], options: Options, notify: Notify
) -> list[Check]:
    """Run the checks that ``options`` and the patches name; a result each, sorted by patch."""
    if not subjects:
        return []
    runner = _Runner(target, options, notify)
    found: list[Check] = []
    for subject in sorted(subjects, key=lambda s: s.patch):
        if IMPORT in subject.checks and IMPORT in options.names and subject.applied:
            found.append(runner.imports(subject))
        if subject.trace and TRACE in options.names:
            found.append(runner.proof(subject) if options.prove else runner.patched(subject))
        if subject.kernel and options.gpu and KERNEL in options.names and subject.applied:
            found.append(runner.kernel(subject, subjects))
    return found


@dataclass
class _Runner:
    """Runs probes for one target; a trace of the same source is run once."""

    target: Target
    options: Options
    notify: Notify
    traces: dict[tuple[str, ...], ProbeOutcome] = field(default_factory=dict)
    kernels: dict[tuple[str, ...], Check] = field(default_factory=dict)

    def probe(
        self,
        program: str,
        flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        **argument: Any,
    ) -> ProbeOutcome:
        if self.target.python is None:
            return ProbeOutcome(error="there is no interpreter to run it in")
        outcome = run_probe(
            self.target.python,
            program,
            argument,
            flags=flags,
            environ=environ,
            limits=self.options.limits,
        )
        if outcome.error or _understood(outcome.document, argument):
            return outcome
        return replace(outcome, document={}, error="its answer cannot be understood")

    def prepend(self, first: Path | None = None) -> list[str]:
        """Return what goes first on the probe's path: an overlay, and a folder that is a target."""
        folders = [first] if first else []
        folders += self.target.path if self.target.is_folder else ()
        return [str(folder) for folder in folders]

    # import

    def imports(self, subject: Subject) -> Check:
        self.notify(f"importing what {subject.patch} changed ...")
        if subject.in_place:
            return self._imports(subject, None)
        with overlay(subject.distribution, subject.patched) as folder:
            return self._imports(subject, folder)

    def _imports(self, subject: Subject, folder: Path | None) -> Check:
        check = Check(subject.patch, IMPORT, PASSED)
        for flags in ((), *_IMPORT_FLAGS):
            outcome = self._import(subject, folder, flags)
            check = replace(check, seconds=check.seconds + outcome.seconds)
            if problem := _import_problem(outcome, flags):
                return self._import_failed(subject, check, problem, outcome)
        names = ", ".join(_module(path) for path in subject.modules)
        return replace(check, detail=f"{names}; runs the patched code, also with -O and -OO")

    def _import(self, subject: Subject, folder: Path | None, flags: Sequence[str]) -> ProbeOutcome:
        root = folder or subject.distribution.site_packages
        modules = [{"name": _module(p), "path": str(root / p)} for p in subject.modules]
        prepend = self.prepend(folder)
        return self.probe(
            "import_probe.py", flags, prepend=prepend, modules=modules, load=not flags
        )

    def _import_failed(
        self, subject: Subject, check: Check, problem: str, outcome: ProbeOutcome
    ) -> Check:
        """Tell a fault of the patch from a library that does not import here unpatched either."""
        with overlay(subject.distribution, subject.pristine) as folder:
            stock = self._import(subject, folder, ())
            same = _import_problem(stock, ()).replace(str(folder), "") == problem.replace(
                str(subject.distribution.site_packages), ""
            )
        if same and not outcome.error:
            missing = _missing(outcome, subject.distribution)
            detail = f"does not import here, unpatched either: {problem}"
            detail = f"{missing} is not installed here" if missing else detail
            return replace(check, outcome=SKIPPED, detail=detail)
        return replace(check, outcome=FAILED, detail=problem, tail=outcome.tail)

    # trace

    def trace(self, subject: Subject) -> Check:
        """Trace the installed source of an applied patch, or of one that is not in place."""
        assert subject.trace
        return self._judged(subject, self._traced(subject.trace, "installed", None))

    def proof(self, subject: Subject) -> Check:
        """Trace without and with the patch, and say whether it is needed and does its work."""
        assert subject.trace
        if not subject.applied:
            return self.trace(subject)
        stock = self._trace_pristine(subject)
        check = self.patched(subject)
        if check.outcome == SKIPPED:
            return check
        if check.outcome == FAILED:
            return replace(check, proof=BROKEN)
        if _capture(stock) is None:
            detail = f"the unpatched source could not be traced: {stock.error or _no_import(stock)}"
            return replace(check, outcome=SKIPPED, detail=detail, tail=stock.tail)
        return _without_patch(check, subject.trace, stock)

    def _trace_pristine(self, subject: Subject) -> ProbeOutcome:
        assert subject.trace
        plain = replace(subject.trace, gives="")  # one and the same for all patches
        with overlay(subject.distribution, subject.pristine) as folder:
            return self._traced(plain, f"{subject.distribution.key} pristine", folder)

    def patched(self, subject: Subject) -> Check:
        """Trace the source with the patch, in an overlay where it is not alone or not in place."""
        assert subject.trace
        if subject.alone and subject.in_place:
            return self.trace(subject)
        with overlay(subject.distribution, subject.patched) as folder:
            outcome = self._traced(subject.trace, f"{subject.patch} alone", folder)
        return self._judged(subject, outcome)

    def _judged(self, subject: Subject, outcome: ProbeOutcome) -> Check:
        """Tell a fault of the patch from a library that does not import here unpatched either."""
        assert subject.trace
        check = _trace_check(subject, subject.trace, outcome)
        if check.outcome == SKIPPED and subject.applied:
            stock = self._trace_pristine(subject)
            if not stock.error and not _no_import(stock):
                detail = f"only the unpatched source imports: {_no_import(outcome)}"
                return replace(check, outcome=FAILED, detail=detail)
        return check

    def _traced(self, trace: Trace, source: str, folder: Path | None) -> ProbeOutcome:
        key = (trace.scenario, trace.gives, source)
        if key not in self.traces:
            self.notify(f"tracing {trace.scenario}, {source} source ...")
            self.traces[key] = self.probe(
                "trace_probe.py",
                prepend=self.prepend(folder),
                scenario=trace.scenario,
                architectures=list(self.options.architectures),
                cuda=self.options.cuda,
                use_gpu=self.options.trace_on_gpu,
                capture_only=trace.gives == MOVES_ON,
            )
        return self.traces[key]

    # kernel

    def kernel(self, subject: Subject, subjects: Sequence[Subject]) -> Check:
        """Run the installed kernel on the GPU, under all patches of its distribution; once."""
        key = (subject.kernel, subject.distribution.key)
        if first := self.kernels.get(key):
            detail = f"{first.detail} (as for {first.patch})"
            return Check(subject.patch, KERNEL, first.outcome, detail)
        self.notify(f"running {subject.kernel} on the GPU ...")
        together = [s for s in subjects if s.distribution.key == subject.distribution.key]
        cache = _jit_cache(subject.distribution, together)
        if problem := _cannot_make(cache):
            return Check(subject.patch, KERNEL, FAILED, problem)
        outcome = self.probe(
            "kernel_probe.py",
            environ={"FLASHINFER_WORKSPACE_BASE": str(cache)},
            prepend=self.prepend(),
            scenario=subject.kernel,
            bench=self.options.bench,
        )
        self.kernels[key] = _kernel_check(subject, outcome)
        return self.kernels[key]


def _jit_cache(distribution: Distribution, subjects: Sequence[Subject]) -> Path:
    """Return the folder for modules built from exactly these sources, in patchkit's own cache."""
    site = distribution.site_packages
    digest = hashlib.sha256(f"{site}\n{distribution.version}\n".encode())
    for path in sorted({path for subject in subjects for path in subject.patched}):
        if (site / path).is_file():
            digest.update(
                f"{path}\n".encode() + hashlib.sha256((site / path).read_bytes()).digest()
            )
    home = os.environ.get("XDG_CACHE_HOME", "")
    home = home if os.path.isabs(home) else os.path.expanduser("~/.cache")
    return Path(home, "patchkit", "jit", digest.hexdigest()[:16])


def _cannot_make(folder: Path) -> str:
    """Say why a folder cannot be made, or ''."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"cannot make {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder of yours"
    return ""


def _understood(document: Mapping[str, Any], argument: Mapping[str, Any]) -> bool:
    """Say whether an answer has the shape a probe gives it: what it imports can damage it."""
    try:
        if "bench" in argument:
            return _kernel_understood(document)
        if "modules" in argument:
            asked = [m["name"] for m in argument["modules"]]
            modules = document["modules"]
            return [m["name"] for m in modules] == asked and _texts(modules, "error", "missing")
        runs = document["runs"]
        expected = 1 if argument["use_gpu"] else len(argument["architectures"])
        answered = bool(document["import_error"]) or len(runs) == expected
        return answered and _texts([document], "import_error", "missing") and _runs_understood(runs)
    except (KeyError, TypeError):
        return False


def _runs_understood(runs: Sequence[Mapping[str, Any]]) -> bool:
    captures = [run["capture"] for run in runs]
    errors = [c["error"] for c in captures if c["error"] is not None]
    lists = [run["problems"] for run in runs] + [c["operators"] for c in captures]
    lists += [error["through"] for error in errors]
    return (
        all(type(found) is list for found in lists)
        and all(type(run["cases"]) is int for run in runs)
        and _texts(runs, "architecture")
        and _texts(errors, "kind", "first_line", "file", "function")
    )


def _kernel_understood(document: Mapping[str, Any]) -> bool:
    cases = [case for group in document["groups"] for case in group["cases"]]
    return (
        _texts([document], "import_error", "missing", "trouble", "nothing", "gpu", "architecture")
        and _texts(document["groups"], "name")
        and _texts(cases, "name", "problem")
        and all(type(group["seconds"]) in (int, float) for group in document["groups"])
        and all(type(note) is str for note in document["notes"])
        and type(document["bench"]) in (dict, type(None))
    )


def _texts(tables: Sequence[Mapping[str, Any]], *keys: str) -> bool:
    return all(type(table[key]) is str for table in tables for key in keys)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _import_problem(outcome: ProbeOutcome, flags: Sequence[str]) -> str:
    if outcome.error:
        return f"the import probe failed: {outcome.error}"
    for module in outcome.document.get("modules", ()):
        if module["error"]:
            return f"{' '.join(['python', *flags])}: {module['name']}: {module['error']}"
    return ""


def _missing(outcome: ProbeOutcome, distribution: Distribution) -> str:
    """Return the top-level module that is not installed and not of the distribution, or ''."""
    own = {path.split("/")[0] for path in distribution.record}
    names = [m.get("missing", "") for m in outcome.document.get("modules", ())]
    names.append(outcome.document.get("missing", ""))
    return next((n for n in names if n and n.split(".")[0] not in own), "")


# The trace probe's document


def _no_import(outcome: ProbeOutcome) -> str:
    return str(outcome.document.get("import_error") or "")


def _capture(outcome: ProbeOutcome) -> Mapping[str, Any] | None:
    """Return the first capture, or None when the probe did not get that far."""
    if outcome.error or _no_import(outcome):
        return None
    runs = outcome.document.get("runs") or [{}]
    capture = runs[0].get("capture")
    return capture if isinstance(capture, Mapping) else None


def _stops_as_expected(trace: Trace, capture: Mapping[str, Any]) -> bool:
    """Match the error by its kind and by a function on the way, not by torch's wording."""
    error = capture.get("error")
    if not error:
        return False
    return bool(error["kind"] == trace.kind and trace.through in _functions(error))


def _functions(error: Mapping[str, Any]) -> list[str]:
    return [str(step).partition(" ")[0] for step in error.get("through", ())]


def _barrier(capture: Mapping[str, Any]) -> str:
    error = capture["error"]
    return f"{error['kind']}: {error['first_line']} (in {error['function']}, {error['file']})"


def _without_patch(check: Check, trace: Trace, stock: ProbeOutcome) -> Check:
    """Compare what passes with the patch to what the unpatched source does."""
    run = stock.document["runs"][0]
    capture = run["capture"]
    if _stops_as_expected(trace, capture):
        return replace(
            check, proof=PROVEN, detail=f"{check.detail}; unpatched: {_barrier(capture)}"
        )
    if capture.get("error"):
        detail = f"the unpatched source stops elsewhere: {_barrier(capture)}"
        detail += f"; expected {trace.kind} through {trace.through}"
        return replace(check, proof=UNPROVEN, detail=detail)
    if trace.gives != MOVES_ON and run["problems"]:
        detail = f"{check.detail}; unpatched it compiles, wrongly: {run['problems'][0]}"
        return replace(check, proof=PROVEN, detail=detail)
    return replace(check, proof=NO_LONGER_NEEDED, detail="the unpatched source passes too")


def _trace_check(subject: Subject, trace: Trace, outcome: ProbeOutcome) -> Check:
    check = Check(subject.patch, TRACE, FAILED, seconds=outcome.seconds, tail=outcome.tail)
    if outcome.error:
        return replace(check, detail=f"the trace probe failed: {outcome.error}")
    if missing := _missing(outcome, subject.distribution):
        return replace(check, outcome=SKIPPED, detail=f"{missing} is not installed here")
    if error := _no_import(outcome):
        said = error if error == _NO_GPU else f"it does not import here: {error}"
        return replace(check, outcome=SKIPPED, detail=said)
    runs = outcome.document.get("runs") or []
    if not runs:
        return replace(check, detail="the trace probe gave no result")
    if trace.gives == MOVES_ON:
        return _moves_on(check, trace, runs)
    return _one_operator(check, runs)


def _moves_on(check: Check, trace: Trace, runs: Sequence[Mapping[str, Any]]) -> Check:
    for run in runs:
        error = run["capture"]["error"]
        if error and trace.through in _functions(error):
            detail = f"still stops in {trace.through}: {_barrier(run['capture'])}"
            return replace(check, detail=detail, chain=tuple(error["through"]))
    where = _barrier(runs[0]["capture"]) if runs[0]["capture"]["error"] else "capture passes"
    return replace(check, outcome=PASSED, detail=f"no longer stops in {trace.through}; {where}")


def _one_operator(check: Check, runs: Sequence[Mapping[str, Any]]) -> Check:
    for run in runs:
        arch = run["architecture"]
        if error := run["capture"]["error"]:
            detail = f"on {arch}, fullgraph stops: {_barrier(run['capture'])}"
            return replace(check, detail=detail, chain=tuple(error["through"]))
        if run["problems"]:
            more = len(run["problems"]) - 1
            detail = f"on {arch}: {run['problems'][0]}" + f" (and {more} more)" * bool(more)
            return replace(check, detail=detail)
    names = ", ".join(run["architecture"] for run in runs)
    cases = sum(run["cases"] for run in runs)
    operator = ", ".join(runs[0]["capture"]["operators"])
    detail = f"one graph, one operator {operator}; {cases} cases on {names}"
    return replace(check, outcome=PASSED, detail=detail)


# The kernel probe's document


def _kernel_check(subject: Subject, outcome: ProbeOutcome) -> Check:
    """Judge a run on the GPU. It was asked for: where it cannot be made, it fails."""
    check = Check(subject.patch, KERNEL, FAILED, seconds=outcome.seconds, tail=outcome.tail)
    if outcome.error:
        return replace(check, detail=f"the kernel probe failed: {outcome.error}")
    document = outcome.document
    check = replace(check, groups=_groups(document), bench=document["bench"])
    if error := _no_import(outcome):
        missing = _missing(outcome, subject.distribution)
        absent = f"{missing} is not installed here; --python names the interpreter that has it"
        return replace(check, detail=absent if missing else f"no import: {error}")
    if problem := document["trouble"] or document["nothing"]:
        return replace(check, detail=_noted(problem, document))
    cases = [case for group in check.groups for case in group.cases]
    bad = [case for case in cases if case.problem]
    if bad or not cases:
        first = f"; first: {bad[0].name}: {bad[0].problem}" if bad else ""
        detail = f"{len(bad)} of {len(cases)} cases failed{first}"
        return replace(check, detail=_noted(detail, document))
    detail = f"{len(cases)} cases on {document['gpu']} ({document['architecture']})"
    return replace(check, outcome=PASSED, detail=_noted(detail, document))


def _noted(detail: str, document: Mapping[str, Any]) -> str:
    return "; ".join([detail, *document["notes"]])


def _groups(document: Mapping[str, Any]) -> tuple[Group, ...]:
    return tuple(
        Group(
            group["name"],
            group["seconds"],
            tuple(Case(case["name"], case["problem"]) for case in group["cases"]),
        )
        for group in document["groups"]
    )


# Overlays


@contextmanager
def overlay(distribution: Distribution, contents: Mapping[str, bytes | None]) -> Iterator[Path]:
    """Give a folder that looks like the distribution with other contents for some files.

    Folders on the way to such a file are real, all else is linked. The target is not touched.
    """
    with tempfile.TemporaryDirectory(prefix="patchkit-overlay-") as name:
        root = Path(name)
        for top in sorted({path.split("/")[0] for path in contents}):
            _mirror(distribution.site_packages, root, top, contents)
        yield root


def _mirror(site: Path, root: Path, path: str, contents: Mapping[str, bytes | None]) -> None:
    here = root / path
    if path in contents:
        if (data := contents[path]) is not None:
            here.write_bytes(data)
    elif not any(other.startswith(f"{path}/") for other in contents):
        here.symlink_to(site / path)
    else:
        here.mkdir()
        names = {p.name for p in (site / path).iterdir()} if (site / path).is_dir() else set()
        names |= {c[len(path) + 1 :].split("/")[0] for c in contents if c.startswith(f"{path}/")}
        for name in sorted(names - {"__pycache__"}):
            _mirror(site, root, f"{path}/{name}", contents)
