"""The master's page in a real browser, on real runs."""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import monotonic

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from support.browser import Watched, WatchedRun

Watch = Callable[..., Watched]
TOKEN, OPERATOR = "correct-horse-battery", "staple-of-the-operator"
HOSTILE = '<img src=x onerror="alert(1)">'

pytestmark = pytest.mark.timeout(300)

DEATH_SECONDS_MAX = 2.0
"""In which the page shows that a worker was killed."""

UNTIL_LIVE = """wanted => new Promise(done => {
    const look = () => {
        const live = document.querySelectorAll('#roster .state[data-state="live"]').length;
        if (live === wanted) done(); else requestAnimationFrame(look);
    };
    look();
})"""
"""Until the page shows so many workers as live."""

DRAWN = """canvas => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext(
        '2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    return copy.getImageData(0, 0, canvas.width, canvas.height).data
        .filter((value, at) => at % 4 === 3 && value > 0).length;
}"""
"""How many pixels of a canvas are drawn on. Chromium complains where one is read several times."""


def chart(page: Page, title: str) -> tuple[str, int]:
    """Return what a chart says, and how many of its pixels are drawn on."""
    box = page.get_by_role("group", name=title, exact=True)
    box.scroll_into_view_if_needed()
    expect(box.locator("canvas")).to_be_visible()
    return box.locator(".now").inner_text(), box.locator("canvas").evaluate(DRAWN)


def assert_drawn(page: Page, *titles: str) -> None:
    for title in titles:
        said, drawn = chart(page, title)
        assert re.search(r"\d", said), title
        assert drawn > 100, title


def tokens(folder: Path) -> tuple[str, ...]:
    """Return the options of a master with two tokens."""
    options: list[str] = []
    for option, text in (("--http-token-file", TOKEN), ("--http-operator-token-file", OPERATOR)):
        file = folder / option
        file.write_text(text, encoding="ascii")
        file.chmod(0o600)
        options += [option, str(file)]
    return tuple(options)


def test_charts_fill_and_a_killed_worker_shows_and_a_reload_loses_nothing(watch: Watch) -> None:
    titles = ("loss", "accuracy", "Steps per second", "Updates per second")
    with WatchedRun(series=("loss", "accuracy")) as run:
        run.start(4)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(4)
        expect(page.locator("#liveness")).to_have_text("live")
        assert_drawn(page, *titles)
        for axis in ("time", "bytes", "steps"):
            page.get_by_text(axis, exact=True).click()
            assert_drawn(page, "loss")
        page.get_by_label("log scale").check()
        page.get_by_label("smoothing").fill("0.8")
        assert_drawn(page, "loss")
        expect(page.locator("#event-list")).to_contain_text("joined run 'default'")

        seconds = []
        for live in (3, 2, 1):
            run.workers.pop().send_signal(signal.SIGKILL)
            killed_at = monotonic()
            page.evaluate(UNTIL_LIVE, live)
            seconds.append(monotonic() - killed_at)
            expect(page.locator("#summary")).to_contain_text("In trouble")
        assert median(seconds) < DEATH_SECONDS_MAX

        page.reload()
        expect(page.locator("#event-list")).to_contain_text("begins with")
        assert_drawn(page, *titles)


def test_an_order_is_carried_out_once_it_is_confirmed(watch: Watch, tmp_path: Path) -> None:
    with WatchedRun(*tokens(tmp_path)) as run:
        run.start(2)
        watched = watch(run)
        page = watched.page
        watched.open()
        page.locator("#token").fill(OPERATOR)
        page.locator("#token").press("Enter")
        expel = page.get_by_role("button", name="Expel rank 1", exact=True)
        expel.click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#roster tbody tr")).to_have_count(2)

        expel.click()
        page.get_by_role("button", name="Do it").click()

        expect(page.locator("#order-answer")).to_contain_text("expelled: rank 1")
        expect(page.locator("#event-list")).to_contain_text("expelled")
        expect(page.locator("#roster tbody tr")).to_have_count(1)

        page.get_by_role("button", name="Stop training").click()
        page.get_by_role("button", name="Do it").click()
        expect(page.locator("#order-answer")).to_contain_text("told to end their training")
        for worker in run.workers:
            worker.wait()


