"""The playground in a real browser, every control of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

import pytest

from scdd.lm.model import LM
from scdd.trace.page import page as recorded
from tests.serve.client import Client
from tests.serve.conftest import Serving

sync = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: install it, or set CHROMIUM to its path")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
TEXT = "The quick brown fox jumps over the lazy dog."
WRONG = "It is the capital blue the province."
EXAMPLE = (
    "The town lies on the north bank of the river and has a population the 20,000 people. "
    "It is the capital blue the province and one of the oldest towns in the country."
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync.expect.set_options(timeout=60_000)  # machines may be busy
    with sync.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield made
        made.close()


def opened(browser: Any, url: str, server: str | None = None, **options: Any) -> Any:
    """A page that fails the test if it complains, or asks anybody but its server (whose address begins `url`)."""
    server = server or url
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.complaints = []
    page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda asked: page.complaints.append(asked.url) if not asked.url.startswith(server) else None)
    page.goto(url)
    sync.expect(page.locator("#sampler")).to_be_attached()
    return page


@pytest.fixture(scope="module", params=["tiny", pytest.param("bundled", marks=pytest.mark.slow)])
def which(request: pytest.FixtureRequest) -> str:
    """Every control does what it should with the bundled model too, a minute later."""
    return str(request.param)


@pytest.fixture(scope="module")
def model(which: str, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue({"tiny": "lm", "bundled": "bundled"}[which])


@pytest.fixture(scope="module")
def site(which: str, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue({"tiny": "client", "bundled": "bundled_client"}[which])


@pytest.fixture
def page(browser: Any, site: Client) -> Iterator[Any]:
    made = opened(browser, site.url)
    yield made
    assert made.complaints == []
    made.context.close()


def run(page: Any, steps: int | None = 8) -> None:
    """Press the button, and wait until the walk has ended; `steps`: where the method has any."""
    if steps is not None and page.locator("#steps").is_visible():
        page.fill("#steps", str(steps))
    page.click("#run")  # which disables itself before the click returns
    sync.expect(page.locator("#halt")).to_be_disabled()
    sync.expect(page.locator("#run")).to_be_enabled()


def text(page: Any) -> str:
    return "".join(page.locator("#text .tok").all_text_contents())


def visible(lm: LM, tokens: tuple[int, ...]) -> str:
    return "".join(lm.tokenizer.token(token) for token in tokens)


def test_generate_shows_what_the_library_generates(page: Any, model: LM) -> None:
    page.fill("#prompt", "The fox")
    page.fill("#suffix", " dog.")
    page.fill("#length", "24")
    page.fill("#seed", "5")
    run(page)
    expected = model.generate(prompt="The fox", suffix=" dog.", length=24, seed=5, steps=8)[0]
    assert text(page) == visible(model, expected.tokens)
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 8 of 8.*0 masks left"))
    sync.expect(page.locator("#note")).to_have_text("Seed 5")


def test_the_slider_scrubs_and_play_replays(page: Any) -> None:
    run(page)
    slider = page.locator("#step")
    final = text(page)
    slider.focus()
    page.keyboard.press("Home")
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 0 of 8"))
    assert page.locator("#text .mask").count() == page.locator("#text .tok").count()
    page.click("#next")
    page.click("#next")
    page.click("#back")
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 1 of 8"))
    assert page.locator("#text .unmasked").count() > 0
    page.select_option("#speed", "50")
    page.click("#play")
    sync.expect(page.locator("#play")).to_have_attribute("aria-label", "Pause")
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 8 of 8"))
    sync.expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    assert text(page) == final


def test_keys_move_through_the_text(page: Any) -> None:
    run(page)
    page.locator("#text").focus()
    page.keyboard.press("ArrowLeft")
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 7 of 8"))
    page.keyboard.press("Home")
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 0 of 8"))
    page.keyboard.press("End")
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 8 of 8"))
    page.keyboard.press(" ")
    sync.expect(page.locator("#play")).to_have_attribute("aria-label", "Pause")
    page.keyboard.press(" ")
    sync.expect(page.locator("#play")).to_have_attribute("aria-label", "Play")


def test_colours_and_plot_count_the_moves(page: Any, model: LM) -> None:
    """SCDD corrects in place: over all steps the orange tokens are the library's corrections."""
    page.fill("#length", "38")
    page.fill("#seed", "1")
    run(page, 16)
    expected = model.generate(length=38, seed=1, steps=16)[0]
    found = {"unmasked": 0, "corrected": 0, "remasked": 0}
    page.locator("#text").focus()
    page.keyboard.press("Home")
    for _ in range(16):
        page.keyboard.press("ArrowRight")
        for kind in found:
            found[kind] += page.locator(f"#text .{kind}").count()
    assert found == {"unmasked": expected.unmasked, "corrected": expected.corrections, "remasked": 0}
    assert expected.corrections > 0
    sync.expect(page.locator("#sums")).to_contain_text(f"{expected.corrections} corrected")
    assert page.locator("#plot rect.c").count() > 0
    box = page.locator("#plot").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.53, box["y"] + 20)
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 9 of 16"))


