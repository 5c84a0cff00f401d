"""`cbml methods`: every loss and method by name."""

import json

from cbml.cli.options import AsJson


def verb(
    as_json: AsJson = False,
) -> None:
    """List the losses for --loss and the methods for --method.

    \b
    Examples:
      cbml methods
      cbml methods --json
    """
    from cbml.runs import list_methods

    found = list_methods()
    if as_json:
        print(json.dumps(found))
        return
    for kind, entries in found.items():
        print(f"{kind}:")
        for name, title in entries.items():
            print(f"  {name:<24} {title}")
    print(
        "of your own:  --loss package.module:Class, --method package.module:Class, "
        "--backbone package.module:function"
    )