def test_a_wrong_token_shows_nothing_and_the_viewer_s_gives_no_orders(
    watch: Watch, tmp_path: Path
) -> None:
    with WatchedRun(*tokens(tmp_path), run="secret-run") as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        page.locator("#token").fill("wrong-horse-battery")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("#token-error")).to_contain_text("does not take this token")
        assert "secret-run" not in page.content()
        expect(page.locator("#everything")).to_be_hidden()

        page.locator("#token").fill(TOKEN)
        page.get_by_role("button", name="Open").click()
        expect(page.locator("#run")).to_have_value("secret-run")
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        expect(page.locator("#orders")).to_be_hidden()
        expect(page.get_by_role("button", name="Expel rank 0")).to_have_count(0)
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        assert Path(download.value.path()).read_text().startswith("series,rank,")
        assert TOKEN not in page.url

        page.reload()
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#ask")).to_be_visible()
        expect(page.locator("#everything")).to_be_hidden()


def test_names_that_look_like_html_are_text(watch: Watch) -> None:
    name = f"a/b %2F & {HOSTILE}"
    with WatchedRun(run=name, series=(HOSTILE, "<script>x</script>")) as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        expect(page.locator("#run")).to_have_value(name)
        assert_drawn(page, HOSTILE)
        assert page.locator("main img, #scalars script").count() == 0
        expect(page.locator("#roster thead")).to_contain_text(HOSTILE)


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [360, 1600])
def test_no_rule_of_axe_is_broken_and_nothing_is_wider_than_the_screen(
    watch: Watch, width: int, theme: str
) -> None:
    with WatchedRun(series=("loss", "a-long-name/" * 5)) as run:
        run.start(2)
        watched = watch(run, width=width, theme=theme)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(2)
        chart(page, "loss")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)

        broken = Axe().run(page).response["violations"]

        assert [(rule["id"], [n["html"][:200] for n in rule["nodes"]]) for rule in broken] == []
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0


def test_a_run_is_drawn_beside_another_one_and_stays_when_it_is_over(watch: Watch) -> None:
    with WatchedRun(run="alpha") as run:
        run.start(1)
        run.run = "beta"
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open("#run=beta")
        expect(page.locator("#event-list")).to_contain_text("joined run 'beta'")
        expect(page.locator("#event-list")).not_to_contain_text("'alpha'")
        page.get_by_label("beside").select_option("alpha")
        loss = page.get_by_role("group", name="loss", exact=True)
        expect(loss.locator(".now")).to_contain_text("beside")

        page.locator("#run").select_option("alpha")
        expect(page.locator("#event-list")).to_contain_text("joined run 'alpha'")
        page.locator("#run").select_option("beta")
        page.get_by_role("button", name="End the run").click()
        page.get_by_role("button", name="Do it").click()
        expect(page.locator("#order-answer")).not_to_have_text("")
        expect(page.locator("#run")).to_have_value("alpha")


def test_everything_can_be_done_with_the_keyboard(watch: Watch) -> None:
    with WatchedRun() as run:
        run.start(2)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(2)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()

        page.get_by_role("button", name="Rank", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#roster tbody tr").first).to_have_attribute("data-key", "1")
        rank = page.locator('#roster th[data-column="rank"]')
        expect(rank).to_have_attribute("aria-sort", "descending")

        page.get_by_role("radio", name="steps").focus()
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("radio", name="time").is_checked()
        page.get_by_role("button", name="Freeze").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Frozen")).to_be_focused()

        page.get_by_role("button", name="Drain").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#confirm")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#confirm")).to_be_hidden()
        expect(page.get_by_role("button", name="Drain")).to_be_focused()


def test_a_master_that_is_gone_is_said_to_be_and_the_last_picture_stays(watch: Watch) -> None:
    with WatchedRun() as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        run.master.stop(signal.SIGKILL)
        expect(page.locator("#notice")).to_contain_text("no answer from the master")
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        page.goto("about:blank")  # it does not try again
        watched.complaints.clear()  # of connections that were refused
