"""The worlds, rules and customers' wishes of the desk, all from one random stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypedDict

RETURN_DAYS = 30
REASONS = ("ordered by mistake", "no longer needed")
RULES = f"""\
- Ask for name and postcode first, and find the customer. Speak of no order that is another customer's, and leave it \
as it is.
- Cancel an order, change its size or change its address only while it is being packed. After that it cannot be done.
- Another size must be in stock. If it is not, say which sizes are, and change nothing that the customer did not name.
- Take back what was delivered at most {RETURN_DAYS} days ago. The tools do not look at the date; you do.
- Do what was asked for, and nothing else. If it cannot be done, say why."""

_FIRST = (
    "Ana Ben Chloe Daniel Elif Farid Greta Hugo Ines Jonas Kira Luis Mei Noor Omar Petra".split()
)
_LAST = "Berg Castro Dahl Engel Fischer Garcia Haddad Ito Jansen Klein Lopez Moreau Novak Okafor".split()
_ARTICLES = (
    "linen shirt",
    "rain jacket",
    "wool jumper",
    "running shoe",
    "cotton dress",
    "winter coat",
)
_SIZES = ("S", "M", "L", "XL")
_STREETS = ("Mill Lane", "Station Road", "Park Street", "Harbour Way", "Church Hill")
_TOWNS = ("Ashford", "Brook", "Carlow", "Dunmore", "Elstead")


class Person(TypedDict):
    """A customer."""

    name: str
    postcode: str


class Order(TypedDict):
    """One order, of one article."""

    customer: str
    article: str
    size: str
    street: str
    town: str
    status: str
    days_since_delivery: int | None


class World(TypedDict):
    """The desk's data at the start of a conversation, by number or name."""

    customers: dict[str, Person]
    orders: dict[str, Order]
    stock: dict[str, dict[str, int]]


Change = dict[str, str]
"""The changed fields of an order."""


class Wish(NamedTuple):
    """A customer's wish, and the change of the order according to the rules; None: no change."""

    request: str
    order: str
    change: Change | None


@dataclass(frozen=True, slots=True)
class Visit:
    """A customer at the desk."""

    world: World
    customer: str
    wishes: tuple[Wish, ...]

    @property
    def instructions(self) -> str:
        """Return the instructions of the customer's policy."""
        person = self.world["customers"][self.customer]
        wants = "".join(f"\n- {wish.request}" for wish in self.wishes)
        return (
            f"You are {person['name']}, and your postcode is {person['postcode']}.\n"
            f"You want this, one after the other:{wants}\n"
            "If something cannot be done, accept it, and take nothing else for it."
        )

    @property
    def changes(self) -> dict[str, Change]:
        """Return the expected changes by order."""
        return {wish.order: wish.change for wish in self.wishes if wish.change is not None}


def visit(random: Random) -> Visit:
    """Return a customer with one or two wishes, among other customers with their own orders."""
    names = random.sample([f"{first} {last}" for first in _FIRST for last in _LAST], 3)
    # The order of draws is part of the task set: another one gives other tasks and hashes.
    numbers = iter(map(str, random.sample(range(1000, 10000), 12)))
    customers = {}
    for name in names:
        number = f"C{next(numbers)}"
        customers[number] = Person(name=name, postcode=str(random.randint(10000, 99999)))
    stock = {}
    for article in _ARTICLES:
        stock[article] = {size: random.choice((0, 1, 4)) for size in _SIZES}
    orders: dict[str, Order] = {}
    for customer in customers:
        for _ in range(3):
            order_number = next(numbers)
            orders[order_number] = _order(random, customer)
    visitor = next(iter(customers))
    world = World(customers=customers, orders=orders, stock=stock)
    own = [number for number, order in orders.items() if order["customer"] == visitor]
    others = [number for number, order in orders.items() if order["customer"] != visitor]
    chosen = random.sample(own, 2)
    # One in four times it is another customer's order, which has to be refused.
    chosen[1] = random.choice((chosen[1], chosen[1], chosen[1], others[0]))
    random.shuffle(chosen)
    wish_count = random.choice((1, 2, 2))
    wishes = tuple(_wish(random, world, visitor, number) for number in chosen[:wish_count])
    return Visit(world, visitor, wishes)


def _order(random: Random, customer: str) -> Order:
    status = random.choice((*["being packed"] * 5, "shipped", "delivered", "delivered"))
    return Order(
        customer=customer,
        article=random.choice(_ARTICLES),
        size=random.choice(_SIZES),
        street=f"{random.randint(1, 99)} {random.choice(_STREETS)}",
        town=random.choice(_TOWNS),
        status=status,
        days_since_delivery=random.choice((3, 12, 29, 31, 45)) if status == "delivered" else None,
    )


def _wish(random: Random, world: World, mine: str, number: str) -> Wish:
    """Return a wish for an order, and the change that the rules allow."""
    order = world["orders"][number]
    packed = order["status"] == "being packed"
    kinds = ("cancel", "size", "address")
    if order["status"] == "delivered":
        kinds = ("return", "return", "cancel")
    kind = random.choice(kinds)
    change: Change
    if kind == "cancel":
        reason = random.choice(REASONS)
        because = "I ordered it by mistake" if reason == REASONS[0] else "I no longer need it"
        request = f"Please cancel order {number}, {because}."
        change, may = {"status": "cancelled", "reason": reason}, packed
    elif kind == "size":
        size = random.choice([size for size in _SIZES if size != order["size"]])
        request, change = f"Please change the size of order {number} to {size}.", {"size": size}
        may = packed and world["stock"][order["article"]][size] > 0
    elif kind == "address":
        house, name = random.randint(100, 199), random.choice(_STREETS)
        street, town = f"{house} {name}", random.choice(_TOWNS)
        request = f"Please send order {number} to {street}, {town}."
        change, may = {"street": street, "town": town}, packed
    else:
        request, change = f"Please take back order {number}.", {"status": "returned"}
        may = (order["days_since_delivery"] or 0) <= RETURN_DAYS
    was: Mapping[str, object] = {**order}
    change = {name: value for name, value in change.items() if was.get(name) != value}
    return Wish(request, number, change if may and order["customer"] == mine else None)
