"""The web half: people log in here, and other programs write here. What anybody reads comes from Ropewalk."""

import os
import pathlib
from html import escape
from typing import Annotated

from chat import COOKIE, COOKIE_SECONDS, MAX_TEXT_LENGTH, ROOM, cookie_for, name_in, room_stream
from fastapi import Cookie, Depends, FastAPI, HTTPException, Path, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field

import ropewalk
from ropewalk.client import PublishUnavailable

CABLE_URL = os.environ.get("CABLE_URL", "ws://127.0.0.1:8080/cable")
PAGE = pathlib.Path(__file__).parents[1] / "chat_page"

app = FastAPI()
app.mount("/static", StaticFiles(directory=PAGE))


class Login(BaseModel):
    name: str = Field(min_length=1, max_length=40)


class NewMessage(BaseModel):
    text: str = Field(min_length=1, max_length=MAX_TEXT_LENGTH)


def logged_in(chat_session: Annotated[str, Cookie()] = "") -> str:
    name = name_in(chat_session)
    if name is None:
        raise HTTPException(401, "log in first")
    return name


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse((PAGE / "index.html").read_text().replace("{{ cable }}", escape(CABLE_URL)))


@app.post("/login", status_code=204)
async def login(wanted: Login, request: Request, response: Response) -> None:
    """Log in under any name. Your site checks a password here."""
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, cookie_for(wanted.name), max_age=COOKIE_SECONDS, httponly=True, samesite="lax", secure=secure)


@app.post("/rooms/{room}/messages", status_code=201)
async def post_message(
    room: Annotated[str, Path(pattern=f"^{ROOM}$")], message: NewMessage, name: Annotated[str, Depends(logged_in)]
) -> dict[str, int]:
    receipt = await ropewalk.apublish(room_stream(room), {"name": name, "text": message.text})
    return {"offset": receipt.offset}


@app.exception_handler(PublishUnavailable)
async def try_later(_request: Request, _error: PublishUnavailable) -> JSONResponse:
    return JSONResponse({"detail": "not published, try again"}, 503)
