"""The master's page in a real browser, on real runs."""

import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import monotonic

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from support.browser import Watched, WatchedRun
from support.crowd import SERIES, CrowdedRun
from support.waiting import FACTOR, JOB

Watch = Callable[..., Watched]
TOKEN, OPERATOR = "correct-horse-battery", "staple-of-the-operator"
HOSTILE = '<img src=x onerror="alert(1)">'

pytestmark = [pytest.mark.timeout(JOB)]

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


SAID = r"^Rank [01], step [\d,]+: 20,000 elements, a sample of [\d,]+$"

STEP = """Number(document.querySelector('#layer-said').textContent.match(/step ([0-9,]+)/)[1]
    .replaceAll(',', ''))"""
"""The step of the histograms that are shown."""

HEIGHTS = "bars => bars.map(bar => bar.getAttribute('height'))"


def assert_drawn(page: Page, title: str) -> str:
    """Check that a chart is drawn, with a value; return what it says."""
    box = page.get_by_role("group", name=title, exact=True)
    box.scroll_into_view_if_needed()
    expect(box.locator(".now")).to_contain_text(re.compile(r"\d"))
    assert box.locator("canvas").evaluate(DRAWN) > 100
    return box.locator(".now").inner_text()


def assert_row_count(page: Page, workers: int) -> None:
    """Check how many workers the page shows."""
    expect(page.locator("#roster tbody tr")).to_have_count(workers)


def assert_no_rule_of_axe_is_broken(page: Page) -> None:
    """Check the page as it is now by the rules of axe-core, which are those of WCAG and others."""
    broken = Axe().run(page).response["violations"]
    assert [(rule["id"], [each["html"][:200] for each in rule["nodes"]]) for rule in broken] == []


def secrets(folder: Path) -> tuple[str, ...]:
    """Return options of a master that has both tokens."""
    options = []
    for option, text in (("token", TOKEN), ("operator-token", OPERATOR)):
        file = folder / option
        file.write_text(text, encoding="ascii")
        file.chmod(0o600)
        options += [f"--http-{option}-file", str(file)]
    return tuple(options)


def test_charts_fill_and_a_killed_worker_shows_and_a_reload_loses_nothing(watch: Watch) -> None:
    with WatchedRun(series=("loss", "accuracy")) as run:
        run.start(4)
        watched = watch(run)
        page = watched.page
        watched.open()
        assert_row_count(page, 4)
        expect(page.locator("#liveness")).to_have_text("live")
        for title in ("loss", "accuracy", "Steps per second", "Updates per second"):
            assert_drawn(page, title)
        expect(page.locator("#event-list")).to_contain_text("joined run 'default'")
        for axis in ("time", "bytes"):
            page.get_by_role("radio", name=axis).check(force=True)
            assert_drawn(page, "loss")
        page.get_by_label("log scale").check()
        assert_drawn(page, "loss")
        page.get_by_role("button", name="Chart rank 2", exact=True).click()
        assert_drawn(page, "loss")

        seconds = []
        for live in (3, 2, 1):
            run.workers.pop().send_signal(signal.SIGKILL)
            killed_at = monotonic()
            page.evaluate(UNTIL_LIVE, live)
            seconds.append(monotonic() - killed_at)
            expect(page.locator("#summary")).to_contain_text("in trouble")
        assert median(seconds) < DEATH_SECONDS_MAX

        page.reload()
        expect(page.locator("#event-list")).to_contain_text("begins with")
        assert_drawn(page, "loss")


def test_an_order_is_carried_out_once_it_is_confirmed(watch: Watch, tmp_path: Path) -> None:
    with WatchedRun(*secrets(tmp_path)) as run:
        run.start(2)
        watched = watch(run)
        page = watched.page
        watched.open()
        page.locator("#token").fill(OPERATOR)
        page.locator("#token").press("Enter")
        expel = page.get_by_role("button", name="Expel rank 1", exact=True)
        expel.click()
        page.get_by_role("button", name="Cancel").click()
        assert_row_count(page, 2)

        expel.click()
        page.get_by_role("button", name="Do it").click()

        expect(page.locator("#event-list")).to_contain_text("has expelled it")
        expect(page.locator("#order-answer")).to_contain_text("expelled: rank 1")
        assert_row_count(page, 1)

        page.get_by_role("button", name="Stop training").click()
        page.get_by_role("button", name="Do it").click()
        expect(page.locator("#order-answer")).to_contain_text("told to end their training")
        assert sorted(worker.wait() for worker in run.workers) == [0, 1]


