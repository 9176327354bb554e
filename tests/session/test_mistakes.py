"""Each mistake in docs/mistakes.md gets the message that the page shows."""

from pathlib import Path
from tempfile import TemporaryDirectory

from support.mistakes import MISTAKES, table

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
BEGIN, END = "<!-- mistakes: begin -->\n", "<!-- mistakes: end -->"


def shown() -> tuple[str, str, str]:
    """Return what stands before, between and after the marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    between, _, after = rest.partition(END)
    return before, between, after


def test_every_mistake_gets_the_message_that_the_documentation_shows(tmp_path: Path) -> None:
    assert len(MISTAKES) >= 40
    assert shown()[1].strip() == table(tmp_path), "renew it with: make tables"


def renew() -> None:
    """Write the table anew."""
    before, _, after = shown()
    with TemporaryDirectory() as folder:
        made = table(Path(folder))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    renew()
