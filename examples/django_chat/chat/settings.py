"""As little as a chat with sessions and users needs. `DJANGO_DEBUG=1` is for your own machine: else cookies want HTTPS."""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).parents[1]
PAGE_DIR = BASE_DIR.parent / "chat_page"
CABLE_URL = os.environ.get("CABLE_URL", "ws://127.0.0.1:8080/cable")

DEBUG = os.environ.get("DJANGO_DEBUG") == "1"
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "")
if not SECRET_KEY:
    raise ImproperlyConfigured("DJANGO_SECRET_KEY must be secret: export DJANGO_SECRET_KEY=$(openssl rand -hex 32)")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not DEBUG

ROOT_URLCONF = "chat.urls"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "chat",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [PAGE_DIR]}]
STATIC_URL = "static/"
STATICFILES_DIRS = [PAGE_DIR]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("CHAT_DATABASE", BASE_DIR / "db.sqlite3"),
        # Two processes write: one waits for the other.
        "OPTIONS": {"timeout": 10, "transaction_mode": "IMMEDIATE"},
        # A thread keeps its connection for the next call instead of opening one for each.
        "CONN_MAX_AGE": 60,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
