"""Real environments, made with venv, pip and uv from small wheels, without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PATCH, A, Outcome, assert_refusal, invoke, tree
from tests.wheels import make_wheel, unpack

pytestmark = pytest.mark.slow

F = "demo_pkg/a.py"
NEWER = A.replace(b"return 0", b"return 7")
FILES = {"demo_pkg/__init__.py": b"", F: A, "demo_pkg/sub/data.json": b"{}\n"}
ADD = PATCH + (
    '\n[[edit]]\nfile = "demo_pkg/extra/b.py"\ncodemod = "add_file"\n'
    'params = { new = "X = 1\\n" }\n'
)


EXTRA = "demo_pkg/extra"


def uv() -> str:
    """The uv of the test requirements, else the one on PATH."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
        return found or pytest.skip("uv is not installed")


@dataclass
class Lab:
    """A folder with wheels, patches and environments."""

    folder: Path

    @property
    def dist(self) -> Path:
        return self.folder / "dist"

    @property
    def environ(self) -> dict[str, str]:
        """This process's environment, without what would lead pip and uv elsewhere."""
        led = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(led)}
        quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONFIG_FILE": os.devnull}
        quiet |= {"PIP_ROOT_USER_ACTION": "ignore", "UV_NO_CONFIG": "1", "UV_OFFLINE": "1"}
        return {**kept, **quiet, "UV_CACHE_DIR": str(self.folder / "uv-cache")}

    def call(self, *command: str | Path) -> str:
        done = subprocess.run(
            [str(word) for word in command], env=self.environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def venv(self, name: str, *options: str) -> Env:
        self.call(sys.executable, "-m", "venv", "--without-pip", *options, self.folder / name)
        return Env(self, self.folder / name)

    def uv_venv(self, name: str) -> Env:
        self.call(uv(), "venv", "--quiet", "--python", sys.executable, self.folder / name)
        return Env(self, self.folder / name)

    @property
    def patches(self) -> tuple[str, str]:
        return ("--patches", str(self.folder / "patches"))

    def patch(self, name: str, toml: str = PATCH) -> None:
        (self.folder / "patches" / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "patches" / name / "patch.toml").write_text(toml)


@dataclass
class Env:
    """One environment: its interpreter, and patchkit aimed at it."""

    lab: Lab
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def site(self) -> Path:
        (found,) = (self.folder / "lib").glob("python*/site-packages")
        return found

    def pip(self, *args: str) -> None:
        links = ("--no-index", "--find-links", self.lab.dist) if args[0] == "install" else ()
        pip = (sys.executable, "-m", "pip", "--python", self.python, args[0], "--quiet")
        self.lab.call(*pip, *links, *args[1:])

    def uv_pip(self, *args: str) -> None:
        links = ("--no-index", "--find-links", self.lab.dist) if args[0] == "install" else ()
        self.lab.call(uv(), "pip", args[0], "--quiet", "--python", self.python, *links, *args[1:])

    def patchkit(self, verb: str, *args: str) -> Outcome:
        return invoke(verb, "--python", str(self.python), *self.lab.patches, *args)

    def ok(self, verb: str, *args: str) -> str:
        outcome = self.patchkit(verb, *args)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome.out

    def enc(self) -> str:
        """What the patched function gives in the environment's own interpreter."""
        code = "import demo_pkg.a as a; print(a.enc(None), a.dec(None))"
        return self.lab.call(self.python, "-B", "-c", code).strip()

    def state(self) -> dict[str, tuple]:
        return tree(self.site)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for name in ("VIRTUAL_ENV", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    lab = Lab(tmp_path)
    make_wheel(lab.dist, "demo-pkg", "1.0", FILES, modes={F: 0o640})
    make_wheel(lab.dist, "demo-pkg", "1.1", {**FILES, F: NEWER})
    lab.patch("p")
    return lab


# --- uv


def uv_pair(lab: Lab, mode: str) -> tuple[Env, Env]:
    pair = (lab.uv_venv("one"), lab.uv_venv("two"))
    for env in pair:
        env.uv_pip("install", f"--link-mode={mode}", "demo-pkg==1.0")
    return pair


def cached(lab: Lab) -> dict[str, tuple]:
    """The unpacked wheels in uv's cache."""
    found = tree(lab.folder / "uv-cache")
    return {k: v for k, v in found.items() if k.startswith("archive")}


def test_case_05_uv_hard_links(lab: Lab) -> None:
    one, two = uv_pair(lab, "hardlink")
    target = one.site / F
    if target.stat().st_nlink != 3:
        pytest.skip("uv could not hard-link here (the cache is on another file system)")
    assert target.samefile(two.site / F)
    before, other, cache = one.state(), two.state(), cached(lab)

    assert any(path.endswith(F) for path in cache)
    one.ok("apply", "p")
    assert (target.stat().st_nlink, (two.site / F).stat().st_nlink) == (1, 2)
    assert target.stat().st_mode == (two.site / F).stat().st_mode
    assert (one.enc(), two.enc()) == ("-1 0", "0 0")
    one.ok("verify")
    third = lab.uv_venv("three")
    third.uv_pip("install", "--link-mode=hardlink", "demo-pkg==1.0")
    assert third.enc() == "0 0"

    one.ok("revert", "--all")
    assert one.state() == before
    assert two.state() == other
    assert cached(lab) == cache


@pytest.mark.parametrize("mode", ["symlink", "copy", "hardlink", "clone"])
def test_case_06_uv_other_link_modes(lab: Lab, mode: str) -> None:
    one, two = uv_pair(lab, mode)
    if mode == "symlink":
        assert (one.site / F).is_symlink()
    before, other, cache = one.state(), two.state(), cached(lab)
    one.ok("apply", "p")
    assert not (one.site / F).is_symlink()
    assert one.enc() == "-1 0"
    one.ok("verify")
    one.ok("revert", "--all")
    assert one.state() == before
    assert two.state() == other
    assert cached(lab) == cache
    if mode == "symlink":
        assert (one.site / F).samefile(two.site / F)


def test_case_06_uv_symlinks_after_the_cache_was_cleaned(lab: Lab) -> None:
    """Every link dangles then, METADATA too: nothing is written, and a reinstall mends it all."""
    one, _ = uv_pair(lab, "symlink")
    one.ok("apply", "p")
    lab.call(uv(), "cache", "clean", "--quiet")
    assert one.patchkit("verify").code == 1
    assert one.patchkit("apply", "p").code == 1
    one.uv_pip("install", "--reinstall", "--link-mode=symlink", "demo-pkg==1.0")
    cache = cached(lab)
    one.ok("apply", "p")
    one.ok("verify")
    one.ok("revert", "p")
    assert (one.site / F).is_symlink()
    assert one.enc() == "0 0"
    assert cached(lab) == cache


def test_uv_reinstall_upgrade_and_uninstall(lab: Lab) -> None:
    env = lab.uv_venv("one")
    lab.patch("p", ADD)
    env.uv_pip("install", "demo-pkg==1.0")
    env.ok("apply", "p")
    env.uv_pip("install", "--reinstall", "demo-pkg==1.0")
    assert env.patchkit("verify").code == 1
    assert env.enc() == "0 0"
    env.ok("apply", "p")
    assert env.enc() == "-1 0"
    env.uv_pip("install", "demo-pkg==1.1")
    assert "upgraded underneath" in env.patchkit("status").out
    assert "upgraded underneath" in env.ok("revert", "p")
    assert (env.site / F).read_bytes() == NEWER
    assert not (env.site / "demo_pkg/extra").exists()
    env.uv_pip("install", "demo-pkg==1.0")
    env.ok("apply", "p")
    env.uv_pip("uninstall", "demo-pkg")
    assert "distribution gone" in env.patchkit("verify").out
    env.ok("revert", "p")
    assert not (env.site / "demo_pkg").exists()
    assert not (env.site / ".patchkit").exists()


# --- pip


def test_case_25_pip_reinstall(lab: Lab) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    env.ok("apply", "p")
    assert env.enc() == "-1 0"
    env.pip("install", "--force-reinstall", "demo-pkg==1.0")
    assert env.enc() == "0 0"
    verify = env.patchkit("verify")
    assert verify.code == 1
    assert "not applied" in verify.out
    before = {k: v for k, v in env.state().items() if ".patchkit" not in k}
    assert "already applied" not in env.ok("apply", "p")
    assert env.enc() == "-1 0"
    env.ok("verify")
    env.ok("revert", "p")
    assert env.state() == before


def test_case_25_pip_reinstall_of_a_patch_that_adds_a_file(lab: Lab) -> None:
    """pip leaves the added file where it is: the patch is half undone."""
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    lab.patch("p", ADD)
    env.ok("apply", "p")
    env.pip("install", "--force-reinstall", "demo-pkg==1.0")
    assert (env.site / "demo_pkg/extra/b.py").exists()
    before = {k: v for k, v in env.state().items() if not k.startswith((".patchkit", EXTRA))}
    assert env.patchkit("verify").code == 1
    env.ok("apply", "p")
    env.ok("verify")
    env.ok("revert", "p")
    assert env.state() == before


def test_case_23_pip_upgrade(lab: Lab) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    env.ok("apply", "p")
    env.pip("install", "--upgrade", "demo-pkg==1.1")
    assert env.enc() == "7 7"
    before = {k: v for k, v in env.state().items() if ".patchkit" not in k}
    assert "upgraded underneath" in env.patchkit("status").out
    assert "upgraded underneath" in env.ok("revert", "p")
    assert env.state() == before


def test_case_23_pip_upgrade_and_apply_again(lab: Lab) -> None:
    env = lab.venv("env")
    make_wheel(lab.dist, "demo-pkg", "1.2", {**FILES, F: b"# newer\n" + A})
    env.pip("install", "demo-pkg==1.0")
    env.ok("apply", "p")
    env.pip("install", "--upgrade", "demo-pkg==1.2")
    before = {k: v for k, v in env.state().items() if ".patchkit" not in k}
    env.ok("apply", "p")
    assert env.enc() == "-1 0"
    env.ok("revert", "p")
    assert env.state() == before


@pytest.mark.parametrize("edited", [False, True])
def test_case_26_pip_uninstall(lab: Lab, edited: bool) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    lab.patch("p", ADD)
    env.ok("apply", "p")
    env.lab.call(env.python, "-c", "import demo_pkg.extra.b")
    env.pip("uninstall", "--yes", "demo-pkg")
    assert not list(env.site.glob("demo_pkg*.dist-info")), "patchkit leaves no ghost behind"
    added = env.site / "demo_pkg/extra/b.py"
    if edited:
        added.write_bytes(b"MINE = 1\n")
    verify = env.patchkit("verify")
    assert verify.code == 1
    assert "demo-pkg is no longer installed" in verify.out
    env.ok("revert", "p")
    assert not (env.site / ".patchkit").exists()
    assert added.exists() is edited
    assert (env.site / "demo_pkg").exists() is edited


def test_pip_install_target(lab: Lab) -> None:
    folder = lab.folder / "vendored"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links")
    lab.call(*pip, lab.dist, "--target", folder, "demo-pkg==1.0")
    before = tree(folder)
    options = ("--site-packages", str(folder), *lab.patches)
    assert invoke("apply", *options, "p").code == 0
    assert b"return -1" in (folder / F).read_bytes()
    assert invoke("verify", *options).code == 0
    assert invoke("revert", *options, "p").code == 0
    assert tree(folder) == before


BACKEND = """\
import zipfile


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name, info = "demo_pkg-1.0-py3-none-any.whl", "demo_pkg-1.0.dist-info"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        wheel.writestr("demo_pkg.pth", __file__.rpartition("/")[0] + "\\n")
        metadata = "Metadata-Version: 2.1\\nName: demo-pkg\\nVersion: 1.0\\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise NotImplementedError
"""


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_case_19_editable_install(lab: Lab, installer: str) -> None:
    checkout = lab.folder / "checkout"
    unpack(lab.dist / "demo_pkg-1.0-py3-none-any.whl", checkout)
    shutil.rmtree(checkout / "demo_pkg-1.0.dist-info")
    (checkout / "backend.py").write_text(BACKEND)
    (checkout / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "demo-pkg"\nversion = "1.0"\n'
    )
    env = lab.venv("env")
    (env.pip if installer == "pip" else env.uv_pip)("install", "--editable", str(checkout))
    assert env.enc() == "0 0"
    source, before = tree(checkout), env.state()
    outcome = env.patchkit("apply", "p")
    assert outcome.code == 1
    assert_refusal(outcome)
    assert str(checkout) in outcome.err
    assert env.patchkit("status", "--json").states["p"] == "does not fit"
    assert (tree(checkout), env.state()) == (source, before)


# --- which environment


def test_python_may_be_an_interpreter_or_a_folder(lab: Lab) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    before = env.state()
    assert not list(env.site.glob("patchkit*"))
    for target in (env.python, env.folder):
        options = ("--python", str(target), *lab.patches)
        assert invoke("apply", *options, "p").code == 0
        assert env.enc() == "-1 0"
        assert invoke("verify", *options).code == 0
        assert invoke("revert", *options, "p").code == 0
        assert env.state() == before


def test_the_active_environment_is_the_target(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    before = env.state()
    monkeypatch.setenv("VIRTUAL_ENV", str(env.folder))
    assert invoke("apply", *lab.patches, "p").code == 0
    assert env.enc() == "-1 0"
    assert invoke("revert", "p").code == 0
    assert env.state() == before


def test_the_running_interpreter_is_the_target(lab: Lab) -> None:
    """patchkit as it is when installed in the environment itself."""
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    before = env.state()
    code = "import json, sys; print(json.dumps([p for p in sys.path if p]))"
    path = json.loads(lab.call(sys.executable, "-c", code))
    root = Path(__file__).resolve().parents[2]
    environ = {**lab.environ, "PYTHONPATH": os.pathsep.join([str(root), *path])}

    def run(*args: str) -> str:
        command = [env.python, "-m", "patchkit", *args, *lab.patches]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("apply", "p")
    assert b"return -1" in (env.site / F).read_bytes()
    run("verify")
    run("revert", "p")
    assert env.state() == before


def old_interpreters() -> list[Path]:
    """Interpreters too old for patchkit: on PATH, or where pyenv and uv keep theirs."""
    names = [f"python{v}" for v in ("2.7", "3.5", "3.6", "3.7", "3.8", "3.9")]
    found = [Path(path) for name in names if (path := shutil.which(name))]
    for root in (Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python"):
        for version in ("2.7", "3.6", "3.7", "3.8", "3.9"):
            found += sorted(root.glob(f"{version}.*/bin/python{version}"))
            found += sorted(root.glob(f"cpython-{version}.*/bin/python{version}"))
    return found


def test_an_interpreter_too_old_to_run_patchkit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    site = unpack(lab.dist / "demo_pkg-1.0-py3-none-any.whl", lab.folder / "old-site")
    before = tree(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    for python in old_interpreters():
        works = subprocess.run([python, "-c", "import json"], capture_output=True)
        if works.returncode:
            continue  # a shim of pyenv for a version that is not chosen
        tried += 1
        options = ("--python", str(python), *lab.patches)
        assert invoke("apply", *options, "p").code == 0, python
        assert invoke("verify", *options).code == 0, python
        shown = subprocess.run(
            [python, "-B", "-c", "import demo_pkg.a as a; print(a.enc(None))"],
            capture_output=True,
            text=True,
        )
        assert shown.stdout.strip() == "-1", (python, shown.stderr)
        assert invoke("revert", *options, "p").code == 0, python
        assert tree(site) == before
    if not tried:
        pytest.skip("no interpreter older than Python 3.10 was found")


def test_user_site_over_system_site(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable))
    code = (
        "import json, site, sysconfig; from importlib.metadata import version\n"
        "try: v = version('pip')\n"
        "except Exception: v = ''\n"
        "print(json.dumps([site.ENABLE_USER_SITE, site.getusersitepackages(), v]))"
    )
    monkeypatch.setenv("PYTHONUSERBASE", str(lab.folder / "user"))
    enabled, user, pip_version = json.loads(
        subprocess.run([base, "-c", code], capture_output=True, text=True, check=True).stdout
    )
    if not enabled or not pip_version:
        pytest.skip("the base interpreter has no user site or no pip to stand in for a neighbour")
    wheel = make_wheel(lab.dist, "pip", "999.0", {"pip_like/a.py": A})
    site = unpack(wheel, Path(user))
    before = tree(site)
    toml = PATCH.replace("demo-pkg", "pip").replace("demo_pkg/", "pip_like/")
    lab.patch("p", toml.replace(">=1.0,<2", ">=999"))
    options = ("--python", str(base), *lab.patches)
    assert invoke("apply", *options, "p").code == 0
    assert b"return -1" in (site / "pip_like/a.py").read_bytes()
    assert invoke("revert", *options, "p").code == 0
    assert tree(site) == before


def with_second_folder(env: Env, first: bool) -> Path:
    """Give an environment a second site-packages on its path, as a split platlib is."""
    folder = env.folder / "lib64-like/site-packages"
    folder.mkdir(parents=True)
    line = f"import sys; sys.path.insert(0, {str(folder)!r})" if first else str(folder)
    (env.site / "split.pth").write_text(line + "\n")
    return folder


def test_purelib_and_platlib_split(lab: Lab) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    second = with_second_folder(env, first=False)
    unpack(make_wheel(lab.dist, "other-pkg", "1.0", {"other_pkg/b.py": A}), second)
    lab.patch("q", PATCH.replace("demo-pkg", "other-pkg").replace("demo_pkg/a", "other_pkg/b"))
    before = env.state(), tree(second)
    env.ok("apply", "p", "q")
    assert (second / ".patchkit").is_dir()
    states = env.patchkit("status", "--json").states
    assert (states["p"], states["q"]) == ("applied", "applied")
    env.ok("verify")
    env.ok("revert", "q")
    assert tree(second) == before[1]
    assert b"return -1" in (env.site / F).read_bytes()
    env.ok("revert", "--all")
    assert (env.state(), tree(second)) == before


@pytest.mark.parametrize("first", [True, False])
def test_a_distribution_found_twice_on_the_path(lab: Lab, first: bool) -> None:
    env = lab.venv("env")
    env.pip("install", "demo-pkg==1.0")
    second = with_second_folder(env, first=first)
    unpack(lab.dist / "demo_pkg-1.1-py3-none-any.whl", second)
    lab.patch("p", PATCH.replace("return 0", "return 7" if first else "return 0"))
    before = env.state(), tree(second)
    env.ok("apply", "p")
    assert env.enc() == ("-1 7" if first else "-1 0")
    assert (tree(second) == before[1]) is not first
    env.ok("revert", "p")
    assert tree(second) == before[1]


@pytest.mark.parametrize("maker", [Lab.venv, Lab.uv_venv])
def test_an_environment_moved_with_its_state(lab: Lab, maker: Callable[[Lab, str], Env]) -> None:
    """The state holds no full path: images are built in one place and run in another."""
    env = maker(lab, "env")
    env.uv_pip("install", "--link-mode=copy", "demo-pkg==1.0")
    before = env.state()
    env.ok("apply", "p")
    moved = lab.folder / "moved"
    shutil.copytree(env.site, moved, symlinks=True)
    options = ("--site-packages", str(moved))
    assert invoke("verify", *options).code == 0
    assert invoke("revert", *options, "--all").code == 0
    assert tree(moved) == before
