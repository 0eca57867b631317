"""Strange manifests, ledgers, journals and sources: read, or refused with a PatchkitError."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from packaging.version import Version

from patchkit.errors import LedgerError, ManifestError, PatchkitError
from patchkit.journal import load_journal
from patchkit.ledger import compose, dump_ledger, load_ledger
from patchkit.manifest import parse_patch
from patchkit.plan import Original, make_entry
from patchkit.store import Store
from tests.conftest import Bench, tree
from tests.robustness.conftest import Figure
from tests.robustness.exploring import explore
from tests.robustness.scene import PATCHES, Scene
from tests.test_manifest import toml, value
from tests.test_properties import JSON, ledgers, python_files

pytestmark = pytest.mark.slow


def explained(error: PatchkitError, name: str = "") -> None:
    """A refusal says what is wrong, where, and what to do."""
    assert name in error.message != ""
    assert error.hint or name


def spots(document: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document, as the way to it."""
    found = [above] if above else []
    inner = document.items() if isinstance(document, dict) else ()
    inner = enumerate(document) if isinstance(document, list) else inner
    return found + [spot for key, item in inner for spot in spots(item, (*above, key))]


def texts(document: Any) -> set[str]:
    """Every key and every text in a JSON document."""
    if isinstance(document, str):
        return {document}
    inner = [*document, *document.values()] if isinstance(document, dict) else document
    return {t for item in inner for t in texts(item)} if isinstance(inner, list) else set()


def replaced(document: Any, old: str, new: str) -> Any:
    """A JSON document with a text replaced wherever it stands."""
    if isinstance(document, dict):
        return {replaced(k, old, new): replaced(v, old, new) for k, v in document.items()}
    if isinstance(document, list):
        return [replaced(item, old, new) for item in document]
    return new if document == old else document


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> str:
    """A JSON document in which something is changed, moved, taken out, doubled or cut off."""
    whole = json.loads(json.dumps(document))
    words = sorted(texts(whole))
    if "files" in whole and whole["files"] and draw(st.booleans()):
        words = sorted(whole["files"])  # a path must be the same in several places
    if words and draw(st.booleans()):
        whole = replaced(whole, draw(st.sampled_from(words)), draw(NAMES))
    for _ in range(draw(st.integers(0, 3))):
        if not (places := spots(whole)):
            break
        *way, last = draw(st.sampled_from(places))
        spot = whole
        for key in way:
            spot = spot[key]
        what = draw(st.sampled_from(["change", "change", "remove", "move", "rename"]))
        if what == "remove":
            del spot[last]
        elif what == "rename" and isinstance(spot, dict):
            spot[draw(NAMES)] = spot.pop(last)
        else:
            other = draw(st.sampled_from(places)) if what == "move" else None
            spot[last] = draw(JSON | NAMES) if other is None else json.loads(json.dumps(whole))
    text = json.dumps(whole)
    cut = draw(st.sampled_from([None, None, None, draw(st.integers(0, len(text)))]))
    return text[:cut] + draw(st.sampled_from(["", "", "", "}", "\0", "[" * 5000, "\ufeff"]))


NAMES = st.sampled_from(
    [
        "../evil.py",
        "/etc/passwd",
        "demo_pkg/../../x.py",
        ".patchkit/ledger.json",
        "demo_pkg-1.0.dist-info/RECORD",
        "a\\b.py",
        "a\0b.py",
        "\u202egnp.py",
        "\ud800.py",
        "",
        ".",
        "demo_pkg",
        "demo_pkg/a.py",
        "x" * 5000,
        "0" * 64,
        "1e999",
    ]
)


