"""parbake's offline side: from sources to shards.

    sources            index               plan                 render                    replay (package `loaders`)
    parquet  ─┐   one row per sample   one row per pack     one tar per shard        one PackedBatch per step
    jsonl    ─┼─► image sizes, token ─► which samples, ────► decode, resize, ───────► map bytes, cast, hand
    tar+jsonl ┘   counts, faults       which items kept,    patchify to uint8,       to the GPU; position
                  (parallel, cached)   timesteps (one       write, commit            is an integer
                                       pass per lane, no    (parallel, idempotent)
                                       pixels touched)

Packing needs only lengths, and lengths need only image headers. So the part whose order matters (the packer and its
random draws) runs on metadata, and the expensive part (pixels) is independent, idempotent tasks. All randomness is
spent in the plan; render and replay draw nothing.

Every stage reads what the one before it left in the bake folder, works in independent units, publishes each unit
atomically and skips units that are already there with the right fingerprint: rerunning the same command is resume.

The laws, each a test and, where a bake alone can show it, a check of `parbake validate`:

1. Text, ViT and VAE token indexes partition [0, sequence_length).
2. sum(split_lens) == sum(sample_lens) == sequence_length (plus the pad split where `use_flex`), one mode per split.
3. Labels, loss indexes and loss weights have one length; loss indexes point at text tokens, `mse_loss_indexes` at VAE
   tokens with a finite timestep; the other VAE tokens have -inf.
4. No pack above `max_num_tokens`, no sample above `max_num_tokens_per_sample`, ids below the vocabulary size.
5. Per source: rows drawn == packed + dropped by reason + discarded + waiting;
   rows == drawn + not reached + not assigned.
6. Bytes of every shard == sha256 in its sidecar == sha256 in dataset.json.
7. inline == ray == killed and rerun == extended from a shorter bake, byte for byte; any worker count and world size
   reads the same packs in canonical order.
8. load(state at step n), then k steps == steps n … n+k of an uninterrupted run, also when the world size changes.
9. Greedy packs == the reference's packs, every field, bit for bit (live against nemo-automodel 0.7.0).

Where to read next: `records` (what passes between the stages), `bake` (where it lies), `stages` (who runs when).
"""
