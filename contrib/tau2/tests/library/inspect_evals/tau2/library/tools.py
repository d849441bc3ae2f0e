import os
import sys
import time
from typing import Any, Literal

from inspect_ai.tool import Tool, tool
from inspect_ai.util import store_as

from inspect_evals.tau2.library.LibraryAgentTools import LibraryAgentTools, Wish


@tool
def find_book() -> Tool:
    async def execute(title: str) -> str:
        """Find a book by its title. If there is none, the function
        will return an error message.

        Args:
            title: The title, such as 'Emma'.

        Returns:
            The number of the book.

        Raises:
            ToolError: If there is none.
        """
        return store_as(LibraryAgentTools, "LibraryTools").find_book(title)

    return execute


@tool
def lend_books() -> Tool:
    async def execute(
        books: list[str], reader: str, days: int, kind: Literal["long", "short"]
    ) -> str:
        """
        Lend books to a reader.

        Args:
            books: Numbers of the books.
            reader: The reader's name.
            days: For how long.
            kind: Of the loan.
        """
        return store_as(LibraryAgentTools, "LibraryTools").lend_books(books, reader, days, kind)

    return execute


@tool
def take_back() -> Tool:
    async def execute(book: str) -> str:
        """Take a book back.

        Args:
            book: Its number.
        """
        return store_as(LibraryAgentTools, "LibraryTools").take_back(book)

    return execute


@tool
def wish_for() -> Tool:
    async def execute(wishes: list[Wish | dict[str, Any]]) -> str:
        """Note wishes.

        Args:
            wishes: Titles and copies.
        """
        return store_as(LibraryAgentTools, "LibraryTools").wish_for(wishes)

    return execute


@tool
def calculate() -> Tool:
    async def execute(expression: str) -> str:
        """Whatever a tool may do.

        Args:
            expression: What it is to do.
        """
        if expression == "die":
            os.write(2, b"out of paper\n")
            os._exit(3)
        if expression == "hang":
            time.sleep(3600)
        if expression == "garble":
            os.write(1, b"no JSON\n")
        if expression == "flood":
            os.write(1, b"x" * (5 << 20))
        if expression == "variables":
            return ",".join(sorted(os.environ))
        sys.stdout.write("said beside the answers\n")
        return expression * 100 if expression == "much" else expression

    return execute


all_library_tools = [calculate, find_book, lend_books, take_back, wish_for]
