"""As little as a chat with sessions and users needs. For trying it out: a site of yours has a secret key and DEBUG off."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parents[1]
PAGE_DIR = BASE_DIR.parent / "chat_page"
CABLE_URL = os.environ.get("CABLE_URL", "ws://127.0.0.1:8080/cable")

DEBUG = True
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only for trying this out")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

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
