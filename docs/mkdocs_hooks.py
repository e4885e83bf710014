"""Additions of the site to MkDocs. The pages in docs/ are written for a reader of the repository; for the site,

notebooks      become pages, their outputs included
other files    that pages link to (experiments, source) become pages too, so that no link leads outside
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = ROOT / "notebooks"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
LANGUAGES = {".toml": "toml", ".yaml": "yaml", ".json": "json", ".py": "python", ".cu": "cuda"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, pictures = _notebook(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    for path in {path for file in files.documentation_pages() for path in _outside(file.src_uri, file.content_string)}:
        page = File.generated(config, _address(path), content=_listing(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return LINK.sub(lambda link: f"]({_internal(page.file.src_uri, link[1])}", markdown)


def _target(page: str, link: str) -> Path:
    """The target of a link on a page of docs/, or of notebooks/."""
    folder = NOTEBOOKS if page.startswith("notebooks/") else (DOCS / page).parent
    return Path(os.path.normpath(folder / link))


def _outside(page: str, text: str) -> list[Path]:
    """The files and folders outside docs/ that a page links to."""
    targets = [_target(page, link) for link in LINK.findall(text)]
    return [path for path in targets if path.exists() and not path.is_relative_to(DOCS) and path.suffix != ".ipynb"]


def _internal(page: str, link: str) -> str:
    """A link as the site has it."""
    path = _target(page, link)
    if path.suffix == ".ipynb" and path.parent == NOTEBOOKS:
        address = f"notebooks/{path.stem}.md"
    elif path.exists() and not path.is_relative_to(DOCS):
        address = _address(path)
    elif path.exists():
        address = str(path.relative_to(DOCS))
    else:
        return link  # MkDocs will say that it leads nowhere
    return os.path.relpath(address, Path(page).parent)


def _address(path: Path) -> str:
    return f"files/{path.relative_to(ROOT)}.md"


def _listing(path: Path) -> str:
    """A file, or the content of a folder, as a page that only links lead to."""
    title = f"---\nsearch:\n  exclude: true\n---\n# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        return title + "".join(f"- {name}\n" for name in names if "__pycache__" not in name)
    return f"{title}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def _notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![What this cell draws]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures
