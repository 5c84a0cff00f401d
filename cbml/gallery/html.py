"""The answers of a search as one HTML file with the images inside."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from cbml.data import UnreadableImage, read_image
from cbml.files import replaced_file
from cbml.gallery.gallery import Gallery
from cbml.gallery.images import shown
from cbml.gallery.results import SearchResponse, SearchResult
from cbml.gallery.thumbnails import jpeg

__all__ = ["write_html"]

SIDE = 192
_STYLE = """
:root { --page: #f9f9f7; --ink: #0b0b0b; --soft: #52514e; --line: #d6d5ce; --relevant: #0c7a0c;
  --irrelevant: #c22f2f; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --ink: #fff; --soft: #c3c2b7;
  --line: #3a3a37; --relevant: #3fb93f; --irrelevant: #ee6a6a; } }
body { margin: 0 auto; max-width: 1200px; padding: 20px; background: var(--page);
  color: var(--ink); font: 15px/1.45 system-ui, "Segoe UI", sans-serif; }
h1 { font-size: 22px; } h2 { font-size: 16px; overflow-wrap: anywhere; } p { color: var(--soft); }
ol { display: flex; flex-wrap: wrap; gap: 10px; padding: 0; list-style: none; }
li { width: 160px; padding: 6px; border: 3px solid var(--line); border-radius: 6px;
  font-size: 13px; overflow-wrap: anywhere; }
li.relevant { border-color: var(--relevant); } li.irrelevant { border-color: var(--irrelevant); }
li.relevant b::after { content: " ✓"; color: var(--relevant); }
li.irrelevant b::after { content: " ✗"; color: var(--irrelevant); }
img { display: block; width: 100%; height: 150px; object-fit: contain; background: #fff; }
figure { margin: 0; width: 180px; } span { color: var(--soft); }
"""


def write_html(path: Path, gallery: Gallery, answers: Sequence[tuple[str, SearchResponse]]) -> None:
    """Write the answers with small copies of all images.

    Args:
        path: the file to create or replace.
        gallery: that was searched.
        answers: each with the file of its query.
    """
    sections = "\n".join(_section(gallery, query, answer) for query, answer in answers)
    title = escape(shown(f"Search in {gallery.name}"))
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "img-src data:; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{title}</h1>\n{sections}\n</body></html>\n"
    )
    with replaced_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _section(gallery: Gallery, query: str, answer: SearchResponse) -> str:
    name = escape(shown(query))
    facts = f"compared with {answer.searched:,} images"
    if answer.query.average_precision is not None:
        facts = (
            f"first hit at rank {answer.query.first_hit_rank}, average precision "
            f"{answer.query.average_precision:.3f}, {facts}"
        )
    image = f'<figure><img alt="the query" src="{_data(Path(query))}"></figure>'
    parts = [f"<section><h2>{name}</h2>{image}<p>{facts}</p>", _tiles(gallery, answer.results)]
    if answer.missed:
        parts += ["<p>Missed, of the same label:</p>", _tiles(gallery, answer.missed)]
    return "\n".join([*parts, "</section>"])


def _tiles(gallery: Gallery, results: Sequence[SearchResult]) -> str:
    kinds = {True: "relevant", False: "irrelevant", None: "unknown"}
    tiles = []
    for result in results:
        path = Path(gallery.images[gallery.index_of(result.id)].path)
        rank = "deep" if result.rank is None else f"#{result.rank}"
        numbers = f"{rank} · {result.similarity:.3f}"
        if result.probability is not None:
            numbers += f" · {result.probability:.0%}"
        name, label = escape(result.name), escape(result.label or "")
        tiles.append(
            f'<li class="{kinds[result.relevant]}"><img alt="{name}" src="{_data(path)}">'
            f"<b>{label}</b><br>{numbers}<br><span>{name}</span></li>"
        )
    return f"<ol>{''.join(tiles)}</ol>"


def _data(path: Path) -> str:
    """A small copy of an image as a data address; an empty one where it cannot be read."""
    try:
        content = jpeg(read_image(path), SIDE)
    except UnreadableImage:
        return "data:,"
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"