def test_ledgers(figure: Figure, long: bool) -> None:
    text = ledgers().flatmap(lambda ledger: damaged(json.loads(dump_ledger(ledger))))

    @explore(figure, 150, 20000, long, text)
    def check(text: str) -> None:
        try:
            ledger = load_ledger(text, "x")
        except LedgerError as error:
            explained(error)
            return
        for file in ledger.files:
            assert not file.path.startswith("/")
            assert ".." not in file.path.split("/")
            try:
                compose(b"0123456789", ledger.owners(file.path), file.path)
            except LedgerError as error:
                explained(error)
        dump_ledger(ledger)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, str, str]:
    """A scene, the journal of an apply in it that was cut off, and the ledger it leads to."""
    folder = tmp_path_factory.mktemp("begun")
    scene = Scene(folder, "apply")
    scene.reset()
    kept: list[str] = []

    class Watched(Store):
        def _put_ledger(self, *, there: bool) -> None:
            kept.append((self.folder / "journal.json").read_text())
            super()._put_ledger(there=there)

    import patchkit.applying as applying

    patched = pytest.MonkeyPatch()
    patched.setattr(applying, "Store", Watched)
    try:
        assert scene.bench.run("apply", "p").code == 0
    finally:
        patched.undo()
    return scene, kept[0], (scene.bench.site / ".patchkit/ledger.json").read_text()


def test_journals(begun: tuple[Scene, str, str], figure: Figure, long: bool) -> None:
    _, journal, _ = begun

    @explore(figure, 150, 20000, long, damaged(json.loads(journal)))
    def check(text: str) -> None:
        try:
            document = load_journal(text, "x")
        except LedgerError as error:
            explained(error)
            return
        for change in document["changes"]:
            for path in [change["path"], *change["folders"]]:
                assert not path.startswith("/")
                assert ".." not in path.split("/")


@pytest.mark.parametrize("name", ["ledger.json", "journal.json", "journal.done"])
def test_damaged_state_on_disk(
    begun: tuple[Scene, str, str], figure: Figure, long: bool, name: str
) -> None:
    """Every command ends with 0 or a reason, and nothing outside site-packages changes."""
    scene, journal, ledger = begun
    whole = json.loads(ledger if name == "ledger.json" else journal)
    commands = st.sampled_from(
        ["status", "verify", "apply p", "revert p", "revert --all", "diff p"]
    )

    @explore(figure, 25, 250, long, damaged(whole), st.lists(commands, min_size=1, max_size=3))
    def check(text: str, words: list[str]) -> None:
        scene.reset()
        assert scene.bench.run("apply", "p").code == 0
        (scene.bench.site / ".patchkit" / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        outside = tree(scene.bench.folder / "cache"), tree(scene.bench.patches)
        for command in words:
            outcome = scene.bench.run(*command.split())
            assert outcome.code in (0, 1), outcome
            assert outcome.code == 0 or outcome.out or outcome.err.startswith("error: ")
        assert (tree(scene.bench.folder / "cache"), tree(scene.bench.patches)) == outside
        kept = [path for path in (scene.bench.site / ".patchkit/objects").glob("*")]
        assert [*scene.nothing_lost()] == [] or kept


KEYS = ["schema", "revision", "title", "why", "links", "distribution", "versions", "default"]
KEYS += ["checks", "conflicts", "requires", "edit", "trace", "kernel", "file", "codemod", "params"]
STRANGE = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=8) | NAMES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)


def test_manifests(figure: Figure, long: bool) -> None:
    fields = st.just({}) | st.dictionaries(st.sampled_from(KEYS), STRANGE, max_size=3)
    edit = st.dictionaries(st.sampled_from([*KEYS, "matches"]), STRANGE, max_size=3)
    edit |= st.fixed_dictionaries({"file": NAMES})
    noise = st.sampled_from(["", "", "", "[[edit]]\n", "\0", "a = ", "[" * 3000, "x.y.z = 1\n"])

    @explore(figure, 150, 20000, long, fields, edit, noise)
    def check(fields: dict[str, Any], edit: dict[str, Any], noise: str) -> None:
        try:
            text = toml(fields, edit) + noise
        except (TypeError, ValueError):
            text = value("x") + noise
        try:
            patch = parse_patch("p", {"patch.toml": text}, "patches/p")
        except ManifestError as error:
            explained(error, "patches/p/patch.toml")
            return
        for edits in patch.edits:
            assert not edits.file.startswith("/")
            assert ".." not in edits.file.split("/")


