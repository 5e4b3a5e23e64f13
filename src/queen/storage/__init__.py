"""PostgreSQL: the embedded server, the schema, and every statement Queen sends."""
