"""Attacks on a real server, each bounded in count and time, on loopback only: what an honest client still
gets.

`./run attack` runs them. What is where: `table` names the attacks, `crowds` sends what attackers send,
`ground` lays out their data directories, `honest` is the client that is measured, `trial` puts one attack
together and judges it.
"""
