"""The mix of templates, and drawing sound questions from a world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from recipes.pocket import grammar as one
from recipes.pocket import grammar_joins as many
from recipes.pocket.world import Item, World

Template = Callable[[World, Random], Item | None]

# Template and weight. About six in ten questions invite one of the named slips.
TEMPLATES: tuple[tuple[Template, int], ...] = (
    (one.project, 3),
    (one.count_all, 1),
    (one.different, 2),
    (one.lookup, 3),
    (one.filter_equal, 4),
    (one.filter_bound, 10),
    (one.count_where, 3),
    (one.aggregate, 9),
    (one.two_conditions, 9),
    (one.between, 3),
    (one.sort, 6),
    (one.first_one, 9),
    (one.first_few, 7),
    (one.group_count, 4),
    (one.group_aggregate, 5),
    (one.having, 4),
    (one.versus_average, 7),
    (one.same_as, 2),
    (many.pairs, 4),
    (many.children_of, 8),
    (many.aggregate_of, 3),
    (many.parent_of, 3),
    (many.count_children, 3),
    (many.most_children, 4),
    (many.having_children, 4),
    (many.childless, 7),
    (many.both_kinds, 4),
    (many.but_none, 2),
    (many.all_labels, 1),
    (many.two_parents, 2),
)
_FUNCTIONS = [template for template, _ in TEMPLATES]
_WEIGHTS = [weight for _, weight in TEMPLATES]


def draw(
    world: World, rng: Random, template: Template | None = None, tries: int = 12
) -> Item | None:
    """One sound question, of the mix or of one template; None when the world does not lend itself to it."""
    chosen = template or rng.choices(_FUNCTIONS, _WEIGHTS)[0]
    for _ in range(tries):
        item = chosen(world, rng)
        if item is not None and world.sound(item):
            return item
    return None


def draw_unique(world: World, rng: Random, count: int) -> Iterator[Item]:
    """`count` sound questions with different golds and different wordings, in the proportions of the mix."""
    golds: set[str] = set()
    questions: set[str] = set()
    found = 0
    for _ in range(count * 60):
        if found == count:
            return
        item = draw(world, rng)
        if item is None or item.gold in golds or item.question in questions:
            continue
        golds.add(item.gold)
        questions.add(item.question)
        found += 1
        yield item
    raise ValueError(f"{world.domain.db_id}: only {found} of {count} questions were found")
