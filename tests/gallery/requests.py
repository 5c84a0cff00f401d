"""Requests to the service, as its tests make them."""

import io

import httpx

from tests.gallery import small
from tests.gallery.asgi import Client

API = "/api/v1"


def image_bytes(seed: int = 201, kind: str = "PNG") -> bytes:
    output = io.BytesIO()
    small.draw(seed).save(output, format=kind)
    return output.getvalue()


def upload(client: Client, body: bytes, path: str = f"{API}/search") -> httpx.Response:
    return client.post(path, content=body, headers={"content-type": "image/png"})


def message(answer: httpx.Response) -> str:
    """The one line of an error; fails where there is none."""
    error = answer.json()["error"]
    assert error["status"] == answer.status_code
    assert "\n" not in error["message"]
    return str(error["message"])
