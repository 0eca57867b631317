"""A result as one HTML page that stands alone: no scripts, nothing fetched."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape

from patchkit import __version__, plots
from patchkit.environment import Target
from patchkit.plaintext import one_line, plain, visible
from patchkit.report import unified
from patchkit.results import (
    BROKEN,
    FAILED,
    NO_LONGER_NEEDED,
    PASSED,
    PROVEN,
    SKIPPED,
    UNPROVEN,
    Check,
    FileDiff,
    Group,
    Result,
    Row,
)

_GOOD, _BAD, _MILD = "good", "bad", "mild"
_MARKS = {_GOOD: "✓", _BAD: "✕", _MILD: "○"}
_DRIFTED = "drifted"
_PROOFS = {
    PROVEN: "the unpatched source fails as the patch says, the patched source passes",
    NO_LONGER_NEEDED: "the unpatched source passes too",
    UNPROVEN: "the unpatched source fails, but not where the patch says",
    BROKEN: "the patched source fails",
}


def page(result: Result, target: Target, diffs: Sequence[FileDiff], when: str) -> str:
    """Return the HTML page of a result: verdict, environment, then patch by patch.

    ``diffs`` are the changes of the patches, ``when`` is the time to show, in words. The text
    declares UTF-8: write it so.
    """
    shown = _Page(result, target, diffs)
    policy = f"default-src 'none'; style-src '{_digest(_STYLE)}'; img-src data:; base-uri 'none'"
    verdict = shown.verdict()
    body = "\n".join(
        part for part in (*shown.top(verdict, when), *shown.sections(), shown.foot()) if part
    )
    return _SHELL.format(
        policy=_e(policy),
        title=_e(f"{verdict} · patchkit verify · {target.described}"),
        style=_STYLE,
        body=body,
    )


class _Page:
    """The parts of the page of one result."""

    def __init__(self, result: Result, target: Target, diffs: Sequence[FileDiff]) -> None:
        self.result, self.target, self.diffs = result, target, diffs
        self.rows = {row.id: row for row in result.rows}
        ids = {*self.rows, *(c.patch for c in result.checks), *(d.patch for d in diffs)}
        self.ids = sorted(ids)

    # Verdict and environment

    def verdict(self) -> str:
        if not self.result.ok:
            return "Not verified"
        skipped = sum(check.outcome == SKIPPED for check in self.result.checks)
        return f"Verified, {_count(skipped, 'check')} skipped" if skipped else "Verified"

    def top(self, verdict: str, when: str) -> Iterator[str]:
        kind = _GOOD if self.result.ok else _BAD
        yield f'<header class="{kind}">'
        yield f'<p class="kicker">patchkit verify{" --strict" * self.result.strict}</p>'
        yield f'<h1><span class="mark" aria-hidden="true">{_MARKS[kind]}</span> {_e(verdict)}</h1>'
        yield f'<p class="sum">{_e(self.summary() or "no patches")}</p>'
        yield "</header>"
        yield from self.wrong()
        yield from self.overview()
        yield from self.environment(when)

    def summary(self) -> str:
        rows, checks = self.result.rows, self.result.checks
        right = sum(row.ok for row in rows)
        parts = [f"{right} of {_count(len(rows), 'patch', 'patches')} as recorded"] if rows else []
        for outcome in (PASSED, FAILED, SKIPPED):
            if number := sum(check.outcome == outcome for check in checks):
                parts.append(f"{_count(number, 'check')} {outcome}")
        if rows and not checks:
            parts.append("no checks beyond the bytes")
        seconds = sum(check.seconds for check in checks)
        return " · ".join([*parts, *([f"{seconds:.1f} s"] if seconds else [])])

    def wrong(self) -> Iterator[str]:
        items = [_e(one_line(text)) for text in self.result.problems]
        for row in self.result.rows:
            if not row.ok:
                items.append(f"{self.link(row.id)} {_e(one_line(_about(row)))}")
        for check in self.result.checks:
            if not self.result.holds(check):
                items.append(f"{self.link(check.patch, check)} {_e(_why(check))}")
        yield from _listed("What is wrong", items, "wrong")
        warnings = [_e(one_line(text)) for text in self.result.warnings]
        yield from _listed("Warnings", warnings, "warnings")

    def link(self, patch: str, check: Check | None = None) -> str:
        text = f"{patch}: {check.name}" if check else patch
        return f'<a href="#{self.anchor(patch, check)}">{_e(text)}</a>'

    def anchor(self, patch: str, check: Check | None = None) -> str:
        name = f"patch-{self.ids.index(patch) + 1}"
        return f"{name}-check-{self.checks(patch).index(check) + 1}" if check else name

    def checks(self, patch: str) -> list[Check]:
        return [check for check in self.result.checks if check.patch == patch]

    def overview(self) -> Iterator[str]:
        """Give a table of patches and checks, when there are several patches."""
        if len(self.ids) < 2:
            return
        names = list(dict.fromkeys(check.name for check in self.result.checks))
        heads = "".join(f'<th scope="col">{_e(one_line(n))}</th>' for n in ("bytes", *names))
        yield '<section aria-labelledby="overview"><h2 id="overview">Patches</h2>'
        yield '<div class="scroll" tabindex="0" role="region" aria-labelledby="overview"><table>'
        yield f'<thead><tr><th scope="col">patch</th>{heads}</tr></thead><tbody>'
        for patch in self.ids:
            cells = [self.row_badge(patch), *(self.cell(patch, name) for name in names)]
            inner = "".join(f"<td>{cell}</td>" for cell in cells)
            yield f'<tr><th scope="row">{self.link(patch)}</th>{inner}</tr>'
        yield "</tbody></table></div></section>"

    def cell(self, patch: str, name: str) -> str:
        return " ".join(self.badge(c) for c in self.checks(patch) if c.name == name) or "not run"

    def row_badge(self, patch: str) -> str:
        row = self.rows.get(patch)
        return _badge(row.state, _GOOD if row.ok else _BAD) if row else ""

    def badge(self, check: Check) -> str:
        return _badge(check.proof or check.outcome, self.kind(check))

    def kind(self, check: Check) -> str:
        if not self.result.holds(check):
            return _BAD
        mild = check.outcome == SKIPPED or check.proof not in ("", PROVEN)
        return _MILD if mild else _GOOD

    def environment(self, when: str) -> Iterator[str]:
        found = {f"{r.distribution} {r.installed}" for r in self.result.rows if r.installed}
        facts = [
            ("target", [self.target.described]),
            ("interpreter", [self.target.python or "none"]),
            ("distributions", sorted(found) or ["none recorded"]),
            ("searched", [str(folder) for folder in self.target.path] or ["nothing"]),
            ("patchkit", [__version__]),
            ("time", [when]),
        ]
        yield '<section aria-labelledby="environment"><h2 id="environment">Environment</h2><dl>'
        for name, values in facts:
            inner = "".join(f"<dd>{_e(one_line(value))}</dd>" for value in values)
            yield f"<div><dt>{name}</dt>{inner}</div>"
        yield "</dl></section>"

    # Patch by patch

    def sections(self) -> Iterator[str]:
        for patch in self.ids:
            anchor = self.anchor(patch)
            yield f'<section class="patch" id="{anchor}" aria-labelledby="{anchor}-name">'
            yield f'<h2 id="{anchor}-name">{_e(one_line(patch))} {self.row_badge(patch)}</h2>'
            if row := self.rows.get(patch):
                yield from _row(row)
            for check in self.checks(patch):
                yield from self.check(check)
            yield from _changes([diff for diff in self.diffs if diff.patch == patch])
            yield "</section>"

    def check(self, check: Check) -> Iterator[str]:
        anchor = self.anchor(check.patch, check)
        yield f'<article class="check" id="{anchor}" aria-labelledby="{anchor}-name">'
        yield f'<h3><span id="{anchor}-name">{_e(one_line(check.name))}</span> '
        yield _badge(check.outcome, _GOOD if check.outcome == PASSED else self.kind(check))
        if check.proof:
            yield " " + self.badge(check)
        yield f' <span class="time">{check.seconds:.1f} s</span></h3>'
        if check.detail:
            yield f'<p class="detail">{_e(plain(check.detail))}</p>'
        if check.chain:
            yield from _chain(check.chain, self.target)
        if check.tail:
            yield "<details open><summary>Last lines of its output</summary>"
            yield _box(f"<code>{_e(plain(check.tail))}</code>", "Output of the probe")
            yield "</details>"
        yield from _groups(check.groups)
        yield from _bench(check.bench, anchor)
        yield "</article>"

    def foot(self) -> str:
        used = {check.proof for check in self.result.checks}
        words = "".join(
            f"<div><dt>{word}</dt><dd>{meaning}</dd></div>"
            for word, meaning in _PROOFS.items()
            if word in used
        )
        return f'<footer><h2>Words</h2><dl class="words">{words}</dl></footer>' if words else ""


def _about(row: Row) -> str:
    return f"{row.state}: {row.detail}" if row.detail else row.state


def _why(check: Check) -> str:
    first = one_line(check.detail.partition("\n")[0])
    word = check.proof or check.outcome
    strict = " (an error with --strict)" * (check.outcome != FAILED)
    return f"{word}{strict}: {first}" if first else f"{word}{strict}"


def _row(row: Row) -> Iterator[str]:
    parts = [f"revision {row.recorded_revision or row.revision}"] if row.revision else []
    parts += [f"{row.distribution} {row.installed}"] if row.installed else []
    yield f'<p class="about">{_e(one_line(" · ".join(parts)))}</p>' if parts else ""
    if row.detail:
        yield f'<p class="detail">{_e(plain(row.detail))}</p>'
    if row.hint and not row.ok:
        yield f'<p class="next">next: <code>{_e(one_line(row.hint))}</code></p>'


def _chain(chain: Sequence[str], target: Target) -> Iterator[str]:
    """Draw the calls one below the other, the last marked as where it stopped."""
    yield f"<details open><summary>{_count(len(chain), 'call')} to where it stops</summary>"
    yield '<ol class="chain">'
    for number, step in enumerate(chain, 1):
        name, _, place = plain(step).partition(" (")
        place = _short(place.removesuffix(")"), target)
        last = number == len(chain)
        item = '<li class="last">' if last else "<li>"
        mark = ' <strong class="stop">stops here</strong>' if last else ""
        where = f" <span>{_e(place)}</span>" if place else ""
        yield f"{item}<code>{_e(name)}</code>{mark}{where}</li>"
    yield "</ol></details>"


def _short(place: str, target: Target) -> str:
    """Leave out the folder of the target that a path starts with."""
    roots = [f"{visible(str(folder))}/" for folder in target.path]
    fitting = [root for root in roots if place.startswith(root)]
    return place[max(map(len, fitting), default=0) :]


# Cases and figures


def _groups(groups: Sequence[Group]) -> Iterator[str]:
    """List the cases that failed with what was wrong, then every group with its cases."""
    bad = [(group, case) for group in groups for case in group.cases if case.problem]
    if bad:
        yield f"<details open><summary>{_count(len(bad), 'case')} failed</summary>"
        yield '<ul class="failures">'
        for group, case in bad:
            name = _e(one_line(f"{group.name}: {case.name}"))
            yield f"<li><strong>{name}</strong> <span>{_e(plain(case.problem))}</span></li>"
        yield "</ul></details>"
    if groups:
        yield f'<ul class="groups">{"".join(map(_group, groups))}</ul>'


def _group(group: Group) -> str:
    bad = sum(bool(case.problem) for case in group.cases)
    kind = _BAD if bad else _GOOD if group.cases else _MILD
    failed = f", {bad} failed" if bad else ""
    about = f"{_count(len(group.cases), 'case')}{failed} · {group.seconds:.1f} s"
    cases = "".join(
        f"<li>{_mark(_BAD if case.problem else _GOOD)} {_e(one_line(case.name))}</li>"
        for case in sorted(group.cases, key=lambda case: not case.problem)
    )
    return (
        f"<li><details><summary>{_mark(kind)} {_e(one_line(group.name))} "
        f'<span class="time">{about}</span></summary><ul class="cases">{cases}</ul></details></li>'
    )


def _bench(bench: Mapping[str, object] | None, anchor: str) -> Iterator[str]:
    """Show what was measured: on what, two charts and what the patch costs, where known."""
    if not bench:
        return
    facts = plots.machine(bench)
    charts = {
        "Throughput of the kernel": plots.throughput(bench, f"{anchor}-throughput"),
        "Decode block, eager over CUDA graph": plots.decode(bench, f"{anchor}-decode"),
    }
    shown = [
        f"<figure><figcaption>{title}</figcaption>{chart}</figure>"
        for title, chart in charts.items()
        if chart
    ]
    costs = _costs(plots.costs(bench), anchor)
    yield f"<h4>{'Measured' if shown or costs else 'Nothing was measured'}</h4>"
    if facts:
        yield f'<p class="about">{_e(" · ".join(f"{n} {text}" for n, text in facts.items()))}</p>'
    yield f'<div class="plots">{"".join(shown)}</div>{costs}'


def _costs(rows: Sequence[tuple[str, ...]], anchor: str) -> str:
    if not rows:
        return ""
    heads = ("", "original", "patched", "difference")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    lines = [(name, "".join(f"<td>{_e(cell)}</td>" for cell in cells)) for name, *cells in rows]
    body = "".join(f'<tr><th scope="row">{_e(name)}</th>{cells}</tr>' for name, cells in lines)
    return (
        f'<div class="scroll costs" tabindex="0" role="region" aria-labelledby="{anchor}-costs">'
        f'<table><caption id="{anchor}-costs">Cost of the patch: median (10th to 90th percentile)'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


# Diffs


def _changes(diffs: Iterable[FileDiff]) -> Iterator[str]:
    for diff in sorted(diffs, key=lambda d: (d.path, d.state)):
        shown = replace(diff, patch="", state="", path=one_line(diff.path))
        lines = unified([shown], colour=False).split("\n")[1:-1]
        kinds = [_line_kind(number, line) for number, line in enumerate(lines)]
        drifted = diff.state == _DRIFTED
        state = _badge("changed since", _BAD) if drifted else _badge(diff.state, "")
        counts = f"+{kinds.count('add')} \N{MINUS SIGN}{kinds.count('del')}"
        yield f'<details class="diff"{" open" * drifted}><summary>'
        yield f'<code class="path">{_e(one_line(diff.path))}</code> '
        yield f'{state} <span class="time">{counts}</span></summary>'
        inner = "".join(map(_diff_line, kinds, lines)) or "<span>No line differs.</span>"
        yield _box(f"<code>{inner}</code>", f"Changes of {diff.path}") + "</details>"


def _line_kind(number: int, line: str) -> str:
    if number < 2:
        return "file"
    return {"+": "add", "-": "del", "@": "hunk", "\\": "file"}.get(line[:1], "same")


def _diff_line(kind: str, line: str) -> str:
    tag = {"add": "ins", "del": "del"}.get(kind, "span")
    return f'<{tag} class="{kind}">{_e(visible(line))}\n</{tag}>'


# HTML


def _e(text: str) -> str:
    return escape(visible(text), quote=True)


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _mark(kind: str) -> str:
    words = {_GOOD: "passed", _BAD: "failed", _MILD: "empty"}
    return f'<span class="mark {kind}" role="img" aria-label="{words[kind]}">{_MARKS[kind]}</span>'


def _badge(word: str, kind: str) -> str:
    mark = f'<span aria-hidden="true">{_MARKS[kind]}</span> ' if kind else ""
    return f'<span class="badge {kind}">{mark}{_e(one_line(word))}</span>'


def _box(inner: str, label: str) -> str:
    """Return a box that scrolls within itself; the keyboard reaches it."""
    name = _e(one_line(label))
    return f'<pre class="scroll" tabindex="0" role="region" aria-label="{name}">{inner}</pre>'


def _listed(title: str, items: Sequence[str], name: str) -> Iterator[str]:
    if items:
        yield f'<section class="{name}" aria-labelledby="{name}"><h2 id="{name}">{title}</h2><ul>'
        yield from (f"<li>{item}</li>" for item in items)
        yield "</ul></section>"


def _digest(style: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


_SHELL = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

_STYLE = (
    """
