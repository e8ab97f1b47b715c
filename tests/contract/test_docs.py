"""The pages of docs/: complete, in step with the code, and with examples that run.

``make docs`` builds them and runs the tutorials; these are the checks that need no Sphinx.
"""

import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bactrian
import bactrian.compat
import bactrian.text
import bactrian.vision
from bactrian.cli.run_options import DATA_OPTIONS, LEARNING_OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md"))
#: The page on pytorch-crf needs PyTorch: tests/engines/test_torch_crf.py runs it.
PEERS = sorted(page for page in (DOCS / "coming-from").glob("*.md") if page.stem != "pytorch-crf")

#: Our side of a table of two programs: the second cell of a row.
OURS = re.compile(r"^  - ```python\n(.*?)^    ```", re.MULTILINE | re.DOTALL)


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"^([a-z0-9/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES} | {"api/index", "commands/index"}
    assert len(set(listed)) == len(listed)
    assert set(listed) == pages - {"index"}


@pytest.mark.parametrize(
    "module", [bactrian, bactrian.text, bactrian.vision, bactrian.compat], ids=lambda m: m.__name__
)
def test_the_reference_lists_every_public_name(module):
    assert documented(module.__name__) == {*module.__all__} - {"__version__"}


def test_the_engine_for_pytorch_can_be_read_without_pytorch():
    """``make docs`` puts objects in PyTorch's place that can be called, subclassed and asked for names, and no more."""
    code = """
import importlib.abc, importlib.machinery, pkgutil, sys, types

class Standing:
    def __init__(self, *_, **__): pass
    def __call__(self, *arguments, **__):
        return arguments[0] if arguments and isinstance(arguments[0], (type, types.FunctionType)) else Standing()
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Standing()
    def __mro_entries__(self, bases): return (Standing,)

class Module(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Standing()

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] == "torch" else None
    def create_module(self, spec): return Module(spec.name)
    def exec_module(self, module): pass

sys.meta_path.insert(0, Finder())
sys.modules["triton"] = None
import bactrian.torch, bactrian.engines.torch
for module in pkgutil.iter_modules(bactrian.engines.torch.__path__, "bactrian.engines.torch."):
    importlib.import_module(module.name)
print(bactrian.torch.CamelLoss.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "CamelLoss\n", done.stderr


def test_the_reference_lists_the_engine_for_pytorch():
    pytest.importorskip("torch")
    import bactrian.torch

    assert documented("bactrian.torch") == set(bactrian.torch.__all__)


def documented(module):
    """Names under ``currentmodule``, in tables or, for constants, in the text."""
    text = (DOCS / "api" / "index.rst").read_text(encoding="utf-8")
    parts = re.split(r"^\.\. currentmodule:: (\S+)$", text, flags=re.MULTILINE)
    part = parts[parts.index(module) + 1].split(".. automodule::")[0]
    constants = [
        name for line in part.splitlines() if not line.startswith(" ") for name in re.findall("``([A-Z_]+)``", line)
    ]
    return {*re.findall(r"^   (\w+)$", part, re.MULTILINE), *constants}


def code_of(page, kinds=("python", "{code-cell} ipython3")):
    found = re.findall(
        r"^```([^\n`]*)\n((?::[^\n]*\n)*)(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [code for kind, _, code in found if kind.strip() in kinds]


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *PAGES], ids=lambda page: page.stem)
def test_lines_of_code_fit_the_page(page):
    code = code_of(page, ("python", "{code-cell} ipython3", "bash", "sh", "toml", "bibtex", ""))
    long = [line for block in code for line in block.splitlines() if len(line) > 88]
    assert long == []


def test_the_front_page_shows_ten_lines_that_run():
    pytest.importorskip("skimage")
    (code,) = code_of(DOCS / "index.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert "](img/front.png)" in (DOCS / "index.md").read_text(encoding="utf-8")
    assert (DOCS / "img" / "front.png").is_file()
    names = {}
    exec(compile(code, "index.md", "exec"), names)
    assert (names["restored"] == names["tones"][:, 48:]).mean() > 0.85


GALLERY = sorted((DOCS / "gallery").glob("*.md"))


@pytest.mark.parametrize("page", GALLERY, ids=lambda page: page.stem)
def test_a_card_leads_to_twenty_lines_whose_picture_it_shows(page):
    (code,) = code_of(page)
    assert len(code.splitlines()) <= 20
    assert code.endswith("plt.show()\n")  # as a script it shows its picture, and as a notebook nothing else
    assert (DOCS / "img" / "gallery" / f"{page.stem}.png").stat().st_size > 2_000
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    assert re.search(rf"\[!\[[^\]]+\]\(img/gallery/{page.stem}\.png\).*\]\(gallery/{page.stem}\.md\)", front)


def test_the_readme_shows_two_of_the_pictures():
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(GALLERY) == 8
    shown = re.findall(r"!\[[^\]]+\]\((docs/img/gallery/[a-z-]+\.png)\)", text)
    assert len(shown) == 2
    assert all((DOCS.parent / path).is_file() for path in shown)


@pytest.mark.slow
@pytest.mark.parametrize("page", GALLERY, ids=lambda page: page.stem)
def test_programs_of_the_gallery_draw(page, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    for module in ("skimage", "networkx", "pandas", *(["torch"] if page.stem == "crf-on-a-network" else [])):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    pyplot.close("all")
    exec(compile(code_of(page)[0], page.name, "exec"), {})
    assert any(axes.has_data() or axes.texts for axes in pyplot.gcf().axes)
    pyplot.close("all")


def test_the_page_on_networks_runs(capsys):
    pytest.importorskip("torch")
    (code,) = code_of(DOCS / "neural.md")
    names = {}
    exec(compile(code, "neural.md", "exec"), names)
    alone = ((names["grey"] > 0.5) == names["labels"]).double().mean()
    assert names["right"] > alone + 0.05
    assert re.fullmatch(r"loss \d+\.\d, 0\.\d{3} of the pixels right\n", capsys.readouterr().out)


def test_extras_are_named_only_where_they_can_be_installed():
    """The library is installed from a checkout: its name with extras finds nothing elsewhere."""
    root = DOCS.parent
    for path in [root / "README.md", *PAGES, *sorted((root / "src").rglob("*.py"))]:
        assert not re.search(r"pip install ['\"]?bactrian", path.read_text(encoding="utf-8")), path


@pytest.fixture(scope="module")
def building():
    spec = importlib.util.spec_from_file_location("building", DOCS / "building.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_has_a_page_with_every_option_and_key(building, tmp_path):
    building.write_commands(tmp_path)
    pages = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert {"train", "predict", "evaluate", "report", "infer", "rake", "sample", "demo", "pack"} <= set(pages)
    for name, command in building.commands().items():
        for part in command.params:
            for flag in part.opts if part.param_type_name != "argument" else ():
                assert f"``{flag}" in pages[name.replace(" ", "-")], (name, flag)
    for option in (*DATA_OPTIONS, *LEARNING_OPTIONS):
        assert f"``{option.setting}``" in pages["train"]
    for key in ("checkpoint_every", "input.separator", "features.elsewhere", "options.decoding", "features.preset"):
        assert f"``{key}``" in pages["train"]


def test_notebooks_have_the_cells_of_their_pages(building, tmp_path):
    """And what they say of one another: each page with cells links to its notebook."""
    written = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in building.write_notebooks(DOCS, tmp_path)
    }
    assert {"start", "denoising", "fields", "networks", "raking", "sequences"} <= set(written)
    for page in PAGES:
        cells = code_of(page, ("{code-cell} ipython3",))
        if not cells:
            continue
        notebook = written[page.stem]
        assert notebook["nbformat"] == 4
        code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [source.strip() for source in code] == [cell.strip() for cell in cells]
        assert f"notebooks/{page.stem}.ipynb>`" in page.read_text(encoding="utf-8")
        words = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        assert "{code-cell}" not in words
        assert "{download}" not in words


def test_a_notebook_runs(building):
    names = {}
    for cell in building.notebook((DOCS / "start.md").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile(cell["source"], "start.ipynb", "exec"), names)
    assert names["crf"].score(names["X"][10:], names["y"][10:]) > 0.7


def test_formulas_become_mathml(building):
    pytest.importorskip("latex2mathml")
    formulas = re.findall(r"\$\$(.*?)\$\$", (DOCS / "maths.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(formulas) >= 3
    for formula in formulas:
        made = building.mathml(formula, display=True)
        assert made.startswith("<math")
        assert "merror" not in made
        assert "\\" not in made


def test_troubleshooting_has_every_status_and_every_finding():
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    terms = set(re.findall(r"^`([A-Za-z_-]+)`.*\n: ", text, re.MULTILINE))
    learners = Path(bactrian.__file__).parent / "learners"
    source = "".join((learners / name).read_text(encoding="utf-8") for name in ("diagnostics.py", "findings.py"))
    findings = set(re.findall(r'found\.add\(\s*"([a-z-]+)"', source))
    assert len(findings) == 10
    assert {status.name for status in bactrian.Status} | findings <= terms
    assert terms - findings - {"exact"} == {status.name for status in bactrian.Status}
    for status in bactrian.Status:
        heading = re.search(rf"^`{status.name}` -- \*(.*?)( \.\.\.)?\*$", text, re.MULTILINE)
        assert heading, status
        assert str(status).startswith(heading[1])


@pytest.mark.parametrize("page", PEERS, ids=lambda page: page.stem)
def test_our_side_of_the_comparisons_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = [textwrap.dedent("    " + code.lstrip(" ")) for code in OURS.findall(page.read_text(encoding="utf-8"))]
    assert len(programs) >= 2
    names = {}
    for program in programs:
        exec(compile(program, str(page), "exec"), names)


def test_the_comparison_with_pgmpy_gives_its_answer():
    """P(C | A = 1) and the most probable (B, C), by enumerating the page's three tables."""
    import itertools

    import numpy as np

    names = {}
    exec(textwrap.dedent(OURS.findall((DOCS / "coming-from" / "pgmpy.md").read_text(encoding="utf-8"))[0]), names)
    ab, bc, ac = (np.reshape(table, (2, 2)) for table in ([9, 1, 1, 9], [4, 1, 1, 4], [1, 2, 2, 1]))
    mass = {(b, c): ab[1, b] * bc[b, c] * ac[1, c] for b, c in itertools.product(range(2), repeat=2)}
    one = mass[0, 1] + mass[1, 1]
    np.testing.assert_allclose(names["result"].variables[2], [1 - one / sum(mass.values()), one / sum(mass.values())])


