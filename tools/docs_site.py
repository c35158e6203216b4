"""Write the pages of the site into build/docs, from which MkDocs builds it: `make docs`.

They are those of docs/, pages from elsewhere in the repository (README.md is the start page; the model card, …) with links
led to where the site has them, the notebooks with what their cells show, and three that are made here: every key of a recipe from
the JSON schema, every command from its `--help`, and the list of decisions. So the builder needs no hooks, and another one
would do.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from scdd.cli.main import VERBS, import_verb
from scdd.recipe.load import schema

ROOT = Path(__file__).resolve().parents[1]
TAKEN_OVER = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "reporting.md": "SECURITY.md",
    "bundled-model.md": "src/scdd/assets/model/README.md",
}
"""Pages of the site, and the files of the repository that they are."""
LEFT_OUT = "results"  # the measurements behind docs/results.md
NOTEBOOK = ".ipynb"
LINK = re.compile(r"(?P<before>\]\()(?P<path>[^)\s#:]+)(?P<after>(?:#[^)\s]*)?\))")
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)


def write(folder: Path) -> None:
    """Write all pages, and what they show, into a folder that is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns(LEFT_OUT))
    sources = {page: f"docs/{page}" for page in (_name(file, folder) for file in folder.rglob("*.md"))}
    pages = {
        page: led((ROOT / source).read_text(encoding="utf-8"), page, source)
        for page, source in (sources | TAKEN_OVER).items()
    }
    for file in folder.rglob(f"*{NOTEBOOK}"):  # which stays beside its page, to be downloaded
        page, source = _name(file.with_suffix(".md"), folder), f"docs/{_name(file, folder)}"
        pages[page] = led(notebook_page(file), page, source)
    pages |= {"adr/index.md": decision_page(), "reference/recipes.md": recipe_page()}
    pages |= {"reference/cli.md": command_page()}
    for page, content in pages.items():
        (folder / page).write_text(content, encoding="utf-8")


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()


def led(markdown: str, page: str, source: str) -> str:
    """The page with its links, which are those of the repository, led to the pages that the site has of them."""
    pages = {file: page for page, file in TAKEN_OVER.items()}

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["path"]))
        target = pages.get(target, target.removeprefix("docs/"))  # the builder finds out what does not exist
        if target.endswith(NOTEBOOK):
            target = target.removesuffix(NOTEBOOK) + ".md"
        return f"{link['before']}{posixpath.relpath(target, posixpath.dirname(page) or '.')}{link['after']}"

    parts = FENCED.split(markdown)
    parts[::2] = [LINK.sub(lead, part) for part in parts[::2]]
    return "".join(parts)


def decision_page() -> str:
    """The decisions by their headings."""
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    headings = (page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages)
    lines = (f"- [{heading}]({page.name})" for page, heading in zip(pages, headings, strict=True))
    intro = "What somebody may question later: each with its context and its consequences."
    return "\n".join(["# Decisions", "", intro, "", *lines, ""])


# -- notebooks -----------------------------------------------------------------------------------------------------------


def notebook_page(file: Path) -> str:
    """A notebook as a page: texts, code, and what each cell shows; the player plays here, too."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _cell(cell)]
    download = f'<p><a href="{file.name}" download>This page as a notebook</a>: run it, and change it.</p>'
    return "\n\n".join([parts[0], download, *parts[1:]]) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:
            yield f'<div class="view">{"".join(data["text/html"])}</div>'
        else:
            yield f'<pre class="shown">{escape("".join(output.get("text") or data["text/plain"]).rstrip())}</pre>'


# -- recipes -------------------------------------------------------------------------------------------------------------

ROOMS = ("data", "models", "processes", "schedules", "objectives", "training", "samplers")
RECIPES = """\
# Every key of a recipe

