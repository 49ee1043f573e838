"""Hooks of mkdocs: the site has the repository's paths, so that links work in both; arguments get paragraphs."""

from __future__ import annotations

import re
import tomllib
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
"""Files of the root that pages link to."""
ARGUMENT = re.compile(r"\n(?=\w+(?:, \w+)*: |Raises )")
CLOSING = ExitStack()


@event_priority(100)  # before mkdocstrings reads its paths
def on_config(config: MkDocsConfig) -> None:
    """Give Griffe a folder with the library alone, because src/epochlog is a link to the checkout with .venv in it."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    sources = Path(CLOSING.enter_context(TemporaryDirectory(prefix="epochlog-docs-")))
    folder = sources / "epochlog"
    folder.mkdir()
    for path in (*ROOT.glob("*.py"), *{ROOT / name.split(".")[1] for name in packages if "." in name}):
        (folder / path.name).symlink_to(path)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(sources)]


def on_shutdown() -> None:
    """Remove the links."""
    CLOSING.close()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of docs/, examples/ and BESIDE under their paths in the repository."""
    paths = [ROOT / name for name in BESIDE]
    paths += [path for path in (ROOT / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    paths += [ROOT / "docs" / file.src_uri for file in files if file.src_dir == config.docs_dir]
    laid = [File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)) for path in paths]
    return Files([*laid, *(file for file in files if file.src_dir != config.docs_dir)])


class Arguments(Extension):
    """Extension of Griffe that makes a paragraph of each argument, and of the errors, in a docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ARGUMENT.sub("\n\n", obj.docstring.value)