:root {
  color-scheme: light dark;
  --bg: #f7f7f5; --card: #ffffff; --text: #1c2024; --muted: #59616b; --line: #dfe1e4;
  --link: #1a55a8; --box: #f4f5f6;
  --good: #12603a; --good-bg: #e2f3e8; --bad: #a11b1b; --bad-bg: #fce8e6;
  --mild: #694c00; --mild-bg: #faf0d2; --hunk: #4a5a86;
  --mono: ui-monospace, SFMono-Regular, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #121416; --card: #1a1d20; --text: #e2e5e8; --muted: #a0a8b0; --line: #30353a;
    --link: #8ab8f5; --box: #141719;
    --good: #80d4a3; --good-bg: #14301f; --bad: #ff9f98; --bad-bg: #401a18;
    --mild: #e5c76b; --mild-bg: #342a0c; --hunk: #a3b3e0;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--bg); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
h1, h2, h3, p, ul, ol, dl, dd, pre { margin: 0; padding: 0; }
h1 { font-size: 1.75rem; line-height: 1.2; font-weight: 650; letter-spacing: -0.015em; }
h2 { font-size: 1.0625rem; line-height: 1.35; font-weight: 650; }
h3 { font-size: 0.9375rem; font-weight: 600; }
h1, h2, h3, p, dd, li { overflow-wrap: anywhere; }
a { color: var(--link); text-underline-offset: 0.15em; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 3px; }
code, pre { font-family: var(--mono); font-size: 0.8125rem; }
header { margin-bottom: 1.75rem; }
.kicker, .sum, .about, .time, dt { color: var(--muted); font-size: 0.875rem; }
.kicker { margin-bottom: 0.25rem; }
.sum { margin-top: 0.375rem; }
header.good .mark { color: var(--good); }
header.bad .mark { color: var(--bad); }
section { margin-top: 1.75rem; }
section > h2 { margin-bottom: 0.5rem; }
.wrong { border-left: 3px solid var(--bad); padding-left: 1rem; }
.warnings { border-left: 3px solid var(--mild); padding-left: 1rem; }
.wrong ul, .warnings ul { list-style: none; display: grid; gap: 0.375rem; }
dl { display: grid; gap: 0.25rem; }
dl > div { display: grid; grid-template-columns: 7.5rem 1fr; column-gap: 1rem; }
dd { grid-column: 2; }
.badge {
  display: inline-block; padding: 0 0.5em; border-radius: 0.375em; font-size: 0.8125rem;
  line-height: 1.5; font-weight: 600; white-space: nowrap; vertical-align: 0.05em;
  color: var(--muted); background: var(--box);
}
.badge.good { color: var(--good); background: var(--good-bg); }
.badge.bad { color: var(--bad); background: var(--bad-bg); }
.badge.mild { color: var(--mild); background: var(--mild-bg); }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; }
th, td { text-align: left; padding: 0.375rem 1rem 0.375rem 0; border-top: 1px solid var(--line); }
th { font-weight: 500; white-space: nowrap; }
thead th { border-top: 0; color: var(--muted); }
td { color: var(--muted); white-space: nowrap; }
.patch {
  background: var(--card); border: 1px solid var(--line); border-radius: 0.625rem;
  padding: 1rem 1.25rem;
}
.patch > h2 { margin-bottom: 0; }
.check, .patch > .diff { margin-top: 0.875rem; padding-top: 0.75rem; }
.check, .patch > .diff { border-top: 1px solid var(--line); }
.check:target, .patch:target { outline: 2px solid var(--link); outline-offset: 4px; }
.check h3 { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0.25rem 0.5rem; }
.time { font-weight: 400; font-variant-numeric: tabular-nums; white-space: nowrap; }
.check .time { margin-left: auto; }
.detail { margin-top: 0.25rem; white-space: pre-line; }
.next { margin-top: 0.25rem; }
details { margin-top: 0.5rem; }
summary { cursor: pointer; font-size: 0.875rem; overflow-wrap: anywhere; }
summary:hover { color: var(--link); }
.diff summary .badge { margin-left: 0.25rem; }
pre {
  margin-top: 0.5rem; padding: 0.625rem 0; line-height: 1.5; white-space: pre; tab-size: 4;
  background: var(--box); border: 1px solid var(--line); border-radius: 0.375rem;
}
pre > code { display: block; width: max-content; min-width: 100%; padding: 0 0.75rem; }
.diff pre > code { padding: 0; }
.diff pre span, .diff pre ins, .diff pre del {
  display: block; padding: 0 0.75rem; text-decoration: none;
}
.diff .add { color: var(--text); background: var(--good-bg); }
.diff .del { color: var(--text); background: var(--bad-bg); }
.diff .hunk { color: var(--hunk); }
.diff .file { color: var(--muted); }
.chain { list-style: none; margin-top: 0.5rem; }
.chain li { position: relative; padding: 0 0 0.25rem 1.375rem; line-height: 1.5; }
.chain li::before {
  content: ""; position: absolute; left: 3px; top: 7px; width: 9px; height: 9px;
  border-radius: 50%; background: var(--card); border: 2px solid var(--muted);
}
.chain li::after {
  content: ""; position: absolute; left: 7px; top: 18px; bottom: -5px; width: 1px;
  background: var(--muted);
}
.chain li.last::after { content: none; }
.chain li.last::before { background: var(--bad); border-color: var(--bad); }
.chain span { color: var(--muted); font-size: 0.8125rem; margin-left: 0.375rem; }
.stop { color: var(--bad); font-size: 0.8125rem; font-weight: 600; }
.groups, .cases, .failures { list-style: none; margin-top: 0.5rem; }
.groups details { margin-top: 0; padding: 0.125rem 0; }
.groups .time { margin-left: 0.25rem; }
.groups .mark.good { color: var(--good); }
.groups .mark.bad { color: var(--bad); }
.groups .mark.mild { color: var(--mild); }
.cases {
  columns: 15rem; margin: 0.25rem 0 0.5rem 1rem; font-size: 0.8125rem; color: var(--muted);
}
.cases li { break-inside: avoid; padding-left: 1.25em; text-indent: -1.25em; }
.failures { display: grid; gap: 0.25rem; font-size: 0.875rem; }
.failures li { border-left: 3px solid var(--bad); padding-left: 0.625rem; }
.failures strong { font-weight: 600; }
.failures span { white-space: pre-line; }
h4 { margin: 0.875rem 0 0; font-size: 0.875rem; font-weight: 600; }
.plots {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem;
}
figure { margin: 0.5rem 0 0; max-width: 34rem; }
figcaption, caption { font-size: 0.8125rem; color: var(--muted); text-align: left; }
.plot { display: block; width: 100%; height: auto; margin-top: 0.25rem; }
.costs { margin-top: 0.75rem; }
.costs th, .costs td { vertical-align: top; }
.costs caption { padding-bottom: 0.25rem; }
footer { margin-top: 2rem; font-size: 0.875rem; }
footer h2 { font-size: 0.875rem; margin-bottom: 0.25rem; }
@media (max-width: 40rem) {
  main { padding: 1.25rem 0.875rem 2rem; }
  .patch { padding: 0.875rem; }
  h1 { font-size: 1.5rem; }
  th, td { padding-right: 0.625rem; }
  th[scope="row"] { white-space: normal; min-width: 6.5rem; }
  .chain span { display: block; margin-left: 0; }
  .costs td { white-space: normal; }
  .costs th[scope="row"] { min-width: 4.75rem; }
  dl > div { grid-template-columns: 1fr; }
  dd { grid-column: 1; }
  dl { gap: 0.5rem; }
}
@media print { body { background: none; } .patch { break-inside: avoid-page; } }
"""
    + plots.STYLE
)
