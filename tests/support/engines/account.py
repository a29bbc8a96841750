"""The user that a cluster's processes run as, and the folder with all that this user may read."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from .fetch import EngineError

_ROOT = Path(__file__).resolve().parents[3]
_PACKAGES = ("pipeline_ops", "beam_jobs")
_UNUSED = shutil.ignore_patterns("__pycache__", "site-packages", "test", "idlelib")


class Account:
    """A user with a copy of the code and a Python of its own, in a folder that belongs to it.

    The user needs no access to the folders of the tests' user: what it can't read in place (the
    interpreter, the jars) is linked or copied into the folder.

    Args:
      folder: exists and is empty. Its parents must be open to the user.
      user: a name. Only root can take another one than its own.
      modules: files that workers can import besides the packages of the product.
    """

    def __init__(self, folder: Path, user: str | None, modules: Iterable[Path] = ()):
        self.folder, self._is_other = folder, user is not None
        self._entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
        for name in ("home", "tmp", "log", "modules"):
            (folder / name).mkdir()
        ignored = shutil.ignore_patterns("__pycache__")
        for package in _PACKAGES:
            shutil.copytree(_ROOT / package, folder / "code" / package, ignore=ignored)
        shutil.copy(Path(__file__).with_name("worker_pool.py"), folder / "code")
        for file in modules:
            shutil.copy(file, folder / "modules")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self._entry.pw_uid, self._entry.pw_gid)
        self._python = self._make_python()

    @property
    def prefix(self) -> list[str]:
        """The words before a command. The process ends when the thread that starts it ends."""
        words = ["setpriv", "--pdeathsig", "KILL"]
        if self._is_other:
            words += [f"--reuid={self._entry.pw_uid}", f"--regid={self._entry.pw_gid}"]
            words += ["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        return [*words, "--"]

    @property
    def environment(self) -> dict[str, str]:
        """All variables of a process. It inherits none."""
        found = {
            "PATH": f"{self._python}/bin:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.folder}/code:{self.folder}/modules",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "TRAINYARD_LOCAL_FOLDER": str(self.folder / "tmp" / "local"),
            "LANG": "C.UTF-8",
            "USER": self._entry.pw_name,
        }
        if (library := self.folder / "interpreter" / "lib").is_dir():
            found["LD_LIBRARY_PATH"] = str(library)
        return found

    def make_readable(self, path: Path, name: str) -> Path:
        """Returns the path if the user can read it, else that of a copy, of links where possible.

        Raises:
          EngineError: the user can't read the copy either.
        """
        if self._can_read(path):
            return path
        copy = self.folder / name
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=True, ignore=_UNUSED, copy_function=_link)
        else:
            _link(str(path), str(copy))
        if not self._can_read(copy):
            raise EngineError(
                f"the user {self._entry.pw_name} can't read the copy of {path}. Make its files "
                f"readable for all: chmod -R a+rX {path}"
            )
        return copy

    def make_folder(self, name: str) -> Path:
        """Makes a folder of the user below its own one, unless it is there."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        os.chown(folder, self._entry.pw_uid, self._entry.pw_gid)
        return folder

    def _can_read(self, path: Path) -> bool:
        find = ["find", path, "!", "-readable", "-print", "-quit"]
        done = subprocess.run(
            [*self.prefix, *find], capture_output=True, cwd="/", env={"PATH": os.environ["PATH"]}
        )
        return done.returncode == 0 and not done.stdout

    def _make_python(self) -> Path:
        """Makes a virtual environment of links, with the packages of the tests' environment."""
        base, packages = Path(sys.base_prefix), Path(sysconfig.get_paths()["purelib"])
        program = Path(os.path.realpath(sys.executable))
        if not self._can_read(program):
            base = self.make_readable(base, "interpreter")
            program = base / "bin" / program.name
        if not self._can_read(packages):
            raise EngineError(
                f"the user {self._entry.pw_name} can't read {packages}. Put the checkout and its "
                "virtual environment where other users can read them."
            )
        venv = self.folder / "venv"
        library = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        library.mkdir(parents=True)
        (library / "site-packages").symlink_to(packages)
        (venv / "bin").mkdir()
        (venv / "bin" / "python").symlink_to(program)
        (venv / "pyvenv.cfg").write_text(f"home = {program.parent}\n")
        return venv


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or a system that protects links
        shutil.copy2(source, target, follow_symlinks=False)
    return target
