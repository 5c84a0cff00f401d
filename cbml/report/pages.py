"""Results as self-contained HTML pages: one base template, one style sheet, nothing remote.

Every page is plain data in, one file out. The templates beside this file escape what they show.
"""

import base64
import functools
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
from markupsafe import Markup
from PIL import Image

from cbml.files import replaced_file

if TYPE_CHECKING:
    from torch import Tensor

TERMS = {
    "Recall@1": "Share of queries whose nearest image has the same label.",
    "Recall@2": "Share of queries with an image of the same label among the nearest two.",
    "Recall@4": "Share of queries with an image of the same label among the nearest four.",
    "Recall@8": "Share of queries with an image of the same label among the nearest eight.",
    "Recall@10": "Share of queries with an image of the same label among the nearest ten.",
    "Recall@100": "Share of queries with an image of the same label among the nearest hundred.",
    "agreement": "Share of the five nearest neighbors of held-out images that their enlarged views "
    "have, too; no label is used.",
    "view_agreement": "Share of the five nearest neighbors of training images that the middle of "
    "the image, mirrored, has, too; no label is used.",
    "MAP@R": "Mean average precision among the R nearest, R being the number of images that share "
    "the query's label; unlike Recall@1 it rewards finding all of them.",
    "R-precision": "Share of images with the query's label among the R nearest.",
    "MRR": "Mean of 1 / rank of the first image with the query's label.",
    "NMI": "Normalized mutual information of labels and clusters of the embeddings.",
    "AMI": "Like NMI, corrected for chance.",
    "KS P": "Largest gap between the distribution of positive pairs and its Gaussian.",
    "KS N": "Largest gap between the distribution of negative pairs and its Gaussian.",
    "μ_P": "Mean similarity of positive pairs: two images of one class.",
    "σ_P": "Spread (standard deviation) of the similarities of positive pairs.",
    "μ_N": "Mean similarity of negative pairs: two images of different classes.",
    "σ_N": "Spread (standard deviation) of the similarities of negative pairs.",
    "pairs P": "Number of positive pairs: two images of one class.",
    "pairs N": "Number of negative pairs: two images of different classes.",
    "log-lik P": "Mean log-likelihood of a positive pair under the Gaussian, in nats.",
    "best P": "The best log-likelihood that a histogram of such steps can reach.",
    "log-lik N": "Mean log-likelihood of a negative pair under the Gaussian, in nats.",
    "best N": "The best log-likelihood that a histogram of such steps can reach.",
    "prior": "Share of positive pairs among all pairs.",
    "log loss prior": "Log loss of a forecast that knows the prior alone; less is better.",
    "log loss Gauss": "Log loss of the posteriors by Gaussians; less is better.",
    "log loss free": "Log loss of the posteriors by a free curve; less is better.",
    "ECE Gauss": "Mean gap between posteriors by Gaussians and how often they came true.",
    "ECE free": "Mean gap between posteriors by a free curve and how often they came true.",
    "confidence": "Mean of the probabilities that were given.",
    "accuracy": "How often results of such a probability were relevant.",
    "training, before": "Images that are trained on, before training.",
    "training, after": "Images that are trained on, by the model kept.",
    "held-out, before": "Images left out of training to choose the model by; before training.",
    "held-out, after": "Images left out of training to choose the model by; the model kept.",
    "test, before": "The test images, before training.",
    "test, after": "The test images, with the model that was kept.",
}

Kind = Literal["query", "relevant", "irrelevant", "unknown"]


@dataclass(frozen=True)
class Tile:
    """An image with its captions.

    Args:
        image: The image as a data address.
        label: Its class.
        caption: One short line, such as its rank and similarity.
        kind: What it is to the query; decides the frame.
        note: A second line.
    """

    image: str
    label: str
    caption: str
    kind: Kind = "unknown"
    note: str = ""


@dataclass(frozen=True)
class QueryTiles:
    """A query and its nearest images, ready to be shown.

    Args:
        query: The query.
        neighbors: Its nearest images, nearest first.
    """

    query: Tile
    neighbors: Sequence[Tile]


@dataclass(frozen=True)
class Table:
    """Cells of text under their heads.

    Args:
        heads: One per column.
        rows: One text per column each.
        note: A sentence below.
        title: A heading above, where the page has several tables.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    title: str = ""


def neighbor_tile(image: str, label: str, similarity: float, relevant: bool) -> Tile:
    """A neighbor with its verdict and similarity.

    Args:
        image: The image as a data address.
        label: Its class.
        similarity: Similarity to the query.
        relevant: Whether it has the query's class.
    """
    mark, kind = ("✓", "relevant") if relevant else ("✗", "irrelevant")
    return Tile(image, label, f"{mark} {similarity:.2f}", kind)  # type: ignore[arg-type]


def thumbnail(image: "Tensor | Image.Image", side: int = 72) -> str:
    """An image as a small data URL.

    Args:
        image: Pixels (3, H, W) as uint8, or an image of Pillow.
        side: Side of the square that it fills; twice as many pixels are kept for sharp screens.
    """
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    small = image.convert("RGB")
    small.thumbnail((side * 2, side * 2))
    memory = io.BytesIO()
    small.save(memory, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(memory.getvalue()).decode()


def write_page(path: Path, template: str, *, title: str, **content: Any) -> None:
    """Write one self-contained page.

    Args:
        path: The file to create or replace.
        template: A file in templates/, such as "run.html".
        title: Title and heading.
        content: What the template shows.
    """
    page = _environment().get_template(template).render(title=title, **content)
    with replaced_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="backslashreplace")


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("cbml.report")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (loader.get_source(environment, name)[0] for name in ("style.css", "copy.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "terms": TERMS,
        "style": Markup(style),
        "script": Markup(script),
        "script_hash": f"sha256-{digest}",
    }
    return environment
