"""What the build adds to pages: mathematics as MathML, a page for every command, notebooks, outputs without waiting.

Sphinx loads this as an extension. Everything is made from the code and the pages themselves, without a network.
"""

import dataclasses
import json
import re
from pathlib import Path

from typer.main import get_command

from bactrian.cli import app as cli
from bactrian.cli.run_options import DATA_OPTIONS, LEARNING_OPTIONS
from bactrian.runs.settings import MODELS, InputSettings, RunSettings
from bactrian.text.features import EntityFeatures

DOCS = Path(__file__).parent


# --- mathematics ---


def mathml(latex, display):
    """A formula as MathML, which browsers draw themselves."""
    from latex2mathml.converter import convert

    latex = re.sub(r"\\(begin|end)\{(?:align|split)\*?\}", r"\\\1{aligned}", latex)
    return convert(latex, display="block" if display else "inline")


def visit_math(writer, node):
    """Write an inline formula."""
    from docutils.nodes import SkipNode

    writer.body.append(mathml(node.astext(), display=False))
    raise SkipNode


def visit_math_block(writer, node):
    """Write a formula on lines of its own."""
    from docutils.nodes import SkipNode

    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    writer.body.append(f'<div class="math notranslate">{number}{mathml(node.astext(), display=True)}</div>\n')
    raise SkipNode


# --- commands ---


def commands():
    """Names and click commands, those of groups with the name of their group."""
    found = {}
    for name, command in get_command(cli).commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {own}": part for own, part in inner.items()} if inner else {name: command}
    return found