def test_who_may_look_without_a_token_can_enter_the_operator_s(
    watch: Watch, tmp_path: Path
) -> None:
    with WatchedRun(*secrets(tmp_path)[2:]) as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        assert_row_count(page, 1)
        expect(page.get_by_role("button", name="Stop training")).to_be_hidden()
        assert_no_rule_of_axe_is_broken(page)
        page.get_by_role("button", name="Enter the operator's token").click()
        page.locator("#token").fill(OPERATOR)
        page.locator("#token").press("Enter")

        page.get_by_role("button", name="Stop training").click()
        page.get_by_role("button", name="Do it").click()

        expect(page.locator("#order-answer")).to_contain_text("told to end their training")
        assert run.workers[0].wait() == 0


def test_a_wrong_token_shows_nothing_and_the_viewer_s_gives_no_orders(
    watch: Watch, tmp_path: Path
) -> None:
    with WatchedRun(*secrets(tmp_path), run="secret-run") as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        page.locator("#token").fill("wrong-horse-battery")
        page.get_by_role("button", name="Open").click()
        expect(page.locator("#token-error")).to_contain_text("does not take this token")
        assert "secret-run" not in page.content()
        expect(page.locator("#everything")).to_be_hidden()
        assert_no_rule_of_axe_is_broken(page)

        page.locator("#token").fill(TOKEN)
        page.get_by_role("button", name="Open").click()
        expect(page.locator("#run")).to_have_value("secret-run")
        assert_row_count(page, 1)
        expect(page.locator("#order-problem")).to_contain_text("gives no orders")
        expect(page.locator("#order-buttons")).to_be_hidden()
        expect(page.get_by_role("button", name="Expel rank 0")).to_have_count(0)
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        assert download.value.suggested_filename == "secret-run.csv"
        assert TOKEN not in page.url

        page.reload()
        assert_row_count(page, 1)
        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#ask")).to_be_visible()
        expect(page.locator("#everything")).to_be_hidden()


def test_names_that_look_like_html_are_text_and_infinity_is_said(watch: Watch) -> None:
    name = f"a/b %2F & {HOSTILE}"
    with WatchedRun(run=name, series=(HOSTILE, "<script>x</script>", "infinite")) as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        assert_row_count(page, 1)
        expect(page.locator("#run")).to_have_value(name)
        assert_drawn(page, HOSTILE)
        infinite = page.get_by_role("group", name="infinite", exact=True)
        expect(infinite.locator(".now")).to_have_text("no finite number")
        assert page.locator("#everything img, #scalars script").count() == 0
        expect(page.get_by_role("columnheader", name=HOSTILE)).to_be_visible()


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1600, "light"), (1600, "dark")])
def test_no_rule_of_axe_is_broken_and_nothing_is_wider_than_the_screen(
    watch: Watch, width: int, theme: str
) -> None:
    with WatchedRun(series=("loss", "a-long-name/" * 5)) as run:
        run.start(2)
        watched = watch(run, width=width, theme=theme)
        page = watched.page
        watched.open()
        assert_row_count(page, 2)
        assert_drawn(page, "loss")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        assert_no_rule_of_axe_is_broken(page)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_layer_s_histograms_and_its_ratio_are_drawn_read_and_move_on(watch: Watch) -> None:
    with WatchedRun(settings=["GRADWIRE_LOG_HISTOGRAMS_EVERY=5"]) as run:
        run.start(2)
        watched = watch(run)
        page = watched.page
        watched.open()
        expect(page.locator("#layer-said")).to_have_text(re.compile(SAID))
        first = page.evaluate(STEP)
        for title in ("Parameters", "Change by a step"):
            histogram = page.get_by_role("group", name=title, exact=True)
            expect(histogram.locator(".now")).to_contain_text("deviation")
            assert max(map(float, histogram.locator("rect").evaluate_all(HEIGHTS))) == 100.0
        assert_drawn(page, "Change as a part of the parameters")
        page.wait_for_function(f"first => {STEP} > first", arg=first)

        bins = page.get_by_role("application", name="Change by a step")
        now = page.get_by_role("group", name="Change by a step", exact=True).locator(".now")
        bins.press("ArrowRight")
        expect(now).to_have_text(re.compile(r"^-0\.\d+ to -0\.\d+: .* %, \d.* of [\d,]+$"))
        bins.press("End")
        expect(page.locator("rect.read")).to_have_count(1)
        bins.blur()
        expect(now).to_contain_text("deviation")
        page.get_by_role("link", name="Layers").click()
        expect(page.locator("#layers")).to_be_focused()


