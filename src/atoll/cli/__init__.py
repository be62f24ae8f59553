"""The command line: noun verb. Talks to services through atoll.api; each noun is imported when it is used."""