def write_commands(folder):
    """A page for every command, with all of its options and the keys of a TOML file."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = {option.name: option.setting for option in (*DATA_OPTIONS, *LEARNING_OPTIONS)}
    for name, command in commands().items():
        toml = keys if name in ("train", "pack") else {}
        usage = [metavar(part) if part.param_type_name == "argument" else "" for part in command.params]
        lines = [f"bactrian {name}", "=" * (9 + len(name)), "", *command.help.splitlines(), ""]
        lines += ["::", "", f"    bactrian {name} [OPTIONS] {' '.join(filter(None, usage))}".rstrip(), ""]
        lines += table(
            ["option", "what it does", *(["key in a TOML file"] if toml else [])],
            [row(part, toml) for part in command.params if not getattr(part, "hidden", False)],
        )
        if name in ("train", "pack"):
            lines += toml_keys()
        if command.epilog:
            examples = command.epilog.removeprefix("Examples:").split("·")
            lines += ["Examples", "--------", "", "::", "", *(f"    {example.strip()}" for example in examples), ""]
        (folder / f"{name.replace(' ', '-')}.rst").write_text("\n".join(lines) + "\n", encoding="utf-8")


def metavar(part):
    """What stands for the value; releases of typer differ in how they name it themselves."""
    return part.metavar or part.name.upper()


def row(part, toml):
    """Cells of an argument or an option."""
    if part.param_type_name == "argument":
        flags, words = f"``{metavar(part)}``", getattr(part, "help", "") or ""
    else:
        value = "" if part.is_flag or part.secondary_opts else f" {metavar(part)}"
        flags = ", ".join(f"``{flag}{value}``" for flag in [*part.opts, *part.secondary_opts])
        words = part.help or ""
        usual = part.default
        if usual not in (None, False, ()) and "default" not in words and not callable(usual):
            words += f" [default: {usual.value if hasattr(usual, 'value') else usual}]"
    cells = [flags, plain(words)]
    return [*cells, f"``{toml[part.name]}``" if part.name in toml else ""] if toml else cells


def toml_keys():
    """All keys of a TOML file for ``train``, with defaults, by table."""
    lines = ["Keys of a TOML file", "-------------------", ""]
    lines += ["``bactrian train --config run.toml`` reads these; options on the command line win.", ""]
    tables = {
        "": (RunSettings, ("input", "features", "options")),
        "input": (InputSettings, ()),
        "features": (EntityFeatures, ()),
    }
    for name, (kind, tables_of_its_own) in tables.items():
        words = described(kind)
        rows = [
            [f"``{f'{name}.' if name else ''}{entry.name}``", f"``{usual(entry)}``", words.get(entry.name, "")]
            for entry in dataclasses.fields(kind)
            if entry.init and entry.name not in tables_of_its_own
        ]
        rows += [["``features.preset``", "``conll``", "conll, seminars or none"]] if name == "features" else []
        lines += table(["key", "default", "what it is"], rows)
    for name, kind in MODELS.items():
        parameters = kind().get_params()
        rows = [
            [f"``options.{key}``", f"``{value!r}``"]
            for key, value in parameters.items()
            if key not in ("warm_start", "verbose", "labels", "class_weight", "word")
        ]
        lines += [f'With ``model = "{name}"``, parameters of :class:`bactrian.{kind.__name__}`:', ""]
        lines += table(["key", "default"], rows)
    return lines


def usual(entry):
    """The default of a setting."""
    if entry.default is not dataclasses.MISSING:
        return repr(entry.default)
    return repr(entry.default_factory()) if entry.default_factory is not dataclasses.MISSING else "(needed)"


def described(kind):
    """Attributes of a class by name, from its docstring."""
    text = kind.__doc__ or ""
    part = re.search(r"Attributes\n\s*-+\n(.*?)(?=\n\s*\w+\n\s*-{3,}|\Z)", text, re.DOTALL)
    found = {}
    for names, words in re.findall(r"^    (\w[\w, ]*)\n((?:        .*\n?|\n)+)", part[1] if part else "", re.MULTILINE):
        for name in names.split(", "):
            found[name] = plain(words)
    return found


def plain(words):
    """Words on one line."""
    return " ".join(words.split())


def table(columns, rows):
    """A list table."""
    lines = [".. list-table::", "   :header-rows: 1", "   :class: options", ""]
    for cells in [columns, *rows]:
        for number, cell in enumerate(cells):
            lines.append(f"   {'*' if number == 0 else ' '} - {cell}")
    return [*lines, ""]


# --- notebooks ---

CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)\n?(.*?)^```\n", re.MULTILINE | re.DOTALL)


def notebook(text):
    """A page as a notebook: text and code in turn, without outputs."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    body = re.sub(r"^\{download\}.*\n\n?", "", body, flags=re.MULTILINE)
    body = re.sub(r"\{(?:class|func|meth|doc|mod)\}`([^`]+)`", r"`\1`", body)
    cells, last = [], 0
    for match in CELL.finditer(body):
        cells += markdown(body[last : match.start()])
        code = match[2].rstrip("\n")
        cells.append({"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": code})
        last = match.end()
    cells += markdown(body[last:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def markdown(text):
    """A cell of text, where there is any."""
    stripped = text.strip("\n")
    return [{"cell_type": "markdown", "metadata": {}, "source": stripped}] if stripped else []


def write_notebooks(pages, folder):
    """Notebooks of the pages that have code cells; the names of those written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for page in sorted(pages.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if "{code-cell}" in text:
            path = folder / f"{page.stem}.ipynb"
            path.write_text(json.dumps(notebook(text), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            written.append(path)
    return written


def before_reading(app):
    """Write what is made from code and pages."""
    write_commands(DOCS / "commands" / "generated")
    write_notebooks(DOCS, DOCS / "notebooks")


# --- outputs ---


def without_waiting(app, document):
    """Drop the line that says that functions are being compiled, of this machine and this build."""
    from docutils import nodes

    for output in list(document.findall(nodes.literal_block)):
        if "stderr" in output["classes"] and re.fullmatch(r"bactrian: compiling [^\n]*\s*", output.astext()):
            output.parent.remove(output)
    for cell in list(document.findall(nodes.container)):
        if "cell_output" in cell["classes"] and not cell.children:
            cell.parent.remove(cell)


def setup(app):
    """Tell Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(visit_math, None), block_renderers=(visit_math_block, None))
    app.connect("builder-inited", before_reading)
    app.connect("doctree-read", without_waiting)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