A recipe is a YAML file. Its sections are the options of the package's parts, and this page is made from their JSON schema
(`scdd recipe schema`). `scdd recipe list` names the shipped recipes, `scdd recipe show NAME` writes one out with all its
defaults, `scdd recipe check FILE` says what is wrong with one, and `--set a.b=c` changes a key for one command. Where a
section has a `kind`, the kind decides which other keys it has.
"""


def recipe_page() -> str:
    """Every section of a recipe, with a row for each key."""
    whole = schema()
    parts = [RECIPES, "## The whole", _key_table(whole, whole)]
    described: set[str] = set()
    for name, node in whole["properties"].items():
        if _references(node):
            parts.append(f"## `{name}`")
            parts += _sections(name, node, whole, described)
    return "\n\n".join(parts) + "\n"


def _sections(path: str, node: dict[str, Any], whole: dict[str, Any], described: set[str]) -> Iterator[str]:
    """A section for each class of options that may stand at `path`, and those inside them; each class once."""
    for title in _references(node):
        if title in described:
            continue
        described.add(title)
        options = whole["$defs"][title]
        kind = options["properties"].get("kind", {})
        kinds = [kind["const"]] if "const" in kind else kind.get("enum", ()) if "discriminator" in node else ()
        suffix = f", kind {' or '.join(f'`{each}`' for each in kinds)}" if kinds else ""
        yield f"### `{path}`{suffix} {{#{title}}}"
        others = [f"`{other}`" for other in dict.fromkeys(_paths(title, whole, whole)) if other != path]
        also = f" Also at {', '.join(others)}." if others else ""
        yield f"{_escaped(options.get('description', ''))}{also} In Python: `{_home(title)}`."
        if set(options["properties"]) - ({"kind"} if "const" in kind else set()):
            yield _key_table(options, whole)
        for name, inner in options["properties"].items():
            yield from _sections(f"{path}.{name}", inner, whole, described)


def _paths(title: str, section: dict[str, Any], whole: dict[str, Any], at: str = "") -> Iterator[str]:
    """Every place of a recipe where these options may stand."""
    for name, node in section["properties"].items():
        path = f"{at}.{name}".strip(".")
        for each in _references(node):
            if each == title:
                yield path
            yield from _paths(title, whole["$defs"][each], whole, path)


def _references(node: dict[str, Any]) -> list[str]:
    """The classes of options that a property refers to."""
    choices = [node, *(each for key in ("oneOf", "anyOf", "allOf") for each in node.get(key, ()))]
    return [choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice]


def _home(title: str) -> str:
    """The dotted name of a class of options; the schema spells it out where two rooms have one of that name."""
    if "__" in title:
        return title.replace("__", ".")
    modules = (import_module(f"scdd.{room}.options") for room in ROOMS)
    return next(f"{each.__name__}.{title}" for each in modules if title in _classes(each))


def _classes(module: Any) -> set[str]:
    """Classes that the module itself defines."""
    return {name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}


def _key_table(section: dict[str, Any], whole: dict[str, Any]) -> str:
    rows = ["| key | what it takes | default | |", "|---|---|---|---|"]
    for name, node in section["properties"].items():
        if name == "kind" and "const" in node:
            continue
        default = "required"
        if "default" in node:
            value = _default(node["default"], node, whole)
            default = f"`{value}`" if value else "its own"
        rows.append(f"| `{name}` | {_takes(node, whole)} | {default} | {_escaped(node.get('description', ''))} |")
    return "\n".join(rows)


def _takes(node: dict[str, Any], whole: dict[str, Any]) -> str:
    """A property's type and limits, in words."""
    titles = _references(node)
    if titles:
        kinds = [whole["$defs"][title]["properties"].get("kind", {}) for title in titles]
        names = [kind.get("const") or ", ".join(kind.get("enum", ())) or "section" for kind in kinds]
        return "; ".join(f"[{name}](#{title})" for name, title in zip(names, titles, strict=True))
    if "anyOf" in node:
        return " or ".join(_takes(choice, whole) for choice in node["anyOf"])
    if "enum" in node:
        return ", ".join(f"`{choice}`" for choice in node["enum"])
    if "prefixItems" in node:
        return f"list: {'; '.join(_takes(item, whole) for item in node['prefixItems'])}"
    if "items" in node:
        return f"list of {_takes(node['items'], whole)}"
    return f"{WORDS[node['type']]}{_limits(node)}"


