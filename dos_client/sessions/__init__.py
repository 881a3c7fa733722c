"""Sessions with one server at a time: connecting, requests and answers, identity, availability."""