def test_type_hints_are_shipped():
    assert (Path(bactrian.__file__).parent / "py.typed").is_file()


def test_every_citation_is_in_the_bibliography() -> None:
    """Each year in a docstring or comment stands behind the first author of an entry with that year."""
    entries = re.findall(r"^\*\*([^*(]+?) \((\d{4})\)", (DOCS / "literature.md").read_text(), flags=re.MULTILINE)
    listed = {(authors.split(",")[0].split()[-1], year) for authors, year in entries}
    missing = []
    for path in sorted(Path(bactrian.__file__).parent.rglob("*.py")):
        text = re.sub(
            r"(CoNLL[ -]|UAI |from |to |of )20(03|14)|from 2006|conll2003", "", " ".join(path.read_text().split())
        )
        for match in re.finditer(r"(?<![\d.:\-_=\"])((?:19[5-9]|20[0-2])\d)(?![\d\-:]|\.\d)", text):
            before = text[max(0, match.start() - 170) : match.start()]
            if re.search(r"[A-Z][a-zü]+,? \(?$|\), $|[A-Z][A-Za-z. ]+ ?\d*,? \(?$", before) and not any(
                name in before for name, year in listed if year == match.group(1)
            ):
                missing.append(f"{path.name}: ...{before[-60:]}{match.group(1)}")
    assert not missing, "\n".join(missing)
