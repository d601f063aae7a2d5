"""A chat on Django: views, a model, and the channels that Ropewalk runs."""
