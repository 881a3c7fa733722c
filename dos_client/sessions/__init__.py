"""One server at a time: dialling, requests and answers, who it is, whether it is there."""