SOURCES = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
    python_files().map(lambda file: file.data),
)
PARAMS = st.dictionaries(
    st.sampled_from(
        ["function", "new", "old", "inside", "decorator", "part", "parameters", "snippet", "op"]
    ),
    STRANGE | st.sampled_from(["f0", "return", "x = 1", "C0.f0", "body", "(", "\n", " "]),
    max_size=4,
)
CODEMODS = ["add_decorator", "add_file", "append", "insert_in_function"]
CODEMODS += ["replace_block", "replace_function", "wrap_custom_op"]


def test_rewriter(figure: Figure, long: bool) -> None:
    """Any bytes under any codemod with any params."""
    noise = st.tuples(st.integers(0, 400), st.binary(max_size=4))
    names = st.sampled_from(["demo_pkg/a.py", "demo_pkg/a.cu", "demo_pkg/a.json"])

    @explore(figure, 200, 30000, long, SOURCES, noise, st.sampled_from(CODEMODS), PARAMS, names)
    def check(
        data: bytes, noise: tuple[int, bytes], codemod: str, params: dict[str, Any], path: str
    ) -> None:
        at, more = noise
        data = data[:at] + more + data[at:]
        try:
            text = toml(edit={"file": path, "codemod": codemod, "params": params})
            patch = parse_patch("p", {"patch.toml": text}, "patches/p")
            entry = make_entry(patch, Version("1.0"), {path: Original(path, data)})
        except PatchkitError as error:
            explained(error)
            return
        for splice in entry.splices[path]:
            assert 0 <= splice.start <= splice.end <= len(data)


def test_mutated_sources(figure: Figure, long: bool) -> None:
    """A byte or two wrong in a file that was right, under patches that fitted it."""
    whole = Path(__file__).parent.joinpath("interposed.py").read_bytes()
    edits = [
        ("insert_in_function", {"function": "interpose", "new": "x = 1"}),
        ("add_decorator", {"function": "Call.changes", "decorator": "d"}),
        ("replace_block", {"old": "return", "new": "return  "}),
        ("append", {"new": "x = 1"}),
    ]
    place = st.tuples(st.integers(0, len(whole)), st.integers(0, 3), st.binary(max_size=3))

    @explore(figure, 60, 6000, long, st.lists(place, max_size=2), st.sampled_from(edits))
    def check(places: list[tuple[int, int, bytes]], edit: tuple[str, dict[str, Any]]) -> None:
        data = whole
        for at, length, more in places:
            data = data[:at] + more + data[at + length :]
        codemod, params = edit
        matches = data.count(b"return") if codemod == "replace_block" else 1
        text = toml(edit={"codemod": codemod, "params": params, "matches": max(1, matches)})
        patch = parse_patch("p", {"patch.toml": text}, "patches/p")
        try:
            make_entry(patch, Version("1.0"), {"demo_pkg/a.py": Original("demo_pkg/a.py", data)})
        except PatchkitError as error:
            explained(error)


def test_patch_folders_of_strangers(figure: Figure, long: bool) -> None:
    """Whatever bytes lie in a folder of patches: every command ends with 0 or a reason."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "site").mkdir()
        bench = Bench(folder, folder / "site", folder / "patches")
        bench.install({"demo_pkg/a.py": b"", "demo_pkg/l.py": b"", "demo_pkg/sub/r.py": b""})
        before = bench.state()
        texts = st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8"))
        mutated = st.tuples(st.sampled_from(sorted(PATCHES.values())), st.integers(0, 500), texts)

        @explore(figure, 30, 3000, long, mutated | texts)
        def check(found: Any) -> None:
            data = found
            if isinstance(found, tuple):
                text, at, more = found
                data = text.encode()[:at] + more + text.encode()[at:]
            (bench.patches / "p").mkdir(parents=True, exist_ok=True)
            (bench.patches / "p/patch.toml").write_bytes(data)
            for command in (["list"], ["apply", "p"], ["status"]):
                outcome = bench.run(*command)
                assert outcome.code in (0, 1), outcome
                assert outcome.code == 0 or outcome.out or outcome.err.startswith("error: ")
            assert bench.state() == before
