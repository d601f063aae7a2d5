"""The words: frozen records, enums, errors and tables that every other room speaks in. Imports nothing of ours."""
