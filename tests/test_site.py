"""What can break the site, without building it: links lead somewhere, pages are listed, generated ones are whole."""

import doctest
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

import idiolect
from idiolect.contract import methods

ROOT = Path(__file__).parents[1]
OURS = sorted(name for name in methods if methods.get(name).__module__.startswith("idiolect."))
PARTS = [
    "When to use it",
    "Run it",
    "Options",
    "What it sends and keeps",
    "Costs",
    "Deviations from the paper",
    "Results here",
    "More",
]


@pytest.fixture(scope="module")
def site_pages(import_site_script):
    """The module that writes the pages."""
    return import_site_script("site_pages")


@pytest.fixture(scope="module")
def built(site_pages):
    """All pages by their place, and how they are laid out; a link that leads nowhere is an error."""
    return site_pages.build()


@pytest.fixture(scope="module")
def navigation(site_pages, built):
    """The pages that the navigation lists, in their order."""

    def targets(entries):
        for entry in entries:
            target = next(iter(entry.values())) if isinstance(entry, dict) else entry
            yield from targets(target) if isinstance(target, list) else [target]

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return list(targets(site_pages.navigation(config["nav"], built[1])))


def test_the_navigation_lists_every_page_once(navigation, built):
    pages = {uri for uri in built[0] if not uri.startswith("files/")}
    assert sorted(navigation) == sorted(pages)


def test_every_link_of_a_page_leads_to_a_page_with_that_heading(site_pages, built):
    markup = sys.modules["markup"]
    pages, notebooks = built[0], site_pages.notebooks()
    anchors = {uri: {heading.anchor for heading in markup.headings(text)} for uri, text in pages.items()}
    for uri, text in pages.items():
        for target in markup.links(text):
            file, _, anchor = target.partition("#")
            if not (markup.is_relative(target) or target.startswith("#")):
                assert target.startswith("https://"), f"{uri}: {target}"
                continue
            page = site_pages.posixpath.normpath(str(Path(uri).parent / unquote(file))) if file else uri
            assert page in pages or page in notebooks or (ROOT / "docs" / page).is_file(), f"{uri}: {target}"
            if anchor and not page.startswith("api/"):
                assert anchor in anchors[page], f"{uri}: {target}"


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("speed.md#nothing", "docs/a.md: speed.md#nothing has no such heading"),
        ("nothing.md", "docs/a.md: nothing.md does not exist"),
        ("#nothing", "docs/a.md: #nothing has no such heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(site_pages, link, wrong):
    site = site_pages.Site({"docs/a.md": f"# A\n\n[words]({link})\n", "docs/speed.md": "# Speed\n"})
    with pytest.raises(site_pages.LinkError) as raised:
        site.pages()
    assert str(raised.value) == wrong


def test_a_link_into_a_long_page_leads_to_its_part(site_pages):
    texts = {"docs/guide.md": "# G\n\n## One part\n\n### Within\n", "README.md": "[w](docs/guide.md#within)\n"}
    pages = site_pages.Site(texts).pages()
    assert pages["index.md"] == "[w](guide/one-part.md#within)\n"
    assert pages["guide/one-part.md"] == "# One part\n\n## Within\n"
    assert pages["guide.md"] == "# G\n\n- [One part](guide/one-part.md)\n"


def test_every_tutorial_offers_its_notebook(site_pages, built):
    found = site_pages.notebooks()
    assert {"tutorials/own-data.ipynb", "tutorials/cluster.ipynb"} <= found.keys()
    for uri in found:
        page = f"{uri.removesuffix('.ipynb')}.md"
        assert f"]({Path(uri).name}){{: download }}" in built[0][page]


def test_every_method_has_a_page_with_all_that_is_promised(built):
    for name in OURS:
        found = [heading.text for heading in sys.modules["markup"].headings(built[0][f"methods/{name}.md"])]
        assert found[1:] == PARTS, name


def test_every_public_name_is_in_the_reference(site_pages, built):
    for room in ("", *site_pages.ROOMS.split()):
        text = built[0][f"api/{room or 'idiolect'}.md"]
        package = f"idiolect.{room}" if room else "idiolect"
        for name in site_pages.public_names(room):
            assert f"::: {package}.{name}\n" in text or f"#idiolect.{name})" in text, f"{package}.{name}"


@pytest.mark.parametrize("name", ["finetune", "fedmd"])
def test_the_examples_of_a_method_run(built, name):
    """Those of two that need something: a method to wrap, and data that all see."""
    text = built[0][f"methods/{name}.md"]
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert doctest.DocTestRunner(verbose=False).run(found).failed == 0


def test_the_markup_keeps_its_promises(site_pages):
    assert doctest.testmod(sys.modules["markup"]).failed == 0


def test_the_version_is_said_once():
    """In the package's code, its metadata and the citation."""
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{idiolect.__version__}"\n' in project
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == idiolect.__version__
