"""Stories of a region: drivers with their coordinators, workers, and checkpoints.

The cores of coordinator and participant are the real ones; the manifest is the model of
`tests/checkpoint/region_model.py`, and so is the worker's circuit. That the manifest's chain keeps what it
promises is in the stories of a store.

    links      exchange links, with local recovery
    telling    who says what to whom, in words
    play       the region, and what happens in it next
    table      the words
"""
