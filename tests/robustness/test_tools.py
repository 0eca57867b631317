"""Other tools at work in a patched environment: status is true, and what is documented mends it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipapp
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import PATCH, A, assert_refusal, invoke, tree
from tests.integration.test_environments import ADD, FILES, Env, F, Lab, uv
from tests.processes import open_up, unprivileged
from tests.robustness.sweeping import ROOT
from tests.wheels import make_wheel, unpack

pytestmark = pytest.mark.slow

PATCHED = "-1 0"


def without_state(env: Env) -> dict[str, tuple]:
    return {k: v for k, v in env.state().items() if not k.startswith(".patchkit")}


def state_of(env: Env) -> str:
    outcome = env.patchkit("status", "--json")
    assert outcome.code in (0, 1), outcome
    return outcome.states["p"]


def mended(env: Env, state: str, *, bytes_now: str) -> None:
    """Status says what it is, verify fails, and ``apply`` is all that is needed."""
    assert state_of(env) == state
    assert env.patchkit("status").code == env.patchkit("verify").code == 1
    assert env.enc() == bytes_now
    env.ok("apply", "p")
    assert state_of(env) == "applied"
    assert env.enc() == PATCHED
    env.ok("verify")


# --- pip and uv, one thing after another


def pip_installer(env: Env) -> dict[str, Callable[[], None]]:
    return {
        "install": lambda: env.pip("install", "demo-pkg==1.0"),
        "again": lambda: env.pip("install", "--force-reinstall", "demo-pkg==1.0"),
        "up": lambda: env.pip("install", "--upgrade", "demo-pkg==1.2"),
        "down": lambda: env.pip("install", "demo-pkg==1.0"),
        "out": lambda: env.pip("uninstall", "--yes", "demo-pkg"),
    }


def uv_installer(env: Env, mode: str) -> dict[str, Callable[[], None]]:
    link = f"--link-mode={mode}"
    return {
        "install": lambda: env.uv_pip("install", link, "demo-pkg==1.0"),
        "again": lambda: env.uv_pip("install", link, "--reinstall", "demo-pkg==1.0"),
        "up": lambda: env.uv_pip("install", link, "--upgrade", "demo-pkg==1.2"),
        "down": lambda: env.uv_pip("install", link, "demo-pkg==1.0"),
        "out": lambda: env.uv_pip("uninstall", "demo-pkg"),
    }


@pytest.mark.parametrize("installer", ["pip", "hardlink", "symlink", "copy", "clone"])
def test_installed_again_up_down_and_out(lab: Lab, installer: str) -> None:
    make_wheel(lab.dist, "demo-pkg", "1.2", {**FILES, F: b"# newer\n" + A})
    env = lab.venv("env")
    do = pip_installer(env) if installer == "pip" else uv_installer(env, installer)
    lab.patch("p", ADD)
    empty = without_state(env)
    do["install"]()
    env.ok("apply", "p")
    env.ok("verify")
    do["again"]()
    mended(env, "not applied", bytes_now="0 0")
    do["up"]()
    mended(env, "upgraded underneath", bytes_now="0 0")
    assert (env.site / F).read_bytes().startswith(b"# newer\n")
    do["down"]()
    mended(env, "upgraded underneath", bytes_now="0 0")
    do["out"]()
    assert state_of(env) == "distribution gone"
    assert env.patchkit("verify").code == 1
    env.ok("revert", "--all")
    assert env.state() == empty


@pytest.mark.parametrize("installer", ["pip", "hardlink", "symlink", "copy", "clone"])
def test_reverted_before_each_change_as_documented(lab: Lab, installer: str) -> None:
    """README: revert, upgrade, apply. What the installer then sees is what it has put there."""
    make_wheel(lab.dist, "demo-pkg", "1.2", {**FILES, F: b"# newer\n" + A})
    env, twin = lab.venv("env"), lab.venv("twin")
    both = [
        pip_installer(e) if installer == "pip" else uv_installer(e, installer) for e in (env, twin)
    ]
    for step in ("install", "again", "up", "down"):
        for do in both:
            do[step]()
        assert bytes_of(env) == bytes_of(twin)
        env.ok("apply", "p")
        assert env.enc() == PATCHED
        env.ok("revert", "--all")
        assert bytes_of(env) == bytes_of(twin)


def bytes_of(env: Env) -> dict[str, tuple]:
    """All but times, which two installations do not share, and bytecode, which carries them."""
    kept = {k: v[:4] for k, v in env.state().items() if "__pycache__" not in k}
    return {k: v for k, v in kept.items() if not k.endswith(("/INSTALLER", "/RECORD"))}


def test_uv_sync_undoes_patches(lab: Lab) -> None:
    make_wheel(lab.dist, "demo-pkg", "1.2", {**FILES, F: b"# newer\n" + A})
    project = lab.folder / "project"
    project.mkdir()

    def sync(version: str, *options: str) -> Env:
        (project / "pyproject.toml").write_text(
            '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.10"\n'
            f'dependencies = ["demo-pkg=={version}"]\n[tool.uv]\npackage = false\n'
        )
        links = ("--no-index", "--find-links", lab.dist, "--python", sys.executable)
        lab.call(uv(), "sync", "--quiet", "--project", project, *links, *options)
        return Env(lab, project / ".venv")

    env = sync("1.0")
    env.ok("apply", "p")
    sync("1.0")
    assert (state_of(env), env.enc()) == ("applied", PATCHED), "there was nothing to sync"
    sync("1.0", "--reinstall")
    mended(env, "not applied", bytes_now="0 0")
    sync("1.2")
    mended(env, "upgraded underneath", bytes_now="0 0")
    sync("1.0")
    mended(env, "upgraded underneath", bytes_now="0 0")
    env.ok("revert", "--all")
    assert env.enc() == "0 0"
    assert not (env.site / ".patchkit").exists()


# --- bytecode


@pytest.mark.parametrize("mode", ["timestamp", "checked-hash", "unchecked-hash"])
@pytest.mark.parametrize("optimize", ["0", "1", "2"])
def test_compileall_before_and_after(lab: Lab, mode: str, optimize: str) -> None:
    env = lab.venv("env")
    env.pip("install", "--no-compile", "demo-pkg==1.0")
    flag = {"0": (), "1": ("-O",), "2": ("-OO",)}[optimize]

    def compiled() -> None:
        command = ("-m", "compileall", "-q", "--invalidation-mode", mode)
        lab.call(env.python, *flag, *command, env.site / F)

    def shown() -> str:
        code = "import demo_pkg.a as a; print(a.enc(None), a.dec(None))"
        return lab.call(env.python, *flag, "-c", code).strip()

    compiled()
    assert shown() == "0 0"
    before = env.state()
    assert any(path.endswith(".pyc") and "/a." in path for path in before)
    env.ok("apply", "p")
    assert shown() == PATCHED
    compiled()
    assert shown() == PATCHED
    env.ok("verify")
    env.ok("revert", "p")
    assert env.state() == before
    assert shown() == "0 0"


# --- what is not a folder of wheels


@pytest.mark.parametrize("zipped", [True, False])
def test_an_egg_is_refused_and_left_alone(lab: Lab, zipped: bool) -> None:
    env = lab.venv("env")
    egg = env.site / f"demo_pkg-1.0-py{sys.version_info[0]}.{sys.version_info[1]}.egg"
    unpacked = lab.folder / "egg"
    for name, data in {**FILES, "EGG-INFO/PKG-INFO": b"Name: demo-pkg\nVersion: 1.0\n"}.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(data)
    if zipped:
        with zipfile.ZipFile(egg, "w") as archive:
            for path in sorted(unpacked.rglob("*.*")):
                archive.write(path, path.relative_to(unpacked))
    else:
        unpacked.rename(egg)
    (env.site / "easy-install.pth").write_text(f"./{egg.name}\n")
    assert env.enc() == "0 0", "Python imports it"
    before = env.state()
    outcome = env.patchkit("apply", "p")
    assert outcome.code == 1
    assert_refusal(outcome)
    assert egg.name in outcome.err
    assert state_of(env) == "does not fit"
    assert env.state() == before
    shutil.rmtree(egg) if egg.is_dir() else egg.unlink()
    (env.site / "easy-install.pth").unlink()
    env.pip("install", "demo-pkg==1.0")  # as the hint says
    env.ok("apply", "p")
    assert env.enc() == PATCHED


def test_a_zipapp_on_the_path_is_not_installed(lab: Lab) -> None:
    env = lab.venv("env")
    source = unpack(lab.dist / "demo_pkg-1.0-py3-none-any.whl", lab.folder / "app")
    (source / "__main__.py").write_text("import demo_pkg.a as a; print(a.enc(None), a.dec(None))\n")
    archive = lab.folder / "app.pyz"
    zipapp.create_archive(source, archive)
    (env.site / "app.pth").write_text(f"{archive}\n")
    data, before = archive.read_bytes(), env.state()
    assert env.enc() == "0 0", "Python imports it"
    outcome = env.patchkit("apply", "p")
    assert outcome.code == 1
    assert_refusal(outcome)
    assert "demo-pkg is not installed" in outcome.err
    assert (archive.read_bytes(), env.state()) == (data, before)
    env.patchkit("status")
    assert (archive.read_bytes(), env.state()) == (data, before)


PTH = [
    "import sys; sys.stdout.write('noise\\n<patchkit>[]</patchkit>\\n')",
    "import sys; sys.stderr.write('warning: noise\\n')",
    "import sys; sys.path.append('/nowhere'); sys.path.append('')",
    "import os, sys; os.environ['PYTHONPATH'] = '/nowhere'; sys.dont_write_bytecode = True",
    "raise ImportError('broken')",
    "import atexit; atexit.register(lambda: print('late noise'))",
]


@pytest.mark.parametrize("line", PTH)
def test_a_pth_that_runs_code(lab: Lab, line: str) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    pth = env.site / "noise.pth"
    pth.write_text(line + "\n")
    before = env.state()
    env.ok("apply", "p")
    assert state_of(env) == "applied"
    assert b"return -1" in (env.site / F).read_bytes()
    env.ok("verify")
    env.ok("revert", "p")
    assert env.state() == before


# --- somewhere else, or somebody else's


def copy_a(source: Path, to: Path) -> None:
    shutil.copytree(source, to, symlinks=True)


def copy_r(source: Path, to: Path) -> None:
    """As ``cp -r`` does: no times; as ``COPY --from`` into another image, other owners too."""
    subprocess.run(["cp", "-r", source, to], check=True)


@pytest.mark.parametrize("copy", [copy_a, copy_r])
def test_a_whole_environment_copied_elsewhere(lab: Lab, copy: Callable[[Path, Path], None]) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    lab.call(env.python, "-m", "compileall", "-q", env.site / "demo_pkg")
    lab.patch("p", ADD)
    before = env.state()
    env.ok("apply", "p")
    copy(env.folder, lab.folder / "elsewhere")
    shutil.rmtree(env.folder)
    moved = Env(lab, lab.folder / "elsewhere")
    assert (state_of(moved), moved.enc()) == ("applied", PATCHED)
    moved.ok("verify")
    assert "already applied" in moved.ok("apply", "p")
    moved.ok("revert", "--all")
    after = moved.state()
    if copy is copy_r:
        assert {k: v[:4] for k, v in after.items()} == {k: v[:4] for k, v in before.items()}
        assert after[F] == before[F], "the ledger knows the time"
    else:
        assert after == before
    assert moved.enc() == "0 0"


@pytest.fixture
def images() -> Iterator[Path]:
    """A folder that any user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="patchkit-test-"))
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


