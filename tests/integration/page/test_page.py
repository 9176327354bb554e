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
from support.crowd import SERIES, CrowdedRun
from support.processes import Running
from support.tiers import variants

Watch = Callable[..., Watched]
TOKEN, OPERATOR = "correct-horse-battery", "staple-of-the-operator"
HOSTILE = '<img src=x onerror="alert(1)">'

pytestmark = [pytest.mark.timeout(120), pytest.mark.processor_seconds(60, "Chromium and workers")]


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


def row(page: Page, rank: int) -> str:
    """Return where the row of a worker is."""
    return f'#roster tbody tr[data-key="{rank}"]'


def secret(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text, encoding="ascii")
    file.chmod(0o600)
    return str(file)


def test_charts_fill_and_a_killed_worker_shows_and_a_reload_loses_nothing(watch: Watch) -> None:
    with WatchedRun(series=("loss", "accuracy")) as run:
        run.start(4)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(4)
        expect(page.locator("#liveness")).to_have_text("live")
        for title in ("loss", "accuracy", "Steps per second", "Updates per second"):
            said, drawn = chart(page, title)
            assert re.search(r"\d", said), title
            assert drawn > 100, title
        expect(page.locator("#event-list")).to_contain_text("joined run 'default'")

        seconds = []
        for live in (3, 2, 1):
            run.workers.pop().send_signal(signal.SIGKILL)
            killed_at = monotonic()
            page.evaluate(UNTIL_LIVE, live)
            seconds.append(monotonic() - killed_at)
            expect(page.locator("#summary")).to_contain_text("Silent")
        assert median(seconds) < DEATH_SECONDS_MAX

        page.reload()
        expect(page.locator("#event-list")).to_contain_text("begins with")
        said, drawn = chart(page, "loss")
        assert "mean" in said
        assert drawn > 100


@pytest.mark.deep("a browser: orders, names, keys, a lost master")
def test_an_order_is_carried_out_once_it_is_confirmed(watch: Watch, tmp_path: Path) -> None:
    token = secret(tmp_path, "token", TOKEN)
    operator = secret(tmp_path, "operator", OPERATOR)
    with WatchedRun("--http-token-file", token, "--http-operator-token-file", operator) as run:
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

        expect(page.locator("#event-list")).to_contain_text("has expelled it")
        expect(page.locator("#order-answer")).to_contain_text("expelled: rank 1")
        expect(page.locator("#roster tbody tr")).to_have_count(1)

        page.get_by_role("button", name="Resume items").wait_for(state="detached")
        page.get_by_role("button", name="Stop training").click()
        page.get_by_role("button", name="Do it").click()
        expect(page.locator("#order-answer")).to_contain_text("told to end their training")
        assert sorted(worker.wait(60) for worker in run.workers) == [0, 1]


def test_a_wrong_token_shows_nothing_and_the_viewer_s_gives_no_orders(
    watch: Watch, tmp_path: Path
) -> None:
    token = secret(tmp_path, "token", TOKEN)
    operator = secret(tmp_path, "operator", OPERATOR)
    options = ("--http-token-file", token, "--http-operator-token-file", operator)
    with WatchedRun(*options, run="secret-run") as run:
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
        assert TOKEN not in page.url

        page.reload()
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#ask")).to_be_visible()
        expect(page.locator("#everything")).to_be_hidden()


@pytest.mark.deep("a browser: orders, names, keys, a lost master")
def test_names_that_look_like_html_are_text(watch: Watch) -> None:
    name = f"a/b %2F & {HOSTILE}"
    with WatchedRun(run=name, series=(HOSTILE, "<script>x</script>")) as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        expect(page.locator("#run")).to_have_value(name)
        said, drawn = chart(page, HOSTILE)
        assert re.search(r"\d", said)
        assert drawn > 100
        assert page.locator("img, #scalars script").count() == 0
        expect(page.get_by_role("columnheader", name=HOSTILE)).to_be_visible()


@pytest.mark.parametrize("theme", variants("dark", "light"))
@pytest.mark.parametrize("width", variants(360, 1600))
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


@pytest.mark.deep("a browser: orders, names, keys, a lost master")
def test_each_run_has_its_own_events_and_stays_to_be_seen_when_it_is_over(watch: Watch) -> None:
    with WatchedRun("--idle-timeout-seconds", "4", run="alpha") as run:
        run.start(2)
        alpha, run.workers = run.workers, []
        run.run = "beta"
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open("#run=alpha")
        expect(page.locator("#event-list li")).to_have_count(3)
        page.locator("#run").select_option("beta")
        expect(page.locator("#event-list li")).to_have_count(2)
        expect(page.locator("#event-list")).not_to_contain_text("'alpha'")

        page.locator("#run").select_option("alpha")
        expect(page.locator("#event-list")).to_contain_text("joined run 'alpha'")
        alpha[0].send_signal(signal.SIGKILL)
        expect(page.locator("#event-list")).to_contain_text("is gone")

        page.locator("#run").select_option("beta")
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        run.workers[0].communicate("", timeout=60)  # it finishes
        expect(page.locator("#run")).to_have_value("alpha")


ODD = "alpha & Ω"


