"""The trace report in a browser: it loads in silence, shows a token's numbers, filters, is legible.

Needs Chromium and the Python package playwright, which drives it; skipped where either is missing.
"""

import shutil
import subprocess
import sys

import pytest
from report_runs import HOSTILE, write_examples

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 400, "height": 860}
LEAST_CONTRAST = 4.5  # of text, WCAG 2.2 level AA
CONTRASTS = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], ground) =>
    [r, g, b].map((part, i) => part * a + ground[i] * (1 - a));
  const light = (color) => {
    const [r, g, b] = color.map((part) => part / 255).map(
      (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const box = document.querySelector(".tokens > span");
  const ground = parse(getComputedStyle(document.body).backgroundColor);
  const found = {};
  for (const fate of ["a", "r", "b", "x", "u"]) {
    for (const weight of ["", "w0", "w1", "w5", "w9", "w10"]) {
      const token = document.createElement("span");
      token.className = `${fate} ${weight}`;
      box.append(token);
      const style = getComputedStyle(token);
      const back = over(parse(style.backgroundColor), ground);
      const [one, two] = [light(back), light(over(parse(style.color), back))];
      found[token.className] = {
        contrast: (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05),
        grey: one,
      };
      token.remove();
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    folders = [str(run) for run in write_examples(folder)]
    out = folder / "report.html"
    command = [sys.executable, "-m", "diversed.report", *folders, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout
    return out.as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """Return a function that opens the report; what went wrong on the way fails the test."""
    contexts, faults = [], []

    def open_it(viewport=WIDE, **options):
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on("request", lambda request: requested(request.url))
        page.goto(address)
        return page

    def requested(url):
        if url != address and not url.startswith("data:"):
            faults.append(f"asked for {url}")

    yield open_it
    for context in contexts:
        context.close()
    assert faults == []


def article(page, prompt_id):
    return page.locator(f'article[data-prompt-id="{prompt_id}"]')


def token(page, prompt_id, run, index):
    answer = article(page, prompt_id).locator(f'.answer[data-run="{run}"]')
    return answer.locator(".tokens > span > *").nth(index)


def panel_numbers(page):
    panel = page.locator("#panel")
    panel.wait_for()
    names, values = panel.locator("dt").all_inner_texts(), panel.locator("dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


def shown_prompts(page):
    return page.eval_on_selector_all(
        "article:not([hidden])", "all => all.map((one) => one.dataset.promptId)"
    )


def shown_runs(page, prompt_id):
    answers = article(page, prompt_id).locator(".answer:not([hidden])")
    return answers.evaluate_all("all => all.map((one) => one.dataset.run)")


def test_pointing_at_a_token_shows_the_numbers_of_its_record(open_page):
    page = open_page()
    assert page.locator("#panel").is_hidden()
    token(page, "b", 1, 1).hover()  # p 0.5, q 0.123456, TV 0.5, w 0.5, recovered
    assert panel_numbers(page) == {
        "p (target)": "0.5",
        "q (draft)": "0.123",
        "ν = w·p + (1 − w)·q": "0.312",
        "TV(q, p)": "0.5",
        "w": "0.5",
        "accept probability min(1, π/q)": "–",
        "block": "0",
        "place in the block": "0",
        "position in the answer": "0",
    }
    assert "recovered" in page.locator("#panel").inner_text()
    token(page, "a", 0, 4).hover()  # the first token of the second block
    numbers = panel_numbers(page)
    assert numbers["p (target)"] == "1"
    assert numbers["TV(q, p)"] == "2e-5"
    assert numbers["accept probability min(1, π/q)"] == "1"
    assert (numbers["block"], numbers["position in the answer"]) == ("1", "2")
    page.locator("h1").hover()
    page.locator("#panel").wait_for(state="hidden")


def test_a_number_just_below_one_and_a_missing_one_are_told_apart(open_page):
    page = open_page()
    page.get_by_label("unjudged").check()
    token(page, "a", 0, 2).hover()
    numbers = panel_numbers(page)
    assert numbers["p (target)"] == "> 0.999"
    assert numbers["place in the block"] == "2"
    token(page, "a", 2, 0).hover()  # plain decoding
    assert panel_numbers(page)["q (draft)"] == "–"


def test_the_keyboard_reaches_every_shown_token(open_page):
    page = open_page()
    page.locator("button[type=reset]").focus()
    page.keyboard.press("Tab")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == "Tokens of the answer by lossless"
    texts, blocks = [], []
    for _ in range(6):
        page.keyboard.press("ArrowRight")
        numbers = panel_numbers(page)
        texts.append(page.evaluate("document.activeElement.textContent"))
        blocks.append(numbers["block"])
        described = page.evaluate("document.activeElement.getAttribute('aria-describedby')")
        assert described == "panel"
    assert texts == ["It", " was", " is", " 4", "<eos>", "<eos>"]  # the unjudged one is hidden
    assert blocks == ["0", "0", "0", "1", "1", "1"]
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.textContent") == "It"
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    page.keyboard.press("Tab")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == "Tokens of the answer by static, w = 0.5"


def test_script_in_a_text_is_shown_and_does_not_run(open_page):
    page = open_page()
    assert page.evaluate("window.wasRun === undefined")
    assert page.locator("script").count() == 1
    assert token(page, "b", 1, 1).inner_text() == HOSTILE
    own = article(page, "b").locator("details")
    own.locator("summary").click()
    assert HOSTILE in own.inner_text()
    token(page, "b", 1, 1).hover()
    panel_numbers(page)
    assert HOSTILE in page.locator("#panel").inner_text()


def test_the_policy_stops_a_script_that_would_have_slipped_in(browser, address):
    page = browser.new_context().new_page()
    page.goto(address)
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.wasRun = true";
            document.body.append(script);
        }"""
    )
    assert page.evaluate("window.wasRun === undefined")
    page.context.close()


def test_filters(open_page):
    page = open_page()
    count = page.locator("#count")
    assert shown_prompts(page) == ["a", "b", "c"]

    page.locator("[name=query]").fill("QUESTION b?")
    assert shown_prompts(page) == ["b"]
    assert count.inner_text() == "1 of 3 shown"
    page.locator("[name=query]").fill("nowhere")
    assert shown_prompts(page) == []
    page.locator("button[type=reset]").click()
    assert shown_prompts(page) == ["a", "b", "c"]

    for outcome, expected in (
        ("right", ["a", "b"]),
        ("wrong", ["b"]),
        ("partial", ["c"]),
        ("differ", ["b"]),
    ):
        page.locator("[name=outcome]").select_option(outcome)
        assert shown_prompts(page) == expected
    page.locator("[name=outcome]").select_option("wrong")
    page.locator("[name=run]").select_option(label="lossless")
    assert shown_prompts(page) == []
    page.locator("[name=run]").select_option(label="static, w = 0.5")
    assert shown_prompts(page) == ["b"]

    page.locator("button[type=reset]").click()
    page.get_by_label("static, w = 0.5", exact=True).uncheck()
    assert shown_runs(page, "a") == ["0", "2"]
    page.locator("[name=outcome]").select_option("wrong")
    assert shown_prompts(page) == []  # only the hidden run was wrong
    page.locator("[name=outcome]").select_option("differ")
    assert shown_prompts(page) == []


def test_drafts_that_were_thrown_away_can_be_shown_and_hidden(open_page):
    page = open_page()
    rejected, unjudged = token(page, "a", 0, 1), token(page, "a", 0, 2)
    assert (rejected.is_visible(), unjudged.is_visible()) == (True, False)
    page.get_by_label("rejected").uncheck()
    page.get_by_label("unjudged").check()
    assert (rejected.is_visible(), unjudged.is_visible()) == (False, True)
    line = unjudged.evaluate("one => getComputedStyle(one).textDecorationLine")
    assert line == "line-through"


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_is_legible(open_page, viewport, scheme):
    page = open_page(viewport, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    found = page.evaluate(CONTRASTS)
    assert len(found) == 30
    faint = {name: one for name, one in found.items() if one["contrast"] < LEAST_CONTRAST}
    assert faint == {}
    for fate in "arb":  # in grey the shade still says w
        greys = [found[f"{fate} w{weight}"]["grey"] for weight in (0, 1, 5, 9, 10)]
        assert greys == sorted(greys, reverse=scheme == "light")
        assert len(set(greys)) == len(greys)
    token(page, "b", 1, 1).hover()
    panel_numbers(page)
    box = page.locator("#panel").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= viewport["width"]
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= viewport["height"]


def test_what_became_of_a_token_shows_without_colour(open_page):
    page = open_page()

    def line_below(prompt_id, run, index):
        return token(page, prompt_id, run, index).evaluate(
            "one => getComputedStyle(one).borderBottomStyle"
        )

    styles = [line_below("a", 0, 0), line_below("b", 1, 1), line_below("c", 1, 0)]
    assert styles == ["none", "solid", "dotted"]  # accepted, recovered, bonus
