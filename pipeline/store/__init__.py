"""The only room that knows DuckDB. `duck.DuckStore` is the store, `writer.StoreWriter` its one writing thread."""
