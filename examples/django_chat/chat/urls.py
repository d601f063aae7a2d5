"""Where the views are."""

from django.urls import path

from chat import views

urlpatterns = [
    path("", views.page),
    path("login", views.log_in),
    path("rooms/<slug:room>/messages", views.messages),
]