def test_where_no_worker_sends_histograms_there_are_no_layers(watch: Watch) -> None:
    with WatchedRun() as run:
        run.start(1)
        watched = watch(run)
        watched.open()
        assert_drawn(watched.page, "loss")
        expect(watched.page.locator("#layers")).to_be_hidden()
        expect(watched.page.locator("#layers-link")).to_be_hidden()


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1400, "light")])
def test_layers_of_any_name_are_chosen_and_break_no_rule_of_axe(
    watch: Watch, width: int, theme: str
) -> None:
    names = "0.weight", HOSTILE, "a-long-name/" * 20
    with CrowdedRun(workers=2, steps=10, layers=names) as run:
        page = watch(run, width=width, theme=theme).page
        page.goto(run.url)
        select = page.get_by_role("combobox", name="Layer")
        expect(select.locator("option")).to_have_text(list(names))
        for name in names:
            select.select_option(name)
            expect(page.locator("#layer-said")).to_have_text("Rank 0, step 7: 8 elements")
            expect(page.locator("#histograms rect")).to_have_count(64)
        assert page.locator("#layers img").count() == 0
        page.locator("#layers").scroll_into_view_if_needed()
        assert_no_rule_of_axe_is_broken(page)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_two_runs_are_beside_each_other_and_each_has_its_own_events(watch: Watch) -> None:
    with WatchedRun("--idle-timeout-seconds", "4", run="alpha") as run:
        run.start(1)
        alpha, run.workers = run.workers, []
        run.run = "beta & Ω"
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open("#run=alpha")
        expect(page.locator("#event-list")).to_contain_text("joined run 'alpha'")
        page.locator("#other").select_option(run.run)
        expect(page.locator("#other-name")).to_have_text(run.run)
        assert_drawn(page, "loss")
        page.locator("#run").select_option(run.run)
        expect(page.locator("#event-list")).to_contain_text("joined run 'beta")
        expect(page.locator("#event-list")).not_to_contain_text("'alpha'")
        expect(page.locator("#other-key")).to_be_hidden()

        run.workers[0].communicate("")  # it finishes, and stays, because it was chosen
        expect(page.locator("#notice")).to_contain_text(f"Run {run.run} is over, since")
        expect(page.locator('#roster [data-state="finished"]')).to_have_count(1)
        page.locator("#other").select_option("alpha")
        assert_drawn(page, "loss")
        alpha[0].communicate("")


def test_runs_that_are_over_can_be_looked_at_beside_each_other(
    watch: Watch, tmp_path: Path
) -> None:
    with WatchedRun(*secrets(tmp_path)) as run:
        for name in ("alpha", "beta"):
            run.run = name
            run.start(2)
            run.finish()
        run.start(2)
        watched = watch(run)
        page = watched.page
        watched.open()
        page.locator("#token").fill(OPERATOR)
        page.locator("#token").press("Enter")
        assert_drawn(page, "Updates that some worker lacks")
        run.finish()
        expect(page.locator("#notice")).to_contain_text("Run beta is over, since")
        page.reload()

        expect(page.locator("#run")).to_have_value("beta")  # the last one
        expect(page.locator("#run option")).to_have_count(3)
        expect(page.locator("#notice")).to_contain_text("Run beta is over, since")
        expect(page.locator('#roster [data-state="finished"]')).to_have_count(2)
        expect(page.locator("#event-list")).to_contain_text("is finished")
        expect(page.get_by_role("button", name="Expel rank 0")).to_have_count(0)
        expect(page.get_by_role("button", name="Drain")).to_have_count(1)
        expect(page.get_by_role("button", name="End the run")).to_have_count(0)
        page.locator("#other").select_option("beta~1")
        expect(page.locator("#other-name")).to_have_text("beta~1")
        for axis in ("time", "bytes"):
            page.get_by_role("radio", name=axis).check(force=True)
            assert_drawn(page, "loss")
        assert_drawn(page, "Updates that some worker lacks")
        assert_no_rule_of_axe_is_broken(page)

        run.run = "gamma"
        run.start(1)
        expect(page.locator("#run")).to_have_value("gamma")  # nobody has chosen another one
        expect(page.locator("#notice")).to_be_hidden()
        page.locator("#run").select_option("beta")
        expect(page.locator("#notice")).to_contain_text("Run beta is over, since")
        run.run = "beta"
        run.start(1)
        expect(page.locator("#notice")).to_be_hidden()
        expect(page.locator('#roster [data-state="live"]')).to_have_count(1)
        expect(page.locator("#run option")).to_have_count(5)
        expect(page.locator("#run")).to_have_value("beta")