def test_built_as_root_run_as_another_user(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applied while an image is built, verified by the user of the server; copied for him too."""
    monkeypatch.chdir(images)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    wheel = make_wheel(images / "dist", "demo-pkg", "1.0", FILES)
    site = unpack(wheel, images / "build")
    (images / "patches/p").mkdir(parents=True)
    (images / "patches/p/patch.toml").write_text(PATCH)
    before = tree(site)
    patches = ("--patches", str(images / "patches"))
    assert invoke("apply", "--site-packages", str(site), *patches, "p").code == 0
    copy_a(site, images / "run")
    run = ("--site-packages", str(images / "run"), *patches)
    for command in ("verify", "status", "list"):
        assert unprivileged(command, *run).code == 0
    assert "already applied" in unprivileged("apply", *run, "p").out
    if os.geteuid() == 0:
        outcome = unprivileged("revert", *run, "p")
        assert_refusal(outcome)
        assert "Permission denied" in outcome.err
    open_up(images / "run")
    assert unprivileged("revert", *run, "p").code == 0
    assert tree(images / "run") == before


MOUNT = """\
set -e
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
shift
exec "$@"
"""


def read_only_mount(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    mount = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(site)]
    patchkit = [sys.executable, "-m", "patchkit", command[0], "--site-packages", str(site)]
    run = [*mount, *patchkit, *command[1:]]
    return subprocess.run(run, env=environ, capture_output=True, text=True)


def why_no_mounts(folder: Path) -> str:
    """Why a folder cannot be mounted over itself here, or ''."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return "unshare and mount are not there"
    command = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(folder), "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def test_a_read_only_bind_mount(tmp_path: Path) -> None:
    if reason := why_no_mounts(tmp_path):
        pytest.skip(f"no bind mounts here: {reason}")
    site = unpack(make_wheel(tmp_path / "dist", "demo-pkg", "1.0", FILES), tmp_path / "site")
    (tmp_path / "patches/p").mkdir(parents=True)
    (tmp_path / "patches/p/patch.toml").write_text(PATCH)
    patches = ("--patches", str(tmp_path / "patches"))
    before = tree(site)
    refused = read_only_mount(site, "apply", *patches, "p")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Read-only file system" in refused.stderr
    assert "hint: The file system is mounted read-only" in refused.stderr
    assert tree(site) == before
    assert invoke("apply", "--site-packages", str(site), *patches, "p").code == 0
    patched = tree(site)
    for command in (("verify",), ("status",), ("diff", *patches), ("apply", *patches, "p")):
        done = read_only_mount(site, *command)
        assert (done.returncode, done.stderr) == (0, ""), command
    refused = read_only_mount(site, "revert", "--all")
    assert refused.returncode == 1
    assert "Read-only file system" in refused.stderr
    assert tree(site) == patched
    assert invoke("revert", "--site-packages", str(site), "--all").code == 0
    assert tree(site) == before


def test_files_without_write_permission_stay_so(lab: Lab) -> None:
    """An installation made read-only by its owner is patched by him, and stays read-only."""
    env = lab.venv("env")
    env.pip("install", "--no-compile", "demo-pkg==1.0")
    for path in (env.site / "demo_pkg").rglob("*.py"):
        path.chmod(0o444)
    before = env.state()
    env.ok("apply", "p")
    assert stat.S_IMODE((env.site / F).stat().st_mode) == 0o444
    env.ok("revert", "p")
    assert env.state() == before
