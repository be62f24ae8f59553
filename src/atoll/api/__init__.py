"""The wire contract: each route is declared once; server, clients, OpenAPI and reference derive from it."""