def test_remasking_has_a_colour_of_its_own(page: Any) -> None:
    page.select_option("#schedule", "mdlm")
    page.select_option("#sampler", "remdm")
    page.select_option("#sampler-variant", "rescale")
    page.fill("#sampler-eta", "0.5")
    run(page, 12)
    page.locator("#text").focus()
    seen = 0
    for _ in range(12):
        seen += page.locator("#text .mask.remasked").count()
        page.keyboard.press("ArrowLeft")
    assert seen > 0
    assert page.locator("#plot rect.r").count() > 0


def test_pickers_come_from_the_recipes_schema(page: Any, site: Client) -> None:
    schema = site.get("/v1/settings").json["recipe_schema"]["$defs"]
    kinds = list(schema["SamplingOptions"]["properties"]["sampler"]["discriminator"]["mapping"])
    assert sorted(page.locator("#sampler option").all_text_contents()) == sorted(kinds)
    assert page.locator("#grid option").all_text_contents() == schema["GridOptions"]["properties"]["kind"]["enum"]
    assert page.locator("#final option").all_text_contents() == schema["SamplingOptions"]["properties"]["final"]["enum"]
    page.select_option("#sampler", "gidd-correct")
    assert page.locator("#sampler-corrections").input_value() == "64"
    page.select_option("#schedule", "gidd")
    page.select_option("#schedule-schedule", "decoupled")
    page.select_option("#schedule-schedule-rho", "polynomial")
    assert page.locator("#schedule-schedule-rho-power").input_value() == "1"


def test_a_sampler_that_does_not_fit_says_why(browser: Any, site: Client) -> None:
    page = opened(browser, site.url)
    page.select_option("#sampler", "p2")
    sync.expect(page.locator("#sampling .hint").first).to_contain_text("needs ρ ≡ 1")
    page.click("#run")
    sync.expect(page.locator("#error")).to_contain_text("needs ρ ≡ 1")
    page.select_option("#sampler", "ancestral")
    run(page)
    sync.expect(page.locator("#error")).to_be_hidden()
    page.context.close()


def test_infill_by_clicking_words(page: Any, model: LM) -> None:
    page.click("#tab-infill")
    page.fill("#infill-text", TEXT)
    words = page.locator("#words button")
    assert words.all_text_contents() == TEXT.split()
    for word in ("brown", "fox", "lazy"):
        words.get_by_text(word, exact=True).click()
    assert page.locator("#words [aria-pressed=true]").all_text_contents() == ["brown", "fox", "lazy"]
    page.fill("#seed", "2")
    run(page)
    sizes = [len(model.tokenizer.encode(piece)) for piece in (" brown fox", " lazy")]
    holes = f"The quick [MASK:{sizes[0]}] jumps over the [MASK:{sizes[1]}] dog."
    expected = model.infill(holes, seed=2, steps=8)[0].tokens
    assert text(page) == visible(model, expected)
    assert page.locator("#text .written").count() == sum(sizes)  # at the end, too, one sees what was filled in
    page.click("#unmask")
    assert page.locator("#words [aria-pressed=true]").count() == 0


def test_words_can_be_masked_from_the_keyboard(page: Any) -> None:
    page.click("#tab-infill")
    first = page.locator("#words button").first
    first.focus()
    page.keyboard.press("Enter")
    sync.expect(first).to_have_attribute("aria-pressed", "true")


