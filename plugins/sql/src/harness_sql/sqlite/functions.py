"""SQL functions that respect the deadline, for queries on long values.

SQLite calls its progress handler between the steps of a program, never inside one function, and the
time of some functions grows with the product of their arguments' lengths. The functions here return
the same results as SQLite's, for every type of argument: Python's linear algorithms handle text and
blobs, and SQLite handles the rest on a separate connection. Each call checks the deadline first.
Standard library only.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

_MAX_WIDTH = 100_000
_MAX_PRODUCT = 100_000_000
"""Largest product of two arguments' lengths for which SQLite's own algorithm is used; up to 1 s."""
_CONVERSION = re.compile(r"%[-+ #!0,]*(\*|\d+)?(?:\.(\*|\d+)?)?l{0,2}(.?)", re.DOTALL)
_DIGITS = re.compile(r"[1-9]\d*")
_LINEAR = (("hex", 1), ("quote", 1), ("upper", 1), ("lower", 1))
"""Function names and argument counts."""
_TIME_ARGUMENTS = {
    "date": (0,), "time": (0,), "datetime": (0,), "julianday": (0,), "unixepoch": (0,),
    "strftime": (1,), "timediff": (0, 1),
}  # fmt: skip
"""Date functions with the positions of their time arguments.

Older SQLite libraries lack `unixepoch` and `timediff`.
"""
DATE_FUNCTIONS = frozenset(_TIME_ARGUMENTS)
"""Functions that read the clock for some arguments: for `'now'`, and if the time is left out."""
CHANGING_FUNCTIONS = {
    "random": "random()",
    "randomblob": "randomblob()",
    "current_date": "CURRENT_DATE",
    "current_time": "CURRENT_TIME",
    "current_timestamp": "CURRENT_TIMESTAMP",
}
"""Functions that vary between calls for all arguments, with their names in reports."""
_SECOND_FRACTIONS = frozenset({"subsec", "subsecond"})
"""Arguments that read the clock if they are alone, in SQLite 3.42 and later."""


class TooLate(Exception):
    """The deadline has passed."""


class Functions:
    """Functions that SQLite calls instead of its own.

    A function raises `OverflowError` if SQLite would report "too big", `TooLate` after the
    deadline, and
    SQLite's own error for anything else; `problem` then holds the error's text. If a text is not
    UTF-8,
    SQLite itself fails before the call, and `problem` is None. `clock_reads` collects how date
    functions
    requested the current time.

    Args:
        late: Returns whether the deadline has passed.
    """

    def __init__(self, late: Callable[[], bool]) -> None:
        self.problem: str | None = None
        self.clock_reads: set[str] = set()
        self._late = late
        self._max_bytes = 0
        self._own: sqlite3.Connection | None = None

    def set_max_bytes(self, count: int) -> None:
        """Set the length limit of values, in bytes."""
        self._max_bytes = count
        if self._own is not None:
            self._own.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, count)

    def install_printf(self, connection: sqlite3.Connection) -> None:
        """Replace only `printf` and `format`. SQLite's count to two billion before they fail."""
        for name in ("printf", "format"):
            connection.create_function(name, -1, self.printf, deterministic=True)

    def install(self, connection: sqlite3.Connection) -> None:
        """Replace every function that is slow on long values, except JSON functions.

        Values of JSON functions carry a mark that functions written in Python can neither see nor
        set.
        """
        self.install_printf(connection)
        for name, count in _LINEAR:
            connection.create_function(name, count, self._linear(name), deterministic=True)
        for name in DATE_FUNCTIONS:
            known = connection.execute(
                "SELECT 1 FROM pragma_function_list WHERE name = ?", (name,)
            ).fetchone()
            if known:
                connection.create_function(name, -1, self._dated(name), deterministic=True)
        connection.create_function("randomblob", 1, self._linear("randomblob"))
        for name, count, function in (
            ("trim", 2, self._trim("trim", True, True)),
            ("ltrim", 2, self._trim("ltrim", True, False)),
            ("rtrim", 2, self._trim("rtrim", False, True)),
            ("instr", 2, self.instr),
            ("replace", 3, self.replace),
            ("like", 2, self._product("like")),
            ("like", 3, self._product("like")),
            ("glob", 2, self._product("glob")),
        ):
            connection.create_function(name, count, function, deterministic=True)

    def printf(self, *arguments: Any) -> Any:
        """Run SQLite's own printf, with a limit on widths."""
        longest = _widest(arguments, self._check)
        if longest > _MAX_WIDTH:
            raise OverflowError
        result = self._plain("printf", arguments)
        if result is None and arguments and arguments[0] is not None:
            # SQLite gives NULL for what is too long, but also for an unknown conversion.
            text = str(arguments[0])
            parts = max(len(value) if isinstance(value, str | bytes) else 24 for value in arguments)
            if len(text) + text.count("%") * (longest + 700 + 4 * parts) > self._max_bytes:
                raise OverflowError
        return result

    def instr(self, text: object, part: object) -> Any:
        """Return the position of a part, counted from 1, or 0 if it does not occur."""
        if (
            isinstance(text, str | bytes)
            and isinstance(part, str | bytes)
            and isinstance(part, type(text))
        ):
            self._check()
            return text.find(part) + 1  # type: ignore[arg-type]
        return self._by_product("instr", (text, part))

    def replace(self, text: object, old: object, new: object) -> Any:
        """Return the text with every occurrence of a part replaced."""
        if not (isinstance(text, str) and isinstance(old, str) and isinstance(new, str)):
            return self._by_product("replace", (text, old, new))
        self._check()
        if not old or old[0] == "\0":
            return text
        if (
            len(new) > len(old)
            and len(text) + text.count(old) * (len(new) - len(old)) > self._max_bytes
        ):
            raise OverflowError
        return text.replace(old, new)

    def _trim(self, name: str, left: bool, right: bool) -> Callable[[Any, Any], Any]:
        def trim(text: object, characters: object) -> Any:
            if not (isinstance(text, str) and isinstance(characters, str)):
                return self._by_product(name, (text, characters))
            self._check()
            # Not str.strip, which compares each character of the text with each to be stripped.
            stripped = set(characters.partition("\0")[0])
            start, end = 0, len(text)
            while left and start < end and text[start] in stripped:
                start += 1
            while right and end > start and text[end - 1] in stripped:
                end -= 1
            return text[start:end]

        return trim

    def _product(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._by_product(name, arguments)

    def _linear(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._plain(name, arguments)

    def _dated(self, name: str) -> Callable[..., Any]:
        positions = _TIME_ARGUMENTS[name]

        def dated(*arguments: object) -> Any:
            for position in positions:
                if position >= len(arguments):
                    self.clock_reads.add(f"{name}() of now")
                elif _asks_for_now(arguments[position]):
                    self.clock_reads.add("'now'")
            return self._plain(name, arguments)

        return dated

    def _by_product(self, name: str, arguments: tuple[object, ...]) -> Any:
        sizes = [len(value) if isinstance(value, str | bytes) else 24 for value in arguments[:2]]
        if sizes[0] * sizes[1] > _MAX_PRODUCT:
            raise OverflowError
        return self._plain(name, arguments)

    def _plain(self, name: str, arguments: tuple[object, ...]) -> Any:
        self._check()
        if self._own is None:
            self._own = sqlite3.connect(":memory:", check_same_thread=False)
            self._own.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._max_bytes)
            self._own.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 500)
        marks = ", ".join("?" * len(arguments))
        try:
            return self._own.execute(f"SELECT {name}({marks})", arguments).fetchone()[0]
        except sqlite3.DataError:  # too big
            raise OverflowError from None
        except sqlite3.Error as error:
            self.problem = str(error)
            raise

    def _check(self) -> None:
        if self._late():
            raise TooLate

    def __del__(self) -> None:
        if self._own is not None:
            self._own.close()


