"""The source files behind a job, found by following imports, and their digests.

A file counts if it is imported anywhere in the code of a module, also inside a function. Imports
for the type checker do not count. Imports by a computed name cannot be seen, so a caller names
those modules itself.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline_ops.errors import TrainyardError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.system.host import parse_source

CODE_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds `pipeline_ops/` and `beam_jobs/`."""

PACKAGES = frozenset({"pipeline_ops", "beam_jobs"})
_TEMPLATES = (".html", ".css", ".js")
_SUFFIXES = (".py", *_TEMPLATES)


class SourceFile(NamedTuple):
    """A source file as it was read once: the digest is that of the content."""

    digest: str
    content: bytes
    folder: Path
    """The folder that Python finds it from."""


def digest_sources(
    modules: Iterable[str],
    root: Path = CODE_ROOT,
    packages: Collection[str] | None = PACKAGES,
    used: Iterable[str] = (),
) -> dict[str, str]:
    """Returns digests of modules and of all that they import, by path relative to `root`.

    Only imports from `root` are followed, of the top-level `packages` or of all. `used` are the
    entries of catalogues that the job uses. A catalogue is a module-level dict `CATALOGUE` with
    literal keys. Its other entries, and imports with the names of those entries, count as absent.
    Raises TrainyardError for a missing module, and SyntaxError with the name of an invalid file.
    """
    start = list(modules)
    for module in start:
        path = root.joinpath(*module.split("."))
        if not (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()):
            raise TrainyardError(
                f"{root}: there is no source file of the module {module}. Install Trainyard again."
            )

    def find_roots(top: str) -> list[Path]:
        return [root] if packages is None or top in packages else []

    found = read_sources(start, find_roots, frozenset(used))
    return {path: source.digest for path, source in found.items()}


def read_sources(
    modules: Iterable[str],
    find_roots: Callable[[str], Iterable[Path]],
    used: frozenset[str] | None = None,
) -> dict[str, SourceFile]:
    """Returns modules and all that they import, by path relative to the folder they are in.

    The digest of a Python file is over its syntax tree without docstrings, so that a comment or a
    line break changes nothing, and so that each release of Python computes the same. Templates next
    to a module are covered by their bytes.

    `find_roots` returns the folders in which Python looks for a top-level package. `used` is
    explained in `digest_sources`. With None a catalogue is a dict like any other.
    """
    found: dict[str, SourceFile] = {}
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for root in find_roots(module.partition(".")[0]):
            for file in _find_files(root, module):
                relative = file.relative_to(root).as_posix()
                if relative not in found:
                    content = file.read_bytes()
                    has_catalogue = used is not None and b"CATALOGUE" in content
                    entries = used if has_catalogue else None
                    digest, imports = _read(content, str(file), relative, entries)
                    found[relative] = SourceFile(digest, content, root)
                    waiting += imports
    folders = {((source.folder / path).parent, source.folder) for path, source in found.items()}
    for folder, root in folders:
        for file in folder.iterdir():
            if file.suffix in _TEMPLATES:
                content = file.read_bytes()
                source = SourceFile(digest_bytes(content), content, root)
                found.setdefault(file.relative_to(root).as_posix(), source)
    return dict(sorted(found.items()))


def digest_file(file: Path) -> str:
    """Returns the digest of one Python file, as `digest_sources` computes it."""
    content = file.read_bytes()
    entries = frozenset[str]() if b"CATALOGUE" in content else None
    return _read(content, str(file), file.name, entries)[0]


def digest_tree(tree: ast.Module) -> str:
    """Returns the digest of a Python file. Removes the docstrings in the tree."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [statement for statement in body if not _is_docstring(statement)]
    parts: list[str] = []
    _dump(tree, parts)
    return digest_bytes("".join(parts).encode(errors="surrogatepass"))


def _dump(value: object, parts: list[str]) -> None:
    """Appends a syntax tree as text, without empty fields and parts, which not all Pythons have.

    So a job in another Python computes the digest that Airflow's has computed.
    """
    match value:
        case ast.JoinedStr(values=values):
            parts.append("JoinedStr")
            _dump([each for each in values if getattr(each, "value", None) != ""], parts)
        case ast.AST():
            parts.append(f"{type(value).__name__}(")
            for name, field in ast.iter_fields(value):
                if field is not None and field != []:
                    parts.append(f"{name}=")
                    _dump(field, parts)
            parts.append(")")
        case list():
            parts.append("[")
            for each in value:
                _dump(each, parts)
            parts.append("]")
        case _:
            parts.append(f"{value!r},")


def digest_all_sources(root: Path = CODE_ROOT, packages: Iterable[str] = ("pipeline_ops",)) -> str:
    """Returns one digest of the bytes of all Python files and templates of some packages.

    Hosts compare their copies of the project by it.
    """
    found = []
    for package in sorted(packages):
        for folder, folders, names in os.walk(root / package):
            folders.sort()
            files = [f"{folder}/{name}" for name in sorted(names) if name.endswith(_SUFFIXES)]
            found += [[os.path.relpath(f, root), digest_bytes(Path(f).read_bytes())] for f in files]
    return compute_digest(found)


def _find_files(root: Path, module: str) -> list[Path]:
    """Returns the files that an import of the module runs: those of its packages, and its own.

    Empty if `root` has no such module. A name inside of a module counts as the module.
    """
    files, folder = [], root
    for part in module.split("."):
        package, plain = folder / part / "__init__.py", folder / f"{part}.py"
        if package.is_file():
            files.append(package)
        elif plain.is_file():
            return [*files, plain]
        elif not (folder / part).is_dir():
            break
        folder = folder / part
    return files


@functools.lru_cache(maxsize=1024)
def _read(
    content: bytes, file: str, path: str, used: frozenset[str] | None
) -> tuple[str, tuple[str, ...]]:
    """Returns the digest, and the dotted names of imported modules and of names in modules."""
    tree = parse_source(content, file)
    if used is not None:
        _drop_unused(tree, used)
    package = path.split("/")[:-1]
    imports = tuple(dict.fromkeys(_imports(tree, package)))
    return digest_tree(tree), imports


def _imports(node: ast.AST, package: list[str]) -> Iterator[str]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            children: Iterable[ast.AST] = node.orelse
        case ast.Import(names=aliases):
            yield from (alias.name for alias in aliases)
            return
        case ast.ImportFrom(module=module, names=aliases, level=level):
            start = package[: len(package) - level + 1] if level else []
            origin = ".".join([*start, *(module.split(".") if module else [])])
            yield from (f"{origin}.{alias.name}" for alias in aliases)
            return
        case _:
            children = ast.iter_child_nodes(node)
    for child in children:
        yield from _imports(child, package)


def _drop_unused(tree: ast.Module, used: frozenset[str]) -> None:
    """Removes the catalogue's entries that are not in use, and their imports."""
    unused = set[str]()
    for node in tree.body:
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id="CATALOGUE"), value=ast.Dict() as catalogue)
                | ast.Assign(targets=[ast.Name(id="CATALOGUE")], value=ast.Dict() as catalogue)
            ):
                names = [getattr(key, "value", None) for key in catalogue.keys]
                unused = {name for name in names if isinstance(name, str)} - used
                kept = [place for place, name in enumerate(names) if name not in unused]
                catalogue.keys = [catalogue.keys[place] for place in kept]
                catalogue.values = [catalogue.values[place] for place in kept]
                break
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            node.names = [alias for alias in node.names if alias.name not in unused]


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def digest_bytes(content: bytes) -> str:
    """Returns the digest of a file that is no Python."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
