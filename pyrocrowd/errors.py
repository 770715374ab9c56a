"""What pyrocrowd says when something is wrong: one sentence per problem, cause and remedy, in the user's words."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PyrocrowdError(ValueError):
    """A mistake that the user can mend.

    Parameters
    ----------
    problems : str or list of str
        One sentence per problem; all that were found are reported at once.
    """

    def __init__(self, problems: str | Iterable[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class PyrocrowdWarning(UserWarning):
    """Something the user should know about and that does not stop the work."""


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """`" Did you mean 'cat'?"` when one of the known words is close, else the empty string."""
    close = get_close_matches(str(word), [str(name) for name in known], n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def listed(words: Iterable[object], most: int = 5) -> str:
    """The first few words, and how many more there are: `a, b, c and 7 more`."""
    words = [str(word) for word in words]
    shown = ", ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown
