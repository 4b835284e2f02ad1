"""The script of a run: whether and how it can be started, and the run's name."""

import re
import secrets
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec

from holdfast.record.errors import InputError

RUN_CHARS_MAX = 100
SUFFIX_BYTES = 3
SCRIPT_BYTES_MAX = 1 << 20
"""How much of a script is searched."""

_RUN_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,{RUN_CHARS_MAX - 1}}}")


class TrainingScript(msgspec.Struct, frozen=True, kw_only=True):
    """A script as the user named it: a Python file, a Python module, or another program."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    is_program: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it. Raise `InputError` if that cannot work."""
        python = (sys.executable, "-u")
        if self.is_module and self.is_program:
            raise InputError("--module and --no-python exclude each other.", hint="Leave one of them out.")
        if self.is_module:
            _module_file(self.name)
            return (*python, "-m", self.name, *self.arguments)
        if self.is_program:
            if shutil.which(self.name) is None:
                raise InputError(
                    f"There is no program {self.name}.",
                    hint="It must be executable; name it by its path.",
                )
            return (self.name, *self.arguments)
        _check_script(Path(self.name))
        return (*python, self.name, *self.arguments)

    @property
    def file(self) -> Path | None:
        """Its own file, if it has one."""
        if self.is_module:
            return _module_file(self.name)
        if self.is_program:
            found = shutil.which(self.name)
            return None if found is None else Path(found)
        path = Path(self.name)
        return path / "__main__.py" if path.is_dir() else path

    @property
    def may_join(self) -> bool:
        """Whether the script mentions Holdfast, or cannot be searched for that."""
        if self.is_module or self.is_program:
            return True
        try:
            with Path(self.name).open("rb") as file:
                return b"holdfast" in file.read(SCRIPT_BYTES_MAX)
        except OSError:
            return True

    @property
    def run_name(self) -> str:
        """A new name for a run of it."""
        name = self.name.rpartition(".")[2] if self.is_module else Path(self.name).stem
        stem = re.sub(r"[^A-Za-z0-9_.\-]", "-", name).lstrip(".-") or "run"
        return f"{stem[: RUN_CHARS_MAX // 2]}-{secrets.token_hex(SUFFIX_BYTES)}"


def checked_name(run: str) -> str:
    """The name, if it is valid for a run. Raise `InputError` if it is not."""
    if not _RUN_NAME.fullmatch(run):
        raise InputError(
            f"{run!r} cannot be the name of a run.",
            hint=f"Use up to {RUN_CHARS_MAX} letters, digits, dots, dashes and underscores.",
        )
    return run


def _check_script(path: Path) -> None:
    """Check that Python can run it: a file, or a directory or archive with a __main__."""
    try:
        if path.is_dir():
            if not (path / "__main__.py").is_file():
                raise InputError(f"The script {path} is a directory.", hint="Name the file to run.")
            return
        with path.open("rb"):
            return
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError)
        hint = "A module is run with --module, a program with --no-python." if is_gone else ""
        raise InputError(f"The script {path} cannot be read: {error.strerror}.", hint=hint) from None


def _module_file(name: str) -> Path | None:
    """Find the module as `python -m` will, but import nothing, because importing may have effects. Return the
    file that runs; raise `InputError` if there is none.
    """
    spec, places = None, ["", *sys.path]
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            raise InputError(
                f"There is no module {'.'.join(parts[:count])!r}.",
                hint="Modules are looked for in the working directory and in this Python's packages.",
            )
        places = spec.submodule_search_locations or []
    if places and (spec := PathFinder.find_spec(f"{name}.__main__", places)) is None:
        raise InputError(f"{name!r} is a package without a __main__.", hint="Name the module to run.")
    return None if spec is None or spec.origin is None else Path(spec.origin)
