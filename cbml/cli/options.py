"""Options that several verbs share: each stands once, with its help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
SavedModel = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, or a saved model's.")
]
_MODEL = typer.Argument(
    metavar="RUN", help="A run's folder, a saved model's, or a backbone's name."
)
Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
_IMAGES = typer.Argument(
    metavar="IMAGES", help="A folder, an archive, a table, or a dataset's name."
)
Images = Annotated[str, _IMAGES]
OptionalImages = Annotated[str | None, _IMAGES]
GalleryFolder = Annotated[Path, typer.Argument(metavar="GALLERY", help="Made by cbml index.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0)]

# How images are read.
LabelFrom = Annotated[
    str | None,
    typer.Option(help="Pattern of file names, such as '{label}_{n}'; auto finds it."),
]
KnownAs = Annotated[
    str | None,
    typer.Option("--as", help="Read DATA as this dataset, or as a folder."),
]
SplitBy = Annotated[
    Literal["stated", "classes"] | None,
    typer.Option(help="Use the splits in the data, or make new ones by class."),
]
PathColumn = Annotated[str | None, typer.Option(help="Column of a table that names the files.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of a table that holds the labels.")]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="Accept a dataset that is not complete.")
]
Part = Annotated[
    Literal["all", "train", "test"],
    typer.Option(help="Which part, as RUN splits the images."),
]

#: The option of the verbs that load a trained model, whose network may be the user's own.
OwnBackbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="MODULE:FUNCTION",
        help="Your own network, if the model was trained with one.",
    ),
]
#: The option of the verbs that embed many images.
Processes = Annotated[
    int,
    typer.Option(
        min=1,
        help="Processes on this machine that embed together. On several machines, start the same "
        "command by torchrun on each.",
    ),
]