def test_correct_shows_steps_diff_and_doubts(page: Any, model: LM) -> None:
    page.click("#tab-correct")
    page.fill("#correct-text", WRONG)
    page.select_option("#mode", "reverse")
    page.locator("#strength").fill("0.4")
    sync.expect(page.locator("#strength-value")).to_have_text("0.4")
    page.fill("#seed", "3")
    run(page)
    found = model.correct(WRONG, mode="reverse", strength=0.4, seed=3, steps=8)
    assert found.changes
    sync.expect(page.get_by_label("Diff")).to_be_checked()  # what was changed is what people want to see
    assert page.locator("#text del").all_text_contents() == [change.before for change in found.changes]
    assert page.locator("#text ins").all_text_contents() == [change.after for change in found.changes]
    assert page.locator("#text sub").count() == 2 * len(found.changes)
    assert page.locator("#changes tbody tr").count() == len(found.changes)
    page.get_by_text("Doubts", exact=True).click()
    assert text(page) == WRONG
    colours = page.locator("#text .doubt .word").evaluate_all("all => all.map(e => e.style.backgroundColor)")
    doubts = [float(re.search(r"/ ([\d.]+)\)", colour)[1]) for colour in colours]  # type: ignore[index]
    assert doubts == pytest.approx([0.75 * score.doubt for score in found.doubts], abs=1e-3)
    page.get_by_text("Steps", exact=True).last.click()
    assert text(page) == visible(model, found.tokens)
    page.get_by_text("Doubts", exact=True).click()
    page.click("#back")  # whoever moves through the steps wants to see them
    sync.expect(page.get_by_role("radio", name="Steps")).to_be_checked()
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 7 of 8"))


def test_correct_begins_as_the_model_repairs(page: Any, model: LM) -> None:
    """Method and strength are the model's, as on the command line, and a link has others."""
    page.click("#tab-correct")
    sync.expect(page.locator("#mode")).to_have_value(model.repair.mode)
    sync.expect(page.locator("#strength-value")).to_have_text(str(model.repair.strength))
    page.evaluate("location.hash = 'task=correct&mode=pass&strength=0.3'")
    sync.expect(page.locator("#mode")).to_have_value("pass")
    sync.expect(page.locator("#strength-value")).to_have_text("0.3")


def test_correct_in_one_pass(page: Any, model: LM) -> None:
    page.click("#tab-correct")
    page.fill("#correct-text", TEXT)
    page.select_option("#mode", "pass")
    sync.expect(page.locator("#steps")).to_be_hidden()  # which one pass has none of, as it draws nothing
    sync.expect(page.locator("#seed")).to_be_hidden()
    run(page)
    found = model.correct(TEXT, mode="pass", strength=0.1)
    page.get_by_text("Steps", exact=True).last.click()
    assert text(page) == visible(model, found.tokens)
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 1 of 1"))


def test_correct_by_edits(page: Any, model: LM) -> None:
    """At strength 1 whatever odds can be told for is edited: the page shows the library's edits, in place and in a table."""
    wrong = "The river river 𝕏 runs."
    page.click("#tab-correct")
    page.fill("#correct-text", wrong)
    page.select_option("#mode", "edit")
    page.locator("#strength").fill("1")
    page.fill("#seed", "0")
    run(page)
    found = model.correct(wrong, mode="edit", strength=1.0, seed=0)
    assert found.edits
    assert page.locator("#text del").all_text_contents() == [edit.before for edit in found.edits]
    assert page.locator("#text ins").all_text_contents() == [edit.after for edit in found.edits]
    kept = page.locator("#text").evaluate(
        "all => [...all.childNodes].filter(n => n.nodeName !== 'DEL').map(n => n.textContent).join('')"
    )
    assert kept == found.text
    rows = [row.locator("td").all_text_contents() for row in page.locator("#changes tbody tr").all()]
    assert [row[:3] for row in rows] == [[edit.before, edit.after, edit.kind] for edit in found.edits]
    grounds = [
        page.locator(f"#text {tag} .word").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
        for tag in ("del", "ins")
    ]
    assert len({*grounds[0], *grounds[1]}) == 2
    assert "rgba(0, 0, 0, 0)" not in (*grounds[0], *grounds[1])  # a colour for what goes, and one for what comes
    sync.expect(page.locator("#status")).to_have_text(
        re.compile(f"^{len(found.edits)} edits? in {found.nfe} network evaluations?$")
    )
    for nothing in ("#bar", "#plot-card", "#legend", "#steps"):  # there are no steps to play, to plot or to ask for
        sync.expect(page.locator(nothing)).to_be_hidden()
    page.get_by_role("radio", name="Text").check(force=True)
    assert page.locator("#text").text_content() == found.text
    page.locator("#text").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press(" ")
    assert page.locator("#text").text_content() == found.text
    page.keyboard.press("ArrowDown")
    sync.expect(page.get_by_role("radio", name="Doubts")).to_be_checked()
    sync.expect(page.locator("#detail")).to_contain_text("doubt")
    assert page.locator("#text .doubt").count() == len(found.doubts)
    page.select_option("#mode", "reverse")  # and steps are there again
    run(page)
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 8 of 8"))
    for again in ("#bar", "#plot-card"):
        sync.expect(page.locator(again)).to_be_visible()
    sync.expect(page.get_by_role("radio", name="Steps")).to_be_attached()


