"""What makes one site of the pages in docs/ and of those that lie elsewhere in the repository.

README.md, ARCHITECTURE.md and the like stay where people look for them; here they become pages.
Every link is written as it works in the repository, relative to its own file: it is made one of the
site where it leads to a page, and the file is published with the site where it leads to anything
else. A link that leads nowhere is left as it is, for ``mkdocs build --strict`` to complain about.
"""

import re
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[1]

PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "protocol/README.md": "wire-format.md",
}
"""Pages outside of docs/, and what they are on the site."""

CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")

FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*canonical))\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the decisions beside their list, under the headlines that they have there."""
    text = (REPOSITORY / "docs/decisions/README.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        pages = [f"decisions/{page}" for page in re.findall(r"\]\(([\w-]+\.md)\)", section)]
        config.nav[-1]["Decisions"].append({section.splitlines()[0]: pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/."""
    for source, page in PAGES.items():
        files.append(_outside(source, page, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the repository links of the site, but for those in code."""
    at = page.file.src_uri
    if at == "index.md":
        page.meta["hide"] = ["navigation"]  # it would list this page alone
    source = next((s for s, p in PAGES.items() if p == at), f"docs/{at}")
    replaced = partial(_link, source=source, at=at, config=config, files=files)
    ends = [0, *(end for match in CODE.finditer(markdown) for end in match.span()), len(markdown)]
    parts = [markdown[a:b] for a, b in pairwise(ends)]
    return "".join(p if n % 2 else LINK.sub(replaced, p) for n, p in enumerate(parts))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Take away the colons that open an example in a docstring, as reStructuredText has it."""
    return html.replace("<p>::</p>\n", "").replace("::</p>", ":</p>")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that asks another host for anything."""
    found = FOREIGN.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} asks another host: {found[0]}")
    return output


def _link(match: re.Match[str], *, source: str, at: str, config: MkDocsConfig, files: Files) -> str:
    target = normpath(PurePosixPath(source).parent / match[1])
    name = PAGES.get(target, target.removeprefix("docs/"))
    if files.get_file_from_path(name) is None:
        if target.startswith("..") or not (REPOSITORY / target).is_file():
            return match[0]
        files.append(_outside(target, target, config))
        name = target
    return f"]({relpath(name, PurePosixPath(at).parent)}{match[2] or ''})"


def _outside(source: str, name: str, config: MkDocsConfig) -> File:
    return File.generated(config, name, abs_src_path=str(REPOSITORY / source))
