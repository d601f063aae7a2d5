"""The shared vocabulary: frozen records, enums, the error tree and tables. Imports no other package of ours."""