def test_odds_beyond_a_million_are_not_made_up(page: Any) -> None:
    told = page.evaluate(
        "async all => { const { odds } = await import('/static/way.js'); return all.map(odds); }",
        [0.7, 2.5, 13.8, 13.816, 40.0, 1000.0, -2.5, -40.0],
    )
    beyond = "> 1,000,000"
    assert told == ["2 : 1", "12 : 1", "984,609 : 1", *[f"{beyond} : 1"] * 3, "1 : 12", f"1 : {beyond}"]


def test_a_repair_begins_with_the_steps_of_repairs(page: Any, model: LM) -> None:
    """As the API and the command line have it; what a task was given is there when one comes back to it."""
    drawn, repaired = str(model.sampling.steps), str(model.repair.steps)
    assert drawn != repaired
    sync.expect(page.locator("#steps")).to_have_value(drawn)
    page.click("#tab-correct")
    page.select_option("#mode", "reverse")
    sync.expect(page.locator("#steps")).to_have_value(repaired)
    page.fill("#steps", "7")
    page.click("#tab-infill")
    sync.expect(page.locator("#steps")).to_have_value(drawn)
    page.click("#tab-correct")
    sync.expect(page.locator("#steps")).to_have_value("7")


def test_what_is_seen_is_told_at_once_and_what_is_heard_now_and_then(browser: Any, site: Client) -> None:
    """Every step has its line on the page while a text is written; a screen reader is told of every eighth."""
    page = opened(browser, site.url)
    page.evaluate(
        """() => {
            window.seen = {};
            for (const id of ["status", "heard"]) {
                const e = document.getElementById(id), lines = window.seen[id] = [];
                new MutationObserver(() => lines.push(+/Step (\\d+)/.exec(e.textContent)[1])).observe(e, { childList: true });
            }
        }"""
    )
    page.fill("#length", "30")
    late = page.evaluate_handle(
        """() => {  // after each change of the text: whether its line is of it
            const wrong = [];
            new MutationObserver(() => {
                const masks = document.querySelectorAll("#text .tok.mask").length;
                const said = /(\\d+) masks? left/.exec(document.getElementById("status").textContent)?.[1];
                if (masks !== +said) wrong.push([masks, said]);
            }).observe(document.getElementById("text"), { childList: true, subtree: true, attributes: true });
            return wrong;
        }"""
    )
    run(page, 30)
    assert late.json_value() == []
    seen = page.evaluate("window.seen")
    assert {0, 30} <= set(seen["heard"]) <= {0, 8, 16, 24, 30}
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 30 of 30"))
    sync.expect(page.locator("#heard")).to_have_text(re.compile("Step 30 of 30"))
    sync.expect(page.locator("#heard")).to_have_attribute("aria-live", "polite")
    assert page.locator("#status").get_attribute("role") is None
    page.context.close()


def test_a_mark_leaves_the_space_in_front_of_its_word_out(page: Any, model: LM) -> None:
    """It would hang at a line's end; what is copied is the text all the same."""
    page.fill("#length", "40")
    page.fill("#seed", "5")
    run(page)
    words = page.locator("#text .tok .word").all_text_contents()
    assert len(words) == page.locator("#text .tok").count()
    assert any(token != token.lstrip() for token in page.locator("#text .tok").all_text_contents())
    assert [word for word in words if word.strip() and word != word.lstrip()] == []
    plain = page.locator("#text .tok").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert plain == "rgba(0, 0, 0, 0)"
    page.evaluate("getSelection().selectAllChildren(document.getElementById('text'))")
    expected = model.generate(length=40, seed=5, steps=8, stop=False)[0]
    assert page.evaluate("getSelection().toString()").split() == visible(model, expected.tokens).split()


