"""Who may do what: the small CA, certificates, TLS contexts, the caller's identity, authorisation."""