def _asks_for_now(time: object) -> bool:
    """Return whether SQLite reads a time as the current one. A text ends at its first NUL."""
    if isinstance(time, bytes):
        time = time.decode("latin-1")
    if not isinstance(time, str):
        return False
    word = time.partition("\0")[0].lower()
    return word == "now" or word in _SECOND_FRACTIONS


def _widest(arguments: tuple[object, ...], check: Callable[[], None]) -> int:
    """Return the largest width or precision of a printf, from its format and arguments.

    Args:
        check: Called for each conversion, because a long argument takes 30 ms and there may be a
            hundred.
    """
    if not arguments or arguments[0] is None:
        return 0
    form = arguments[0].decode("latin-1") if isinstance(arguments[0], bytes) else str(arguments[0])
    longest, used = 0, 1
    for conversion in _CONVERSION.finditer(form):
        check()
        for width in conversion.group(1, 2):
            digits = width or "0"
            if width == "*":
                # SQLite would read a text as a number, so that all of its digits count.
                digits = str(arguments[used] if used < len(arguments) else 0).replace("e", "0000")
                used += 1
            for number in _DIGITS.findall(digits):
                # Twelve digits exceed every limit; reading millions of them would take long.
                longest = max(longest, int(number[:12]))
        used += conversion.group(3) not in ("%", "n", "")
    return longest
