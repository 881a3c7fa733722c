"""The commands `dos region` and `dos cuts`."""