def test_everything_can_be_done_with_the_keyboard(watch: Watch) -> None:
    with WatchedRun() as run:
        run.start(2)
        watched = watch(run)
        page = watched.page
        watched.open()
        assert_row_count(page, 2)
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
        page.keyboard.press("ArrowLeft")

        chart = page.get_by_role("group", name="loss", exact=True)
        assert_drawn(page, "loss")
        page.get_by_role("button", name="Freeze charts").press("Enter")
        chart.locator(".plot").press("Home")
        expect(chart.locator(".now")).to_contain_text("at step 1")
        page.get_by_role("button", name="Follow again").press("Enter")

        page.get_by_role("button", name="Drain").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#confirm")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#confirm")).to_be_hidden()
        expect(page.get_by_role("button", name="Drain")).to_be_focused()


def test_who_waits_for_a_slower_worker_is_said(watch: Watch) -> None:
    run = CrowdedRun(workers=4, steps=10)
    figures = {"staleness_bound": 2.0, "wait_ratio": 0.61, "waited_for": 3.0}
    for rank in (0, 2):
        run.log(rank, 11, {f"gradwire/{name}": value for name, value in figures.items()})
    with run:
        page = watch(run).page
        page.goto(run.url)

        expect(page.locator("#held-up")).to_have_text(
            re.compile(r"Rank 0 .*, rank 2 .* wait for rank 3 .* bound of 2: 61 % of the time\.")
        )


def test_a_master_that_is_gone_is_said_to_be_and_the_last_picture_stays(watch: Watch) -> None:
    with WatchedRun() as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        watched.open()
        assert_row_count(page, 1)
        run.master.stop(signal.SIGKILL)
        expect(page.locator("#notice")).to_contain_text("No answer from the master")
        assert_row_count(page, 1)
        watched.complaints.clear()  # of connections that were refused


@pytest.mark.parametrize("hours", [-30_000, -5, 5])
def test_a_wrong_clock_of_the_browser_does_no_harm(watch: Watch, hours: int) -> None:
    """It is set while the page is open; ages, charts and times are those of the master."""
    with WatchedRun() as run:
        run.start(1)
        watched = watch(run)
        page = watched.page
        page.clock.install()
        watched.open()
        assert_drawn(page, "loss")
        page.clock.set_system_time(datetime.now(UTC) + timedelta(hours=hours))

        for _ in range(2):
            with page.expect_response(lambda response: "/series?" in response.url):
                pass
        assert_drawn(page, "loss")
        expect(page.locator("#roster td.heard")).to_have_text("now")
        run.master.stop(signal.SIGKILL)
        expect(page.locator("#liveness")).to_contain_text("lost ")
        lost = datetime.strptime(page.locator("#liveness").inner_text()[-8:], "%H:%M:%S")  # noqa: DTZ007
        seconds = (datetime.now() - lost).seconds  # noqa: DTZ005  # of a day
        assert seconds < JOB
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


def test_two_hundred_workers_with_a_million_points_are_looked_at_with_ease(watch: Watch) -> None:
    with CrowdedRun(workers=200, steps=1_000) as run:
        assert run.series.taken == 200 * 1_000 * len(SERIES) == 10**6
        page = watch(run).page
        page.goto(run.url)
        assert_row_count(page, 200)
        for title in ("loss", "accuracy", "Steps per second"):
            assert_drawn(page, title)
        assert page.evaluate(FRAMES) < 500 * FACTOR