def test_several_texts(page: Any, model: LM) -> None:
    page.fill("#num", "3")
    page.fill("#length", "20")
    page.fill("#seed", "0")
    run(page)
    page.select_option("#which", "2")
    assert text(page).startswith(visible(model, model.generate(3, length=20, steps=8)[2].tokens))


def test_tokens_tell_their_story(page: Any) -> None:
    run(page)
    token = page.locator("#text .tok").nth(4)
    token.hover()
    sync.expect(page.locator("#tip")).to_contain_text("p = ")
    token.click()
    sync.expect(page.locator("#detail")).to_contain_text("step ")


def test_tokens_tell_their_story_to_the_keyboard_too(page: Any) -> None:
    page.locator("#text").focus()
    page.keyboard.press("ArrowDown")  # nothing is there yet
    run(page)
    page.locator("#text").focus()
    stories = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        stories.append(page.locator("#detail").text_content())
    assert "p = " in stories[0]
    assert stories[0] == stories[2] == stories[3]
    assert page.locator("#text .held").count() == 1
    assert page.locator("#text .held").get_attribute("data-i") == "0"
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 8 of 8"))


@pytest.mark.parametrize(
    ("field", "value", "how"),
    [
        ("top_k", "1", {"top_k": 1}),
        ("top_p", "0.3", {"top_p": 0.3}),
        ("temperature", "0.4", {"temperature": 0.4}),
        ("grid", "cosine", {"grid": "cosine"}),
        ("final", "greedy", {"final": "greedy"}),
    ],
)
def test_filters_reach_the_sampler(page: Any, model: LM, field: str, value: str, how: dict[str, Any]) -> None:
    page.fill("#seed", "5")
    page.fill("#length", "30")
    control = page.locator(f"#{field}")
    if control.evaluate("e => e.tagName") == "SELECT":
        control.select_option(value)
    else:
        control.fill(value)
    run(page)
    expected, plain = (model.generate(length=30, seed=5, steps=8, stop=False, **given)[0] for given in (how, {}))
    assert text(page) == visible(model, expected.tokens)
    assert expected.tokens != plain.tokens


def test_so_do_those_of_a_recorded_page(browser: Any, model: LM, tmp_path: Path) -> None:
    """The page of `scdd trace` and of `scdd demo`, which is played without a server."""
    sample = model.generate(length=30, seed=1, steps=8, record=True)[0]
    file = tmp_path / "page.html"
    file.write_text(recorded([sample], model.tokenizer, "one"), encoding="utf-8")
    page = browser.new_page(reduced_motion="reduce")  # it does not play by itself
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    for _ in range(8):
        page.click("#next")
    tokens, words = (page.locator(f"#text {name}").all_text_contents() for name in (".tok", ".tok .word"))
    assert sample.trajectory is not None
    assert "".join(tokens) == visible(model, tuple(sample.trajectory.tokens[-1].tolist()))
    assert len(words) == len(tokens)
    assert any(token != token.lstrip() for token in tokens)
    assert [word for word in words if word.strip() and word != word.lstrip()] == []
    assert complaints == []
    page.close()


def test_a_link_restores_everything(page: Any, browser: Any, site: Client) -> None:
    page.fill("#prompt", "The fox & co")
    page.fill("#seed", "77")
    page.fill("#steps", "9")
    page.select_option("#grid", "cosine")
    page.select_option("#schedule", "scdd")
    page.fill("#schedule-schedule-p_u", "0.4")
    page.click("#share")
    sync.expect(page.locator("#note")).to_contain_text("clipboard")
    link = page.evaluate("navigator.clipboard.readText()")
    assert urlparse(link).query == ""  # what people write never reaches the server's log
    assert parse_qs(urlparse(link).fragment)["seed"] == ["77"]
    other = opened(browser, site.url)
    other.goto(link)
    sync.expect(other.locator("#tab-generate")).to_have_attribute("aria-selected", "true")
    found = {name: other.locator(f"#{name}").input_value() for name in ("prompt", "seed", "steps", "grid")}
    assert found == {"prompt": "The fox & co", "seed": "77", "steps": "9", "grid": "cosine"}
    assert other.locator("#schedule-schedule-p_u").input_value() == "0.4"
    other.context.close()


