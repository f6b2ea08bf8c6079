"""What travels between client and server, and what people write in files: standard library and `gangline.domain`."""
