"""The commands `dos region` and `dos checkpoint`."""