def test_a_link_holds_what_its_own_task_sends(page: Any, browser: Any, site: Client) -> None:
    """Nobody shares a letter that was corrected a while ago with a link to a text that is generated."""
    page.click("#tab-correct")
    page.fill("#correct-text", "a private letter")
    page.click("#tab-generate")
    page.fill("#prompt", "a private beginning")
    page.fill("#suffix", "a private end")
    page.select_option("#grid", "cosine")
    page.click("#tab-infill")
    page.fill("#infill-text", "Holes in this")
    page.locator("#words button").nth(1).click()

    def link() -> dict[str, list[str]]:
        page.click("#share")
        sync.expect(page.locator("#note")).to_contain_text("clipboard")
        return parse_qs(urlparse(page.evaluate("navigator.clipboard.readText()")).fragment)

    found = link()
    assert (found["task"], found["infill-text"]) == (["infill"], ["Holes in this"])
    assert set(found) == {"task", "infill-text", "masked", "sampling"}
    other = opened(browser, page.url, server=site.url)
    assert other.locator("#infill-text").input_value() == "Holes in this"
    assert other.locator("#words button").nth(1).get_attribute("aria-pressed") == "true"
    assert other.locator("#grid").input_value() == "cosine"
    other.context.close()
    page.click("#tab-correct")
    page.select_option("#mode", "pass")
    assert set(link()) <= {"task", "correct-text", "mode", "strength"}
    page.click("#tab-generate")
    assert set(link()) == {"task", "prompt", "suffix", "sampling"}
    assert page.locator("#correct-text").input_value() == "a private letter"  # it is only not in the link


def test_links_of_before_open(browser: Any, site: Client) -> None:
    """They held every field, whatever the task."""
    fields = {"prompt": "The fox", "infill-text": "One two three", "correct-text": "Teh fox", "mode": "reverse"}
    link = "task=correct&masked=2&steps=9&seed=4&strength=0.3&" + urlencode(fields)
    page = opened(browser, f"{site.url}/#{link}", server=site.url)
    sync.expect(page.locator("#tab-correct")).to_have_attribute("aria-selected", "true")
    fields |= {"steps": "9", "seed": "4", "strength": "0.3"}
    assert {name: page.locator(f"#{name}").input_value() for name in fields} == fields
    page.click("#tab-infill")
    assert page.locator("#words [aria-pressed=true]").all_text_contents() == ["two"]
    assert page.complaints == []
    page.context.close()


@pytest.mark.parametrize("task", ["generate", "infill", "correct"])
def test_copied_code_runs(page: Any, model: LM, task: str) -> None:
    page.click(f"#tab-{task}")
    if task == "correct":
        page.select_option("#mode", "reverse")
    page.fill("#steps", "4")
    page.fill("#seed", "6")
    if task == "infill":
        page.fill("#infill-text", "It's the [MASK:2] dog")
    if task == "correct":
        page.fill("#correct-text", TEXT)
    expected: Any = {
        "generate": lambda: model.generate(steps=4, seed=6)[0],
        "infill": lambda: model.infill("It's the [MASK:2] dog", steps=4, seed=6)[0],
        "correct": lambda: model.correct(TEXT, mode="reverse", steps=4, seed=6),
    }[task]()
    page.click("#copy-python")
    sync.expect(page.locator("#note")).to_have_text("The program is in the clipboard.")
    program = page.evaluate("navigator.clipboard.readText()")
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, env={**os.environ, "PYTHONUTF8": "1"}
    )
    assert said.stdout.decode() == expected.text + "\n"
    page.click("#copy-curl")
    sync.expect(page.locator("#note")).to_have_text("The command is in the clipboard.")
    command = page.evaluate("navigator.clipboard.readText()")
    if shutil.which("curl") and shutil.which("bash"):
        found = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout)
        assert (found if task == "correct" else found["samples"][0])["text"] == expected.text


def test_every_press_draws_another_text_and_a_link_shows_the_same(page: Any, browser: Any, site: Client) -> None:
    texts, seeds = [], []
    for _ in range(2):
        run(page)
        texts.append(text(page))
        seeds.append(page.locator("#note").text_content())
    assert texts[0] != texts[1]
    assert seeds[0] != seeds[1]
    page.click("#share")
    link = page.evaluate("navigator.clipboard.readText()")
    other = opened(browser, link, server=site.url)
    run(other, None)
    assert text(other) == texts[1]
    other.context.close()


