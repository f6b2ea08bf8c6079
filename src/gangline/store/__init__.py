"""What the server knows of runs, in SQL: SQLite embedded, PostgreSQL for a team."""
