"""The web half: the page, logging in, and writing and reading messages over HTTP."""

import json
from functools import partial
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model, login
from django.contrib.auth.hashers import make_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_http_methods, require_POST

import ropewalk
from chat.models import Message

NEWEST = 50


@require_GET
@ensure_csrf_cookie
def page(request: HttpRequest) -> HttpResponse:
    return render(request, "index.html", {"cable": settings.CABLE_URL})


@require_POST
def log_in(request: HttpRequest) -> HttpResponse:
    """Log in under any name that has no password. Your site checks a password here."""
    name = field(request, "name")[:40]
    if not name:
        return JsonResponse({"error": "name is missing"}, status=422)
    user, _ = get_user_model().objects.get_or_create(username=name, defaults={"password": make_password(None)})
    if user.has_usable_password():
        return JsonResponse({"error": "that name has a password"}, status=403)
    login(request, user)
    return HttpResponse(status=204)


@require_http_methods(["GET", "POST"])
def messages(request: HttpRequest, room: str) -> HttpResponse:
    if not request.user.is_authenticated:
        return JsonResponse({"error": "log in first"}, status=401)
    if request.method == "POST":
        return post_message(request, room)
    newest = Message.objects.filter(room=room).select_related("author").order_by("-id")[:NEWEST]
    return JsonResponse({"messages": [message.shown() for message in reversed(newest)]})


def post_message(request: HttpRequest, room: str) -> HttpResponse:
    message = Message(room=room, author=request.user, text=field(request, "text"))
    try:
        message.full_clean()
    except ValidationError as error:
        return JsonResponse({"error": error.message_dict}, status=422)
    with transaction.atomic():
        message.save()
        # After the commit: a rolled-back message is never published. Robust: if publishing fails, Django logs it.
        transaction.on_commit(partial(ropewalk.publish, message.stream, message.shown(), uid=message.uid), robust=True)
    return JsonResponse(message.shown(), status=201)


def field(request: HttpRequest, name: str) -> str:
    """A text out of a JSON object; "" where there is none."""
    try:
        said: Any = json.loads(request.body)
    except ValueError:
        return ""
    value = said.get(name) if isinstance(said, dict) else None
    return value if isinstance(value, str) else ""