def test_a_link_offers_to_write_its_text(page: Any, browser: Any, site: Client, model: LM) -> None:
    """Nothing is computed before somebody agrees, since a link may come from anywhere."""
    sync.expect(page.locator("#offer")).to_be_hidden()
    link = f"{site.url}/#task=generate&prompt=The+fox&length=20&steps=4&seed=3"
    other = opened(browser, link, server=site.url)
    sync.expect(other.locator("#offer")).to_be_visible()
    assert text(other) == ""
    other.click("#accept")
    sync.expect(other.locator("#status")).to_have_text(re.compile("Step 4 of 4"))
    sync.expect(other.locator("#run")).to_be_enabled()
    expected = model.generate(prompt="The fox", length=20, seed=3, steps=4, stop=False)[0]
    assert text(other) == visible(model, expected.tokens)
    sync.expect(other.locator("#offer")).to_be_hidden()
    other.context.close()


def test_examples_take_turns(page: Any) -> None:
    for task, field in (("generate", "prompt"), ("infill", "infill-text"), ("correct", "correct-text")):
        page.click(f"#tab-{task}")
        seen = set()
        for _ in range(5):
            page.locator(".example:visible").click()
            seen.add(page.locator(f"#{field}").input_value())
        assert len(seen) >= 3
    page.click("#tab-infill")
    assert page.locator("#words [aria-pressed=true]").count() > 0


def test_a_server_that_is_gone_is_named(browser: Any, serving: Serving) -> None:
    with serving() as client:
        page = opened(browser, client.url)
    page.click("#run")
    sync.expect(page.locator("#error")).to_contain_text("cannot be reached")
    sync.expect(page.locator("#run")).to_be_enabled()
    page.context.close()


