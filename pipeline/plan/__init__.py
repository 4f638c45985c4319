"""Plan: which samples are in which pack, decided from lengths alone, with every random draw spent.

    run         the stage: assign, then lanes, then plan.json
    assign      one unit a group: each lane's ordered row list       order, line_order, line_sort, scatter
    lane        one unit a lane: draws, packs, shards, accounts      partition, stream, greedy | fitted, shards
    report      what `parbake plan` prints

A lane is a function of the configuration and the index; a longer lane begins with the packs and closed shards of a
shorter one.
"""
