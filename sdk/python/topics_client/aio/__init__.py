"""The client, written once. `topics_client.sync` is made of it by sdk/python/generate_sync.py: `make proto`."""
