"""Build the documentation as a site: `python docs/build_site.py [FOLDER]` (default out/site), or `make docs`.

Each page of docs/ becomes a page with the index as its menu, in reading order; `api.html` is made from docstrings. No
network is needed to build it or to read it.
"""

from __future__ import annotations

import html
import inspect
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt

import meshwright as mw

DOCS = Path(__file__).parent
STYLE = """
:root { color-scheme: light dark; --line: #8884; --link: #2563eb; }
@media (prefers-color-scheme: dark) { :root { --link: #7aa2ff; } }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; display: grid; grid-template-columns: 16rem minmax(0, 60rem); }
nav { padding: 1.5rem 1rem; border-right: 1px solid var(--line); font-size: 14px; position: sticky; top: 0;
  height: 100vh; overflow: auto; box-sizing: border-box; }
nav a { display: block; padding: 2px 6px; } nav a[aria-current] { font-weight: 600; }
main { padding: 1rem 2rem 4rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
pre { overflow: auto; padding: .8rem; border: 1px solid var(--line); border-radius: 6px; font-size: 13px; }
table { border-collapse: collapse; display: block; overflow: auto; font-size: 14px; }
td, th { border: 1px solid var(--line); padding: 4px 8px; text-align: left; vertical-align: top; }
img { max-width: 100%; height: auto; }
@media (max-width: 48rem) { body { display: block; } nav { position: static; height: auto; border: 0; } }
"""


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/site")
    folder.mkdir(parents=True, exist_ok=True)
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    order = [
        ("index.md", "Overview"),
        *((page, title) for title, page in re.findall(r"\[([^\]]+)\]\(([\w.]+\.md)\)", index)),
    ]
    for page, title in order:
        _write(folder, page, title, (DOCS / page).read_text(encoding="utf-8"), order)
    _write(folder, "api.md", "API reference", api(), order)
    shutil.copytree(DOCS / "pictures", folder / "pictures", dirs_exist_ok=True)
    print(f"{len(order) + 1} pages written to {folder}; open {folder / 'index.html'}")


def api() -> str:
    """The public names, their signatures and docstrings."""
    parts = ["# API reference", "Everything here is `meshwright.NAME`; `import meshwright as mw`."]
    for name in sorted(mw.__all__):
        found = getattr(mw, name)
        if not callable(found):
            continue
        parts += [f"## {name}", f"```python\nmw.{name}{_signature(found)}\n```", inspect.getdoc(found) or ""]
        if inspect.isclass(found):
            for member, value in vars(found).items():
                if not member.startswith("_") and callable(value) and value.__doc__:
                    parts += [
                        f"### {name}.{member}",
                        f"```python\n{member}{_signature(value)}\n```",
                        inspect.getdoc(value) or "",
                    ]
    return "\n\n".join(parts)


def _signature(found: object) -> str:
    try:
        return str(inspect.signature(found))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"


def _write(folder: Path, page: str, title: str, text: str, order: list[tuple[str, str]]) -> None:
    body = MarkdownIt("commonmark").enable("table").render(text)
    body = re.sub(r'href="([\w.-]+)\.md(#[^"]*)?"', r'href="\1.html\2"', body)
    menu = "".join(
        f'<a href="{name[:-3]}.html"{" aria-current=page" if name == page else ""}>{html.escape(shown)}</a>'
        for name, shown in [*order, ("api.md", "API reference")]
    )
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)} - meshwright</title>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    (folder / f"{page[:-3]}.html").write_text(
        f'{head}{view}<style>{STYLE}</style><nav aria-label="Pages">{menu}</nav><main>{body}</main></html>',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
