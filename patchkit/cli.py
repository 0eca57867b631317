"""The command line: parse, call, render, exit code. Nothing else prints."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from patchkit import __version__, inspection, report
from patchkit.catalog import (
    Catalog,
    Project,
    load_catalog,
    load_project,
    patches_in,
    read_patch,
)
from patchkit.checks import ARCHITECTURES, NAMES, Options
from patchkit.environment import REINSTALL, Target, find_target
from patchkit.errors import PatchkitError
from patchkit.files import store_error
from patchkit.manifest import KERNEL, Patch
from patchkit.plaintext import visible
from patchkit.probing import Limits
from patchkit.results import FileDiff, Result
from patchkit.sites import recover
from patchkit.store import say_on_terminal

F = TypeVar("F", bound=Callable[..., Any])

_OWN_COMMANDS = re.compile(r"\bpatchkit (apply|diff|list|repair|revert|status|verify)\b")
_WITH_DIFFS = ("applied", "drifted", "faulty")
_EXIT = "Exit codes: 0 the environment is in the state asked for, 1 it is not, 2 wrong usage."


@dataclass
class Session:
    """One command: its options, and what they lead to, found when first asked for."""

    command: str
    python: str | None
    site_packages: str | None
    patches: tuple[str, ...]
    as_json: bool
    found: Target | None = None
    reports: dict[Path, Callable[[Result], str]] = field(default_factory=dict)
    annotates: bool = False
    allow_code: tuple[str, ...] = ()

    def target(self) -> Target:
        """Return the target; raises TargetError."""
        if self.found is None:
            self.found = find_target(self.python, self.site_packages)
        return self.found

    def project(self) -> Project:
        """Return the project's choice of patches; raises ManifestError."""
        return load_project(_working_folder())

    def catalog(self) -> Catalog:
        """Return every patch known; raises ManifestError."""
        return load_catalog(self.patches, self.project(), _working_folder(), self._barred)

    def _barred(self, patch: Patch) -> str:
        """Say why the code of a patch may not run; --allow-code lets it, this time."""
        from patchkit import allowing

        folder = Path(patch.folder).resolve()
        given = {Path(path).resolve() for path in self.allow_code}
        return "" if given & {folder, *folder.parents} else allowing.barred(patch)

    def knows(self, patch_id: str) -> bool:
        """Say whether there is a patch of that name; where that cannot be told, there may be."""
        try:
            return self.catalog().find(patch_id) is not None
        except PatchkitError:
            return True

    def show(self, result: Result, render: Callable[[Result], str], **extra: Any) -> None:
        """Print a result, its hints aimed at this target, and leave with its exit code."""
        result = self._aimed(result)
        result = replace(result, problems=(*result.problems, *self._write_reports(result)))
        if self.as_json:
            extra.setdefault("patches", [report.row_dict(row) for row in result.rows])
            document = report.document(
                self.command, self.found, ok=result.ok, result=result, **extra
            )
            _say(document)
        elif text := render(result):
            _say(text)
        self._annotate(result)
        sys.exit(0 if result.ok else 1)

    def _write_reports(self, result: Result) -> Iterator[str]:
        """Write the files the user named, and say which could not be written."""
        for file, text_of in self.reports.items():
            try:
                _write(file, text_of(result))
            except PatchkitError as error:
                yield error.message

    def _annotate(self, result: Result) -> None:
        from patchkit.github import annotate

        if self.annotates and (text := annotate(result)):
            click.echo(text)

    def page(self, result: Result) -> str:
        """Return the web page of a result, with what the recorded patches changed."""
        from patchkit.webpage import page

        ids = [row.id for row in result.rows if row.state in _WITH_DIFFS]
        diffs: list[FileDiff] = []
        try:
            if ids:
                diffs = inspection.diff(
                    self.target(), self.catalog, ids, self.project(), say_on_terminal
                )
        except PatchkitError as error:
            warning = f"the changes cannot be shown: {error.message}"
            result = replace(result, warnings=(*result.warnings, warning))
        target = self.found or Target((), "not found")
        return page(result, target, diffs, f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}")

    def _aimed(self, result: Result) -> Result:
        rows = tuple(replace(row, hint=self.aim(row.hint)) for row in result.rows)
        repairs = tuple(replace(found, hint=self.aim(found.hint)) for found in result.repairs)
        warnings = tuple(map(self.aim, result.warnings))
        problems = tuple(map(self.aim, result.problems))
        return replace(result, rows=rows, repairs=repairs, warnings=warnings, problems=problems)

    def aim(self, hint: str) -> str:
        """Let the commands of a hint act on the target of this command, not on the default."""
        if self.site_packages is not None:
            options = f" --site-packages {shlex.quote(self.site_packages)}"
            pip = f"pip install --upgrade --no-deps --target {shlex.quote(self.site_packages)}"
            options += f" --python {shlex.quote(self.python)}" if self.python else ""
        elif self.python is not None:
            options = f" --python {shlex.quote(self.python)}"
            python = self.found.python if self.found and self.found.python else self.python
            pip = f"{shlex.quote(python)} -m {REINSTALL}"
            if self.found and not any((folder / "pip").is_dir() for folder in self.found.path):
                pip = f"uv pip install --python {shlex.quote(python)} --reinstall --no-deps"
        else:
            return hint
        hint = _OWN_COMMANDS.sub(lambda found: found.group() + options, hint)
        return hint.replace(REINSTALL, pip)

    def refuse(self, error: PatchkitError) -> None:
        """Print an error and what to type next, and leave with exit code 1."""
        error.hint = self.aim(error.hint)
        failed = Result((), problems=(error.message,))
        error.message = "; ".join([error.message, *self._write_reports(failed)])
        if self.as_json:
            click.echo(report.document(self.command, self.found, ok=False, error=error))
        else:
            click.echo(click.style("error: ", fg="red") + visible(error.message), err=True)
            if error.hint:
                click.echo(f"hint: {visible(error.hint)}", err=True)
        self._annotate(failed)
        sys.exit(1)


