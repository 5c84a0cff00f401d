"""Whether the match probabilities of the demonstration's gallery can be believed."""

from dataclasses import dataclass

from cbml.bayes import Reliability

__all__ = ["Promises", "promises_section"]


@dataclass(frozen=True)
class Promises:
    """How far the match probabilities of a gallery can be believed.

    Args:
        check: on classes that had not taught what was checked.
        own: whether the gallery's own labels taught them, so that halves of its classes checked
            each other; else held-out classes taught them, and all of its classes check them.
        results: how many of each search were looked at.
    """

    check: Reliability
    own: bool
    results: int

    @property
    def sentence(self) -> str:
        """What was learned from what, and checked on what."""
        if self.own:
            learned = (
                "This gallery has labels, and its own classes teach what a similarity means among "
                "them. Its classes were cut in two halves, and each half was checked with what the "
                "other had taught"
            )
        else:
            learned = "They were learned on held-out classes and are checked here on unseen ones"
        return f"{learned}, among the first {self.results} results of every search."


def promises_section(promises: Promises | None) -> str:
    """The part of the page about them; empty where there are none.

    Args:
        promises: of the gallery.
    """
    if promises is None:
        return ""
    check = promises.check
    rows = "".join(
        f"<tr><th>{count:,} results</th><td>{said:.0%}</td><td>{seen:.0%}</td></tr>"
        for count, said, seen in zip(check.counts, check.said, check.seen, strict=True)
    )
    return (
        f"<h2>Can the match probabilities be believed?</h2><p>{promises.sentence} Mean gap between "
        f"what was said and what was right: {check.ece:.1%}.</p>"
        "<div class='scores'><table><tr><th></th><th>said</th><th>right</th></tr>"
        f"{rows}</table></div>"
    )