WORDS = {
    **{"integer": "whole number", "number": "number", "string": "text"},
    **{"boolean": "`true`, `false`", "null": "`null`", "object": "keys and values"},
}


def _limits(node: dict[str, Any]) -> str:
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    if (low is None and above is None) or (high is None and below is None):
        return f" ≥ {low:g}" if low is not None else f" > {above:g}" if above is not None else ""
    first = f"[{low:g}" if low is not None else f"({above:g}"
    last = f"{_bound(high)}]" if high is not None else f"{_bound(below)})"
    return f" in {first}, {last}"


def _bound(value: float) -> str:
    """Large bounds are powers of two."""
    return f"2^{value.bit_length() - 1}" if isinstance(value, int) and value >= 2**20 else f"{value:g}"


def _default(value: Any, node: dict[str, Any], whole: dict[str, Any]) -> str:
    """A default as YAML writes it; of a section, what differs from its own defaults."""
    if isinstance(value, dict):
        for title in _references(node):
            own = {name: inner.get("default") for name, inner in whole["$defs"][title]["properties"].items()}
            if value.get("kind") == own.get("kind"):
                value = {name: each for name, each in value.items() if name == "kind" or own.get(name) != each}
        return (
            ""
            if not value
            else "{" + ", ".join(f"{name}: {_default(each, {}, whole)}" for name, each in value.items()) + "}"
        )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- commands ------------------------------------------------------------------------------------------------------------

COMMANDS = """\
# The command line

`scdd VERB --help` says the same. A mistake that you can mend is told in one sentence, with exit status 2.
"""


def command_page() -> str:
    """Every command with its arguments and flags."""
    parts = [COMMANDS]
    for verb in VERBS:
        parts += _command(import_verb(verb), f"scdd {verb}", "##")
    return "\n\n".join(parts) + "\n"


def _command(command: Any, name: str, heading: str) -> Iterator[str]:
    """A command's help as a heading, its text, its usage and a table; of a command with commands, those."""
    shown = command.get_help(command.context_class(command, info_name=name, terminal_width=9999))
    top, *tables = re.split(r"^(?:Arguments|Options|Commands):$", shown, flags=re.M)
    usage, _, about = top.partition("\n")
    yield f"{heading} {name}"
    yield _escaped(about.strip())
    inner = getattr(command, "commands", {})
    for each in inner.values():
        yield from _command(each, f"{name} {each.name}", f"{heading}#")
    if not inner:
        yield f"```\n{usage.removeprefix('Usage: ')}\n```"
        rows = (_flag_row(match) for table in tables for match in FLAG.finditer(table))
        yield "\n".join(["| | takes | default | |", "|---|---|---|---|", *rows])


FLAG = re.compile(
    r"^  (?P<name>-[^\s,]+(?:(?:, | / )[^\s,]+)*|\S+)(?: (?P<takes>\S.*?))??(?:\s{2,}(?P<about>\S.*?))?"
    r"(?:  \[(?:default: (?P<default>[^\];]*)[^\]]*|(?P<must>required))\])?$",
    re.M,
)


def _flag_row(flag: re.Match[str]) -> str:
    takes = "" if flag["takes"] is None else f"`{flag['takes'].strip('<>')}`"
    default = "required" if flag["must"] else flag["default"] or ""
    if default and not flag["must"]:
        default = default.strip("()") if default.startswith("(") else f"`{default}`"
    return f"| `{flag['name']}` | {takes} | {default} | {_escaped(flag['about'] or '')} |"


def _escaped(text: str) -> str:
    """Running text that neither a table nor HTML takes for its own, in one line a paragraph."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    joined = "\n\n".join(paragraphs)
    return joined.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
