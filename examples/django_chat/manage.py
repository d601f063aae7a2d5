"""Django's command line: `python manage.py migrate`, `python manage.py runserver`."""

import os
import secrets
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chat.settings")
    if sys.argv[1:2] == ["test"]:  # tests use a random secret
        os.environ.setdefault("DJANGO_SECRET_KEY", secrets.token_hex(32))
    execute_from_command_line(sys.argv)
