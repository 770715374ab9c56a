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
    """`" Did you mean 'cat'?"` when one of the known words is close in any case, else the empty string."""
    by_lower_name = {str(name).lower(): str(name) for name in known}
    close = get_close_matches(str(word).lower(), by_lower_name, n=1, cutoff=0.6)
    return f" Did you mean {by_lower_name[close[0]]!r}?" if close else ""


def counted(number: int, thing: str, does: str = "", do: str = "") -> str:
    """`1 row has` or `3 rows have`: a number, what it counts and, where given, the verb that agrees with it."""
    verb = does if number == 1 else do
    return f"{number:,} {thing}{'' if number == 1 else 's'}" + (f" {verb}" if verb else "")


def listed(words: Iterable[object], most: int = 5) -> str:
    """The first few words, and how many more there are: `a, b, c and 7 more`."""
    words = [str(word) for word in words]
    shown = ", ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown


def one_of(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a value that is none of the choices, in one sentence."""
    choices = list(choices)
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise PyrocrowdError(f"{name} must be one of {listed(choices, 12)}, not {value!r}.{hint}")


def at_least(name: str, value: object, least: float) -> None:
    """Refuse what is no number, or is below the least that makes sense, in one sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
        raise PyrocrowdError(f"{name} must be a number of at least {least:g}, not {value!r}.")
