"""The report in a real browser: it loads in silence, its switches work, it goes light, dark and to paper."""

import re

import finding
import pytest
from pages import made_up, tagged_text

from bactrian.experiments.digits.task import DigitsSettings, run_digits
from bactrian.report import Report, TextSection, report_of, write_report

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-browser does it")


@pytest.fixture(scope="module")
def browser():
    path = finding.find()
    if path is None:
        pytest.skip("there is no Chromium here, and none could be downloaded: name one in BACTRIAN_BROWSER")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=finding.arguments(path))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    settings = DigitsSettings(learners=("piecewise", "cccp"), n_train=10, n_test=20, tolerance=1e-2)
    write_report(report_of(run_digits(settings), made_up(), title="A report"), path)
    return path.as_uri()


@pytest.fixture
def page(browser, address):
    """The page, opened; fails at the end if it said anything or asked for anything."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda problem: said.append(str(problem)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    yield page
    page.close()
    assert said == []
    assert [url for url in asked if url not in (address, "about:blank") and not url.startswith("data:")] == []


#: Points of a path on the screen: its ends, and many along it.
POINTS = """e => { const m = e.getScreenCTM(), n = e.getTotalLength(); return PARTS.map(
    part => e.getPointAtLength(part * n).matrixTransform(m)).map(p => [p.x, p.y]); }"""
ENDS = POINTS.replace("PARTS", "[0, 1]")
ALONG = POINTS.replace("PARTS", "[...Array(200).keys()].map(k => k / 199)")


def n_visible(page, selector):
    return page.locator(f"{selector}:visible").count()


def background(page):
    """Lightness of the page, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(value) for value in re.findall(r"\d+", colour)[:3]) / 3


def choose(place, name):
    place.get_by_role("radio", name=re.compile(f"^{name}")).check()


def test_charts_and_pictures_are_drawn(page):
    assert n_visible(page, "section.curves .charts figure svg") == 2 * 3
    assert n_visible(page, "section.calibration figure svg") == 2
    for chart in page.locator("section.curves .charts figure svg:visible").all():
        box = chart.bounding_box()
        assert box["width"] > 200
        assert box["height"] > 150
    assert page.locator("section.curves polyline").count() > 6
    broken = page.evaluate("[...document.images].filter(i => !i.complete || i.naturalWidth === 0).length")
    assert broken == 0
    assert n_visible(page, "img") > 10


def test_nothing_runs_out_of_the_page(page):
    for width in (1280, 800, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 1280:
            clipped = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
            assert page.evaluate(clipped) == 0


def test_on_a_phone_results_come_before_controls(page):
    page.set_viewport_size({"width": 390, "height": 800})
    top = page.locator("main").bounding_box()["y"]
    assert top < page.locator("body > .bar").bounding_box()["y"]
    assert top < 400
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.locator("main").bounding_box()["y"] > page.locator("body > .bar").bounding_box()["y"]


def test_the_filter_of_learners_hides_rows_lines_and_panels(page):
    row = page.locator("section.learners tr").filter(has_text="piecewise").first
    number = re.search(r"learner-(\d+)", row.get_attribute("class"))[1]
    parts = n_visible(page, f"main .learner-{number}")
    assert parts > 8
    page.get_by_role("group", name="Learners").get_by_label("piecewise").uncheck()
    assert not row.is_visible()
    assert n_visible(page, f"main .learner-{number}") == 0
    assert n_visible(page, "section.learners tr") > 4
    page.get_by_role("group", name="Learners").get_by_label("piecewise").check()
    assert n_visible(page, f"main .learner-{number}") == parts


def test_curves_against_time_or_relinearisations(page):
    curves = page.locator("section.curves").first
    assert curves.locator("svg:visible").first.get_attribute("aria-label") == "Objective against seconds"
    choose(curves, "relinearisations")
    assert curves.locator("svg:visible").first.get_attribute("aria-label") == "Objective against outer iteration"
    assert curves.locator("figure:visible").count() == 3


def test_one_row_of_pictures_is_160_pixels_wide(page):
    pictures = page.locator("section.gallery .flow img:visible").all()
    assert len(pictures) == 2
    assert all(picture.bounding_box()["width"] == pytest.approx(160, abs=2) for picture in pictures)


def test_sheets_of_a_gallery_take_turns(page):
    gallery = page.locator("section.gallery").first
    first = gallery.locator("img:visible").nth(3).get_attribute("src")
    choose(gallery, "uncertainty")
    assert gallery.locator("img:visible").nth(3).get_attribute("src") != first
    assert gallery.locator("table:visible").count() == 1


def test_texts_follow_the_learner_and_the_filter_of_errors(page):
    texts = page.locator("section.texts")
    choose(texts, "good")
    assert texts.locator("article:visible").count() == 2
    assert texts.locator("article:visible .wrong").count() == 2
    texts.get_by_label("only texts with errors").check()
    assert texts.locator("article:visible h3").all_inner_texts() == ["First good: 2 of 10 tokens wrong"]
    choose(texts, "truth")
    assert texts.locator("article:visible").count() == 0
    assert texts.get_by_text("The truth has no errors.").is_visible()


def test_skip_edges_can_be_hidden_and_end_at_their_words(page):
    texts = page.locator("section.texts")
    choose(texts, "good")
    article = texts.locator("article:visible").first
    # The first arc goes from "Lovelace" in the first line to "Lovelace" in the fourth.
    words = [mark.bounding_box() for mark in article.locator("mark", has_text="Lovelace").all()]
    for box, end in zip((words[0], words[-1]), article.locator(".arcs path").first.evaluate(ENDS), strict=True):
        assert end[0] == pytest.approx(box["x"] + box["width"] / 2, abs=3)
        assert box["y"] - 8 < end[1] < box["y"] + 4
    for path in article.locator(".arcs path").all():
        for x, y in path.evaluate(ALONG):
            for box in [mark.bounding_box() for mark in article.locator("mark").all()]:
                inside = box["x"] < x < box["x"] + box["width"] and box["y"] + 3 < y < box["y"] + box["height"]
                assert not inside, "an arc crosses a word"
    texts.get_by_role("checkbox", name="skip edges").uncheck()
    assert n_visible(page, "section.texts .arcs") == 0


def test_wide_characters_keep_their_columns(browser, tmp_path):
    text = tagged_text()
    text = type(text)(
        text.title, ("会議室", *text.tokens[1:]), text.truth, text.predictions, text.label_names, text.gaps, ((0, 7),)
    )
    path = write_report(Report("Wide", (TextSection((text,)),)), tmp_path / "page.html")
    page = browser.new_page()
    page.goto(path.as_uri())
    choose(page, "truth")
    word = page.locator("article:visible mark", has_text="Ada").bounding_box()
    column = page.locator("article:visible .passage").evaluate(
        "e => e.getBoundingClientRect().width / parseFloat(e.style.width)"
    )
    left = page.locator("article:visible .passage").bounding_box()["x"]
    assert (word["x"] - left) / column == pytest.approx(6 + 1 + 1, abs=0.2)
    page.close()


def test_marginals_appear_on_hovering_and_on_focus(page):
    texts = page.locator("section.texts")
    choose(texts, "good")
    mark = texts.locator("article:visible mark[tabindex]").first
    tip = mark.locator(".tip")
    opacity = "e => getComputedStyle(e).opacity"
    page.mouse.move(0, 0)
    assert tip.evaluate(opacity) == "0"
    mark.hover()
    assert tip.evaluate(opacity) == "1"
    assert "94%" in tip.inner_text()
    page.mouse.move(0, 0)
    mark.focus()
    assert tip.evaluate(opacity) == "1"


def test_light_and_dark(page):
    assert background(page) > 230
    choose(page, "dark")
    assert background(page) < 60
    choose(page, "auto")
    page.emulate_media(color_scheme="dark")
    assert background(page) < 60
    choose(page, "light")
    assert background(page) > 230


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(page, theme):
    """Contrast of text by the formula of WCAG 2, at least 4.5."""
    choose(page, theme)
    ratios = page.evaluate("""() => {
        const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
        const rgba = colour => {
            canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
            return [...canvas.getImageData(0, 0, 1, 1).data];
        };
        const light = c => {
            const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = element => {
            const layers = [];
            for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
            return layers.reverse().reduce(
                (under, c) => under.map((v, k) => v + (c[k] - v) * c[3] / 255), [255, 255, 255]);
        };
        const found = [];
        for (const selector of ['p', '.note', 'nav a', '.good', '.short', 'dt', '.matrix td', '.matrix th',
                                'mark.entity', '.listing thead th', 'figcaption', 'legend', 'footer'])
            for (const e of document.querySelectorAll(selector)) {
                const style = getComputedStyle(e);
                if (!e.checkVisibility()) continue;
                const [a, b] = [light(rgba(style.color).slice(0, 3)), light(behind(e))];
                found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), selector]);
            }
        return found;
    }""")
    assert len({selector for _, selector in ratios}) >= 10
    assert min(ratios)[0] >= 4.5, min(ratios)


def test_the_keyboard_reaches_everything_in_order(page, address):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto("about:blank")  # so that the next page begins at its top
    page.goto(address)
    seen = []
    for _ in range(400):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(e => e.id || e.getAttribute('href') || e.tagName)(document.activeElement)"))
        if seen[-1] == "BODY":
            break
    assert seen.index("#section-1") < seen.index("show-0") < seen.index("theme-auto")
    assert "MARK" in seen
    for wanted in ("axis-", "sheet-", "text-", "errors-", "arcs-"):
        assert any(name.startswith(wanted) for name in seen), wanted
    outline = "getComputedStyle(document.querySelector('#show-0')).outlineStyle"
    page.locator("#theme-auto").focus()
    page.keyboard.press("Shift+Tab")
    page.locator("#show-0").focus()
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Space")
    assert not page.locator("#show-0").is_checked()


def test_paper_is_white_and_shows_all_sheets(page, tmp_path):
    choose(page, "dark")
    page.emulate_media(media="print")
    assert background(page) == 255
    assert n_visible(page, "nav") == 0
    assert n_visible(page, "section.curves .charts") == 2 * 2
    assert page.locator("section.gallery").first.locator("table:visible").count() == 3
    assert page.locator("section.texts article:visible").count() == 2
    sheets = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert sheets.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 15


def test_a_nasty_name_is_a_name(page):
    assert page.evaluate("document.scripts.length") == 0
    assert page.get_by_text("<script>alert('x')</script>").first.is_visible()
