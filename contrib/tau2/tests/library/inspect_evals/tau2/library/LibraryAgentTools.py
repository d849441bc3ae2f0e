"""A domain that is written as those of the wheel are, and small."""

from typing import Literal

from inspect_ai.tool import ToolError
from inspect_ai.util import StoreModel
from pydantic import BaseModel, Field


class Book(BaseModel):
    title: str = Field(description="Title of the book")
    reader: str | None = None
    days: float = 0.0
    days_left: dict[str, int] = Field(default_factory=dict)


class Wish(BaseModel):
    title: str = Field(description="Title, such as 'Emma'.")
    copies: int


class LibraryDB(BaseModel):
    books: dict[str, Book] = Field(default_factory=dict)
    wishes: dict[str, Wish] = Field(default_factory=dict)


class LibraryAgentTools(StoreModel):
    db: LibraryDB = Field(default_factory=LibraryDB)
    initialized: bool = False

    def find_book(self, title: str) -> str:
        for number, book in self.db.books.items():
            if book.title == title:
                return f'{{"book": "{number}", "reader": "{book.reader or ""}"}}'
        raise ToolError("Book not found")

    def lend_books(
        self, books: list[str], reader: str, days: int, kind: Literal["long", "short"]
    ) -> str:
        for number in books:
            if self.db.books[number].reader:
                raise ToolError(f"Book {number} is lent")
            self.db.books[number].reader = reader
            self.db.books[number].days = days * (2 if kind == "long" else 1)
        return f"Lent to {reader}: {', '.join(books)}"

    def take_back(self, book: str) -> str:
        self.db.books[book].reader, self.db.books[book].days = None, 0.0
        return "Taken back"

    def wish_for(self, wishes: list[Wish | dict]) -> str:
        for wish in wishes:
            made = Wish(**wish) if isinstance(wish, dict) else wish
            self.db.wishes[made.title] = made
        return "Noted"
