"""Functions of a user, for `apply`."""


def count_words(rows):
    """One row per item."""
    return [{"words": len(row["text"].split()), "shout": row["title"].upper()} for row in rows]


class Pieces:
    """A row per word that is long enough, none for a text without one."""

    columns = {"piece": "string", "letters": "int64"}  # noqa: RUF012

    def __init__(self, shortest=1):
        self.shortest = shortest

    def __call__(self, rows):
        return [
            [{"piece": word, "letters": len(word)} for word in row["text"].split() if len(word) >= self.shortest]
            for row in rows
        ]
