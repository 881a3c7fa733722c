"""Print the forms of steps that stories may contain: `./run python -m tests.stories`."""

from tests.stories.replay import PLAYS


def forms() -> str:
    """Return a line for each form, and below it what happens; a blank line between kinds of stories."""
    return "\n\n".join(
        "\n".join(f"{form.form}\n    {form.what}" for form in words.forms) for words, _ in PLAYS
    )


if __name__ == "__main__":
    print(forms())