def test_tabs_follow_the_arrow_keys(page: Any) -> None:
    page.locator("#tab-generate").focus()
    page.keyboard.press("ArrowRight")
    sync.expect(page.locator("#tab-infill")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    sync.expect(page.locator("#tab-correct")).to_have_attribute("aria-selected", "true")
    sync.expect(page.locator("#run")).to_have_text("Correct")


def test_control_enter_runs_and_dice_change_the_seed(page: Any) -> None:
    before = page.locator("#seed").input_value()
    page.click("#dice")
    assert page.locator("#seed").input_value() != before
    page.fill("#steps", "4")
    page.locator("#prompt").focus()
    page.keyboard.press("Control+Enter")
    sync.expect(page.locator("#status")).to_have_text(re.compile("Step 4 of 4"))


def test_stop_stops(browser: Any, serving: Serving) -> None:
    with serving({"steps": 20000}) as client:
        page = opened(browser, client.url)
        page.fill("#steps", "20000")
        page.click("#run")
        sync.expect(page.locator("#halt")).to_be_enabled()
        sync.expect(page.locator("#status")).to_contain_text("of 20000")
        page.click("#halt")
        sync.expect(page.locator("#note")).to_have_text("Stopped.")
        for _ in range(100):
            if client.meter("scdd_abandoned_jobs_total") == 1:
                break
            page.wait_for_timeout(50)
        assert client.meter("scdd_abandoned_jobs_total") == 1
        page.context.close()


def test_a_token_is_asked_for_and_used(browser: Any, serving: Serving) -> None:
    with serving(token="s3cret") as client:
        context = browser.new_context()
        page = context.new_page()
        page.goto(client.url)
        sync.expect(page.locator("#token-box")).to_be_visible()
        page.fill("#token", "s3cret")
        page.locator("#token").blur()
        sync.expect(page.locator("#model")).to_contain_text("tiny")
        run(page)
        assert "s3cret" not in page.url
        context.close()


def test_dark_and_light(browser: Any, site: Client) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = opened(browser, site.url, color_scheme=scheme)
        assert page.locator("html").get_attribute("data-theme") == scheme
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.click("#theme")
        other = page.locator("html").get_attribute("data-theme")
        assert other != scheme
        page.reload()
        assert page.locator("html").get_attribute("data-theme") == other
        page.context.close()
    assert grounds[0] != grounds[1]


def test_a_phone_needs_no_sideways_scrolling(browser: Any, site: Client) -> None:
    page = opened(browser, site.url, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    for task in ("generate", "infill", "correct"):
        page.click(f"#tab-{task}")
        run(page, 4)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        small = page.evaluate(
            """() => [...document.querySelectorAll(
                    "button, select, input:not([type=range]):not([type=radio]), summary, .views span, a.quiet")]
                .filter(e => e.checkVisibility() && !e.closest(".words"))
                .filter(e => e.getBoundingClientRect().height < 43.9).map(e => e.outerHTML)"""
        )
        assert small == []  # for fingers
    page.get_by_text("Doubts", exact=True).click()  # a diff of edits has no tokens
    page.locator("#text .tok").first.tap()
    sync.expect(page.locator("#detail")).not_to_be_empty()
    page.context.close()


def test_a_change_stays_on_one_line(browser: Any, bundled_client: Client) -> None:
    """The space in front of a struck word, left at the end of a line, looks like a dash."""
    for width in (360, 390, 430):
        page = opened(browser, bundled_client.url, viewport={"width": width, "height": 740})
        page.click("#tab-correct")
        page.fill("#seed", "0")
        run(page, 4)
        lines = page.locator("#text :is(del, ins) .word").evaluate_all("all => all.map(e => e.getClientRects().length)")
        assert len(lines) > 4
        assert set(lines) == {1}, width
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # the table of odds scrolls in its card
        page.context.close()


def test_every_control_has_a_name(page: Any) -> None:
    """What a screen reader would read out."""
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a[href], svg[role=img]")].filter(e => !(
            e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim())).map(e => e.outerHTML)"""
    )
    assert unnamed == []
    assert page.locator("[role=status], [role=alert]").count() >= 3
    assert page.locator("html").get_attribute("lang") == "en"


def test_the_api_page(browser: Any, site: Client) -> None:
    page = browser.new_page()
    page.goto(f"{site.url}/docs")
    sync.expect(page.locator("article h3").first).to_be_visible()
    assert "POST/v1/completions" in page.locator("article h3").all_text_contents()
    for verb, one, part in (
        ("infill", "SamplesReply", "Drawn"), ("correct", "CorrectReply", "Edit"), ("score", "ScoreReply", "TokenScore"),
    ):  # fmt: skip
        card = page.locator("article").filter(has=page.get_by_role("heading", name=f"POST/v1/{verb}", exact=True))
        names = card.locator("summary").all_text_contents()
        assert {one, f"ListReply of {one}", part} <= set(names), names
    page.close()


def test_the_playground_repairs_its_example(browser: Any, bundled_client: Client, bundled: LM) -> None:
    page = opened(browser, bundled_client.url)
    page.click("#tab-correct")
    assert page.locator("#mode").input_value() == "edit"
    page.fill("#seed", "0")
    run(page, 8)
    assert {"Teh", "thruogh", "discoverd"} <= {word.strip() for word in page.locator("#text del").all_text_contents()}
    assert {"The", "through", "discovered"} <= {word.strip() for word in page.locator("#text ins").all_text_contents()}
    page.select_option("#mode", "reverse")
    page.fill("#correct-text", EXAMPLE)
    run(page, 8)
    assert page.locator("#text del").all_text_contents() == [" the", " blue"]
    assert page.locator("#text ins").all_text_contents() == [" of", " of"]
    page.get_by_text("Doubts", exact=True).click()
    colours = page.locator("#text .doubt .word").evaluate_all(
        "all => all.map(e => [e.textContent, e.style.backgroundColor])"
    )
    strong = [word for word, colour in colours if float(colour.partition("/ ")[2].rstrip(")")) > 0.5]
    assert strong == ["the", "blue"]
    page.fill("#correct-text", EXAMPLE.replace("population the", "population of").replace("blue", "of"))
    run(page, 8)
    sync.expect(page.locator("#unchanged")).to_be_visible()
    page.click("#tab-infill")
    run(page, 8)
    assert "has a population of 20,000 people" in text(page)
    page.click("#tab-generate")
    page.fill("#length", "32")
    run(page, 8)
    assert text(page) == "".join(
        map(bundled.tokenizer.token, bundled.generate(length=32, steps=8, seed=0, stop=False)[0].tokens)
    )
    assert page.complaints == []
    page.context.close()