def finish(workers: list[Running]) -> None:
    """Let workers end, one after the other."""
    while workers:
        worker = workers.pop(0)
        worker.communicate("", timeout=60)
        assert worker.returncode == 0


def assert_followed(page: Page, run: str) -> None:
    """Check that a page shows a run with one worker, as it goes on."""
    expect(page.locator("#run")).to_have_value(run)
    expect(page.locator("#event-list")).to_contain_text(f"joined run {run!r}")
    expect(page.locator("#roster tbody tr")).to_have_count(1)
    expect(page.locator("#notice")).to_be_hidden()


def assert_looked_back_at(page: Page, run: str) -> None:
    """Check that a page shows what is there of a run that is over, and nothing else."""
    expect(page.locator("#notice")).to_have_text(
        f"Run {run} is over: these curves are what its workers logged."
    )
    expect(page.locator("#run")).to_have_value(run)
    for title in ("loss", "Steps per second"):
        said, drawn = chart(page, title)
        assert re.search(r"\d", said), title
        assert drawn > 100, title
    for section in ("workers", "traffic", "layers", "topology", "events", "orders"):
        expect(page.locator(f"#{section}")).to_be_hidden()


@pytest.mark.deep("a browser: orders, names, keys, a lost master")
def test_a_run_that_is_over_is_shown_after_a_reload_until_another_one_begins(watch: Watch) -> None:
    with WatchedRun(run=ODD) as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        chart(page, "Steps per second")
        finish(run.workers)
        expect(page.locator("#notice")).to_have_text(f"Run {ODD} is over: this is how it was last.")
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        expect(page.locator("#run option")).to_have_text([f"{ODD} (over)"])

        page.reload()
        assert_looked_back_at(page, ODD)
        expect(page.locator("#nothing")).to_be_hidden()

        run.run = "beta"
        run.start(1)
        assert_followed(page, "beta")
        expect(page.locator("#run option")).to_have_text(["beta", f"{ODD} (over)"])


@pytest.mark.deep("a browser: orders, names, keys, a lost master")
def test_a_run_that_is_over_stays_where_it_was_chosen(watch: Watch) -> None:
    with WatchedRun(run=ODD) as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        chart(page, "Steps per second")
        finish(run.workers)
        run.run = "beta"
        run.start(1)
        assert_followed(page, "beta")

        page.locator("#run").select_option(ODD)
        assert_looked_back_at(page, ODD)
        page.reload()
        assert_looked_back_at(page, ODD)
        assert Axe().run(page).response["violations"] == []
        run.run = "gamma"
        run.start(1)
        expect(page.locator("#run option")).to_have_text(["beta", "gamma", f"{ODD} (over)"])
        assert_looked_back_at(page, ODD)

        page.locator("#run").focus()
        page.keyboard.press("ArrowUp")
        assert_followed(page, "gamma")
        finish(run.workers)  # that of gamma last
        expect(page.locator("#notice")).to_have_text("Run gamma is over: this is how it was last.")
        run.run = ODD
        run.start(1)
        assert_followed(page, ODD)
        page.reload()
        assert_followed(page, ODD)


@pytest.mark.deep("a browser: orders, names, keys, a lost master")
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
        expect(page.locator('#roster th[data-column="rank"]')).to_have_attribute(
            "aria-sort", "descending"
        )

        page.get_by_role("radio", name="seconds").focus()
        page.keyboard.press("Space")
        assert page.get_by_role("radio", name="seconds").is_checked()

        page.get_by_role("button", name="Drain").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#confirm")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#confirm")).to_be_hidden()
        expect(page.get_by_role("button", name="Drain")).to_be_focused()


@pytest.mark.deep("a browser: orders, names, keys, a lost master")
def test_a_master_that_is_gone_is_said_to_be_and_the_last_picture_stays(watch: Watch) -> None:
    with WatchedRun() as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#liveness")).to_have_text("live")
        run.master.stop(signal.SIGKILL)
        expect(page.locator("#notice")).to_contain_text("no answer from the master")
        expect(page.locator("#roster tbody tr")).to_have_count(1)
        watched.complaints.clear()  # of connections that were refused


FRAMES = """() => new Promise(done => {
    let longest = 0, last = performance.now();
    const end = last + 3000;
    const frame = now => {
        longest = Math.max(longest, now - last);
        last = now;
        if (now < end) requestAnimationFrame(frame); else done(longest);
    };
    requestAnimationFrame(frame);
})"""
"""The longest time in milliseconds between two pictures of three seconds."""


@pytest.mark.deep("a browser: 200 workers")
def test_two_hundred_workers_with_a_million_points_are_looked_at_with_ease(watch: Watch) -> None:
    with CrowdedRun(workers=200, steps=1_000) as run:
        assert run.series.taken == 200 * 1_000 * len(SERIES) == 10**6
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#roster tbody tr")).to_have_count(200)
        for title in ("loss", "accuracy", "Steps per second"):
            said, drawn = chart(page, title)
            assert re.search(r"\d", said), title
            assert drawn > 100, title
        assert page.evaluate(FRAMES) < 500

        page.get_by_role("row").nth(150).scroll_into_view_if_needed()
        page.reload()
        expect(page.locator("#roster tbody tr")).to_have_count(200)