def _say(text: str) -> None:
    """Print a result; leave with exit code 1 when that cannot be, as on a full disk."""
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:  # click leaves quietly when the reader has
            raise
        click.echo(f"error: cannot write the output: {error.strerror}", err=True)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (Python would try again at its end)
        sys.exit(1)


def _unusable(error: OSError) -> PatchkitError:
    """Return the refusal for a file that cannot be read or written, wherever that came out."""
    return store_error("use", Path(os.fsdecode(error.filename or "a file")), error)


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was removed: nothing is found in it
        return Path()


def _target_options(function: F) -> F:
    """Add the options every command has."""
    options = [
        click.option("--python", metavar="PATH", help="Target interpreter, or an environment."),
        click.option(
            "--site-packages",
            metavar="DIR",
            help="Target folder (also of pip install --target); --python then runs its checks.",
        ),
        click.option(
            "--patches", metavar="DIR", multiple=True, help="More patches; may be repeated."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json.md)."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


_code_option = click.option(
    "--allow-code",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Let patches in this folder run their codemod.py, this time; may be repeated.",
)


def _architectures(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for value in given:
        if not re.fullmatch(r"\d+\.\d", value):
            raise click.BadParameter(f"{value!r} is not a compute capability such as 10.0")
    return given or ARCHITECTURES


def _check_options(*names: str) -> Callable[[F], F]:
    """Add the options that say which checks to run and how."""
    options = [
        click.option(
            "--check",
            "picked",
            multiple=True,
            type=click.Choice(names),
            help="Run this check only (may be repeated); bytes always are.",
        ),
        click.option(
            "--skip",
            multiple=True,
            type=click.Choice(names[1:]),
            help="Leave this check out; may be repeated.",
        ),
        click.option(
            "--strict", is_flag=True, help="Skipped checks and patches not needed fail too."
        ),
        click.option(
            "--prove", is_flag=True, help="Check the unpatched source too: is the patch needed?"
        ),
        click.option(
            "--arch",
            multiple=True,
            metavar="CAPABILITY",
            callback=_architectures,
            help=f"Compute capability to simulate; repeatable.  [{', '.join(ARCHITECTURES)}]",
        ),
        click.option(
            "--trace-on-gpu", is_flag=True, help="Trace on the target's GPU, do not simulate one."
        ),
        click.option(
            "--timeout",
            default=300.0,
            show_default=True,
            help="Seconds one probe may take.",
        ),
    ]

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _options(
    picked: tuple[str, ...],
    skip: tuple[str, ...],
    strict: bool,
    prove: bool,
    arch: tuple[str, ...],
    trace_on_gpu: bool,
    timeout: float,
    gpu: bool = False,
    bench: bool = False,
) -> Options:
    if both := [name for name in picked if name in skip]:
        raise click.UsageError(f"--check {both[0]} asks for what --skip {both[0]} leaves out")
    names = tuple(name for name in picked or NAMES if name not in skip)
    if KERNEL in picked and not gpu:
        raise click.UsageError("the kernel check runs with --gpu; give that too")
    if gpu and KERNEL not in names:
        raise click.UsageError(
            "--gpu asks for the kernel check, and --check or --skip leave it out"
        )
    if not timeout > 0:  # nan is not either
        raise click.UsageError("--timeout takes a number of seconds above 0")
    if bench and not gpu:
        raise click.UsageError("--bench measures on the GPU; give --gpu too")

    return Options(
        names=names,
        prove=prove,
        strict=strict,
        architectures=arch,
        trace_on_gpu=trace_on_gpu,
        gpu=gpu,
        bench=bench,
        limits=Limits(seconds=timeout),
    )


def _report_options(function: F) -> F:
    """Add the options that ask for reports."""
    file = click.Path(dir_okay=False, path_type=Path)
    options = [
        click.option("--junit", metavar="FILE", type=file, help="Write JUnit XML for CI systems."),
        click.option("--html", metavar="FILE", type=file, help="Write a web page."),
        click.option("--github", is_flag=True, help="Print GitHub annotations too."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _ask_for_reports(
    session: Session, junit: Path | None, html: Path | None, github: bool, bench: Path | None
) -> None:
    """Let a session write reports; refuses at once what could not be written at the end."""
    from patchkit import junit as junit_xml

    if github and session.as_json:
        raise click.UsageError("give --json or --github, not both")
    files = [file for file in (junit, html, bench) if file is not None]
    if len({os.path.realpath(file) for file in files}) < len(files):
        raise click.UsageError("two reports name the same file")
    for file in files:
        _check_writable(file)
    session.annotates = github
    if junit is not None:
        session.reports[junit] = lambda result: junit_xml.junit(result, session.command)
    if html is not None:
        session.reports[html] = session.page
    if bench is not None:
        session.reports[bench] = report.bench


def _check_writable(file: Path) -> None:
    """Raise PatchkitError where a file that the user named cannot be, before it is made."""
    if file.is_dir():
        raise PatchkitError(f"cannot write {file}: it is a folder", hint="Name a file.")
    if not file.parent.is_dir():
        raise PatchkitError(
            f"cannot write {file}: no folder {file.parent}",
            hint=f"mkdir -p {shlex.quote(str(file.parent))}",
        )


def _write(file: Path, text: str) -> None:
    """Write a file the user named; raises PatchkitError when that cannot be."""
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise PatchkitError(
            f"cannot write {file}: {error.strerror}", hint="Name another file."
        ) from error


def _command(name: str, examples: str) -> Callable[[F], click.Command]:
    """Register a command whose function takes a Session first, and whose errors are shown."""

    def register(function: F) -> click.Command:
        def run(
            python: str | None,
            site_packages: str | None,
            patches: tuple[str, ...],
            as_json: bool,
            **options: Any,
        ) -> None:
            code = options.pop("allow_code", ())
            session = Session(name, python, site_packages, patches, as_json, allow_code=code)
            try:
                function(session, **options)
            except PatchkitError as error:
                session.refuse(error)
            except OSError as error:
                if error.errno == errno.EPIPE:  # click leaves quietly when the reader has
                    raise
                session.refuse(_unusable(error))

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.splitlines())
        return main.command(name, epilog=f"{epilog}\n\n{_EXIT}")(_target_options(run))

    return register


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="patchkit")
@click.pass_context
def main(context: click.Context) -> None:
    """Apply versioned, reversible patches to installed ML packages.

    The target is --python, --site-packages, $VIRTUAL_ENV, or the interpreter running patchkit,
    in this order.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False


@_command("list", "patchkit list\npatchkit list --python /srv/venv --json")
def list_(session: Session) -> None:
    """List the patches known and whether they fit the target."""
    catalog = session.catalog()
    result = inspection.list_patches(session.target(), catalog)
    session.show(
        result,
        lambda result: report.catalog_table(catalog, result),
        patches=report.catalog_rows(catalog, result),
    )


@_command("status", "patchkit status\npatchkit status --site-packages ./vendored --json")
def status(session: Session) -> None:
    """Say for each patch whether it is applied, and whether what is recorded still holds."""
    catalog = session.catalog()
    result = inspection.status(session.target(), catalog, say_on_terminal)
    session.show(result, lambda result: report.table(result) or "no patches")


@_command("diff", "patchkit diff\npatchkit diff flashinfer-cuda-version --python /srv/venv")
@click.argument("patch", nargs=-1)
@_code_option
def diff(session: Session, patch: tuple[str, ...]) -> None:
    """Show what patches changed, or what applying them would change, as unified diffs."""
    diffs = inspection.diff(
        session.target(), session.catalog, patch, session.project(), say_on_terminal
    )
    rows = [
        {
            "patch": d.patch,
            "state": d.state,
            "path": d.path,
            "diff": report.unified([d], colour=False),
        }
        for d in diffs
    ]
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None: closed by who started us
    colour = terminal and not os.environ.get("NO_COLOR")
    text = report.unified(diffs, colour=colour, terminal=terminal).rstrip("\n")
    session.show(Result(()), lambda _: text, diffs=rows)


@_command(
    "apply",
    "patchkit apply\npatchkit apply --dry-run\n"
    "patchkit apply flashinfer-fp4-quantize-custom-op --python /srv/venv",
)
@click.argument("patch", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@_code_option
def apply(session: Session, patch: tuple[str, ...], dry_run: bool) -> None:
    """Apply patches: those named, else the project's set, else the defaults that fit."""
    from patchkit import applying

    target = session.target()
    if not dry_run:
        recover(target, say_on_terminal)  # first, whatever is wrong with what is asked for
    result = applying.apply(
        target,
        session.catalog(),
        patch,
        session.project(),
        dry_run=dry_run,
        notify=say_on_terminal,
    )
    session.show(result, report.changes, dry_run=dry_run)


@_command(
    "verify",
    "patchkit verify\npatchkit verify --check bytes --json\n"
    "patchkit verify --prove --strict --arch 10.0\n"
    "patchkit verify --gpu --bench bench.json\n"
    "patchkit verify --junit junit.xml --html verify.html --github",
)
@click.argument("patch", nargs=-1)
@click.option(
    "--gpu", is_flag=True, help="Run the patched kernel on the target's GPU; fails without one."
)
@click.option(
    "--bench",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Measure on the GPU too, and write the figures as JSON (docs/gpu.md).",
)
@_check_options(*NAMES)
@_report_options
def verify(
    session: Session,
    patch: tuple[str, ...],
    bench: Path | None,
    junit: Path | None,
    html: Path | None,
    github: bool,
    **options: Any,
) -> None:
    """Check what is applied: its bytes, then whether it imports and compiles; change nothing.

    A check that cannot run here is skipped with its reason. With --gpu, the kernel is run and
    compared with a reference, eager, compiled and in CUDA graphs.
    """
    from patchkit import verifying

    how = _options(**options, bench=bench is not None)
    _ask_for_reports(session, junit, html, github, bench)
    result = verifying.verify(
        session.target(),
        patch,
        session.project(),
        session.catalog,
        how,
        known=session.knows,
        notify=say_on_terminal,
    )
    session.show(result, report.table)


@_command(
    "check",
    "patchkit check flashinfer-python==0.6.12\n"
    "patchkit check ./flashinfer_python-0.7.4-py3-none-any.whl --python /srv/venv\n"
    "patchkit check --all-releases --output support.md",
)
@click.argument("release", nargs=-1)
@click.option("--patch", "ids", metavar="ID", multiple=True, help="Check this patch; repeatable.")
@click.option("--all-releases", is_flag=True, help="Every release that pip finds in range.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a Markdown table.",
)
@click.option(
    "--jobs",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Releases looked at at a time.",
)
@_code_option
@_check_options(*(name for name in NAMES if name != KERNEL))
def check(
    session: Session,
    release: tuple[str, ...],
    ids: tuple[str, ...],
    all_releases: bool,
    output: Path | None,
    jobs: int,
    **options: Any,
) -> None:
    """Say whether patches would fit and work on a release, before it is installed.

    RELEASE is NAME==VERSION, fetched with pip, or a wheel, an sdist, or a folder that packages are
    installed in. It is unpacked into a temporary folder; no environment is touched. Traces run in
    the target's interpreter. Without --patch it takes the project's set, else the defaults, and
    with --all-releases every patch.
    """
    from patchkit import rehearsal

    if bool(release) == all_releases:
        raise click.UsageError("name releases to check, or give --all-releases")
    how = _options(**options)
    if output is not None:
        _check_writable(output)
    catalog, project = session.catalog(), session.project()
    patches = rehearsal.choose(catalog, ids, project, everything=all_releases)
    given = rehearsal.in_range(patches) if all_releases else release
    found = rehearsal.rehearse(
        given, patches, session.target(), how, jobs=jobs, notify=say_on_terminal
    )
    if output is not None:
        session.reports[output] = lambda _: rehearsal.support_page(found, patches)
    result = rehearsal.verdict(found, must_fit=not all_releases)
    if not ids and (others := rehearsal.left_out(session.target(), patches)):
        warning = (
            f"applied in the target, and not checked: {', '.join(others)}; name them with --patch"
        )
        result = replace(result, warnings=(warning,))
    told = len(result.problems)  # by the table, release by release
    session.show(
        result,
        lambda shown: rehearsal.table(found, shown.warnings, shown.problems[told:]),
        releases=[rehearsal.release_dict(r) for r in found],
    )


@_command("revert", "patchkit revert --all\npatchkit revert flashinfer-cuda-version")
@click.argument("patch", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Revert every applied patch.")
@click.option("--force", is_flag=True, help="Also files changed since; those are kept beside.")
def revert(session: Session, patch: tuple[str, ...], everything: bool, force: bool) -> None:
    """Take patches out: the bytes, mode and link from before them come back."""
    from patchkit import reverting

    if bool(patch) == everything:
        raise click.UsageError("name the patches to revert, or give --all, one of the two")
    target = session.target()
    recover(target, say_on_terminal)
    result = reverting.revert(
        target,
        patch,
        everything=everything,
        force=force,
        known=session.knows,
        notify=say_on_terminal,
    )
    session.show(result, lambda result: report.changes(result) or "nothing to revert")


@_command("repair", "patchkit repair --dry-run\npatchkit repair --python /srv/venv")
@click.option("--dry-run", is_flag=True, help="Say what is wrong and would be done; write nothing.")
def repair(session: Session, dry_run: bool) -> None:
    """Mend a target whose ledger is lost, damaged or edited: originals come back.

    A file that differs from RECORD gets the original that is kept for it; what is replaced, and
    the bad ledger, are set aside in .patchkit/aside. A ledger that is whole is left alone.
    """
    from patchkit import repairing

    result = repairing.repair(session.target(), dry_run=dry_run, notify=say_on_terminal)
    found = [asdict(repair) for repair in result.repairs]
    session.show(result, report.repairs, dry_run=dry_run, repairs=found)


@main.command(
    "allow",
    epilog="\b\nExamples:\n  patchkit allow ops/patches\n  patchkit allow --revoke ops/patches\n"
    "  patchkit allow\n\n" + _EXIT,
)
@click.argument("folder", nargs=-1)
@click.option("--revoke", is_flag=True, help="Forget what was allowed there and below.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json.md).")
def allow(folder: tuple[str, ...], revoke: bool, as_json: bool) -> None:
    """Let patches in a folder run code of their own (codemod.py); without FOLDER, list them.

    FOLDER is a patch, or holds some. What is allowed is the patch as it is: after a change it
    must be allowed again. Recorded for you alone, in $XDG_STATE_HOME or ~/.local/state.
    """
    if revoke and not folder:
        raise click.UsageError("name the folders to revoke")
    session = Session("allow", None, None, (), as_json)
    try:
        rows = _revoked(folder) if revoke else _allowed(folder) if folder else _all_allowed()
    except PatchkitError as error:
        session.refuse(error)
    else:
        gone = _without_any(folder, rows) if revoke else ()
        result = Result((), warnings=tuple(f"nothing was allowed in {path}" for path in gone))
        session.show(result, lambda _: report.allowed(rows, result.warnings), allowed=rows)


def _allowed(folders: Sequence[str]) -> list[dict[str, str]]:
    from patchkit import allowing

    found = [read_patch(f) for given in folders for f in patches_in(Path(given), "allow")]
    for patch in found:
        if patch.has_code:
            allowing.allow(patch)
        else:
            allowing.forget(patch)
    states = ("data only", "allowed")
    return [{"folder": str(Path(p.folder).resolve()), "state": states[p.has_code]} for p in found]


def _revoked(folders: Sequence[str]) -> list[dict[str, str]]:
    from patchkit import allowing

    found = [f for given in folders for f in allowing.revoke(Path(given))]
    return [{"folder": str(folder), "state": "revoked"} for folder in found]


def _without_any(folders: Sequence[str], revoked: Sequence[dict[str, str]]) -> list[str]:
    """Return the full paths of folders in which nothing was revoked."""
    found = {Path(row["folder"]) for row in revoked}
    given = [Path(folder).resolve() for folder in folders]
    return [str(path) for path in given if not any(path in (f, *f.parents) for f in found)]


def _all_allowed() -> list[dict[str, str]]:
    from patchkit import allowing

    rows = []
    for found in allowing.allowed():
        try:
            same = allowing.still_as_allowed(found, read_patch(found.folder))
        except PatchkitError:
            same = False
        rows.append(
            {"folder": str(found.folder), "state": "allowed" if same else report.CHANGED_SINCE}
        )
    return sorted(rows, key=lambda row: (row["folder"], row["state"]))


@main.command(
    "demo",
    epilog="\b\nExamples:\n  patchkit demo\n  patchkit demo --release 0.7.0 --keep\n\n" + _EXIT,
)
@click.option("--release", metavar="VERSION", help="FlashInfer release to fetch.")
@click.option("--keep", is_flag=True, help="Leave the temporary folder for a look around.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json.md).")
def demo(release: str | None, keep: bool, as_json: bool) -> None:
    """Tour on a temporary folder: fetch a real FlashInfer wheel, apply, verify, revert."""
    from patchkit import touring

    session = Session("demo", None, None, (), as_json)
    say = (lambda _: None) if as_json else click.echo
    try:
        found = touring.tour(release or touring.RELEASE, keep=keep, say=say)
    except PatchkitError as error:
        session.refuse(error)
    else:
        session.show(Result(()), lambda _: "", demo=asdict(found))
